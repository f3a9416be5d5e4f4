"""`python -m cbnn_keras`, the same as the command `cbnn`."""

import sys

from cbnn_keras.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
