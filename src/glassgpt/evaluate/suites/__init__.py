"""Suites of tasks. Read eval_task.py, then the tasks: lambada.py, choice.py, cbt.py, perplexity.py with
detokenize.py; datasets.py (their files), suites.py (which suite has which tasks), run.py."""
