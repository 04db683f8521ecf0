"""Causal experiments. Read pairs.py (a clean and a corrupted text, a metric), sites.py (what can be patched),
sweep.py and sweep_result.py, path_patch.py, attribution_patch.py with activation_gradients.py, contrast.py
(steering vectors) and embed.py."""
