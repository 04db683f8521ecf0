"""The program: `glassgpt` and `python -m glassgpt`.

Ctrl-C ends it at any moment without a traceback: while modules are still being imported there is nothing to
clean up, and once `main` has returned, nothing any more. In between `main` has handlers of its own.
"""

import os
import signal
import sys

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored: started with &, nohup
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))

from glassgpt.cli import main

if __name__ == "__main__":
    sys.exit(main())
