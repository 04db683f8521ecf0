"""Fuzzers: random and hostile command lines, model folders, run folders, text sources and requests.

`sandbox.py` makes the folder each case runs in, `mutate.py` damages values and files, `cases.py` draws the
cases, `runner.py` runs one in a forked process and judges how it ended, `__main__.py` runs them for a while:

    python -m tests.fuzz --minutes 30

`test_fuzz.py` runs a few of each kind in the suite.
"""
