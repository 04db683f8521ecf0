"""text -> windows -> scores. Read windows.py (which tokens of a sequence are scored), scorer.py
(log-likelihoods), score_cache.py (no window is scored twice)."""
