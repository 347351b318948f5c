"""`python -m asyncdispatch`."""

import sys

from asyncdispatch.cli import main

if __name__ == "__main__":
    sys.exit(main())
