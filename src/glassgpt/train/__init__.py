"""text -> weights. In reading order: data.py (what is shown), optim.py (how weights move), loop.py, run.py."""
