"""Fine-tuning on a text or for a task.

Read in this order: settings.py (what fits the time and the memory), state.py, run.py (a run on text), task.py
(a run for a task), then tune.py, which is `glassgpt.tune`.
"""
