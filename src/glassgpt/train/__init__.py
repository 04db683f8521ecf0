"""text -> weights. In reading order: data.py, optim.py (how weights move), loop.py, run.py (its folder)."""
