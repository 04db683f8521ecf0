"""Logits to tokens: params.py (the settings), logits_processors.py, constraints.py, then sampler.py."""
