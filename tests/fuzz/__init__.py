"""Fuzzers: random and hostile command lines, model folders, run folders, text files and requests.

`sandbox.py` makes the folder each case runs in, `mutate.py` damages values and files, `cases.py` draws the
cases, `runner.py` runs one in a forked process and classifies the outcome, `__main__.py` runs many:

    python -m tests.fuzz --minutes 30

`test_fuzz.py` runs a few of each kind in the suite.
"""
