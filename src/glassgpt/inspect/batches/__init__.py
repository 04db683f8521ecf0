"""Many texts at once. Read named_array.py (results with named axes), prompts.py (prompts, answers and
positions, checked), metrics.py (numbers from logits), traces.py (`gpt.traces`), decompose.py."""
