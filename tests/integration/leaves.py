"""A module that exits the program on import, like a script that parses its arguments."""

import sys

sys.exit(3)
