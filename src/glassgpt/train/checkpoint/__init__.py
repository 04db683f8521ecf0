"""Saving and resuming a run.

Read in this order: run_folder.py (what is where), save.py with asynchronous.py and sharded.py, load.py, and
log.py. The files of a checkpoint are described in weights/run_checkpoint.py.
"""
