"""Fine-tuning on a text or for a task.

Read in this order: settings.py (what fits the time and the memory), text.py and task.py (the data of either
kind of run), state.py, run.py (a run), then tune.py, which is `glassgpt.tune`.
"""
