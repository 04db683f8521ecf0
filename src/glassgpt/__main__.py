"""The program: `glassgpt` and `python -m glassgpt`.

Ctrl-C ends it at any moment without a traceback. While modules are being imported, and once `main` has
returned, there is nothing to clean up; in between `main` has handlers of its own.
"""

import os
import signal
import sys

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise it is ignored: nohup, &
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))

from glassgpt.cli import main

if __name__ == "__main__":
    sys.exit(main())
