"""What a model computes for one text. Read activations.py (one pass, blocks recomputed on demand), trace.py,
indexing.py (`trace.attn.q[layer, head]`), lens.py and lens_column.py, trace_file.py."""
