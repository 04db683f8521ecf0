"""`python -m glassgpt` is the command `glassgpt`."""

import sys

from glassgpt.cli import main

if __name__ == "__main__":
    sys.exit(main())
