"""text -> weights. Data: prepare.py, shards.py, loader.py. Learning: settings, loss, optim, loop, run."""
