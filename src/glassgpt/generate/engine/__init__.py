"""The scheduler: requests of any lengths join and leave between steps.

Read in this order: request.py, engine.py, prefill.py with prefix_cache.py, pipeline.py, speculation.py,
exact_scores.py, then pool.py and handle.py, which lend engines to callers.
"""
