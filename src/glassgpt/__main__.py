"""The program: `glassgpt` and `python -m glassgpt`.

Ctrl-C ends it at any moment without a traceback. While modules are being imported, and once `main` has
returned, there is nothing to clean up; in between `main` has handlers of its own. So the process ends there
at once: taking all objects apart one by one, as Python does at its end, takes 20 ms.
"""

import os
import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise it is ignored: nohup, &
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))

import atexit
import contextlib
import sys
import threading

from glassgpt.cli import main


def run() -> None:
    """`main`, and the end of the process, at once where nobody else has a say in it."""
    code = main()
    if "torch" in sys.modules or "multiprocessing" in sys.modules or threading.active_count() > 1:
        sys.exit(code)
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()  # `main` has flushed the other
    os._exit(code)


if __name__ == "__main__":
    run()
