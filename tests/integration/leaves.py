"""A module that ends the program where it is imported, as a script may that reads its arguments."""

import sys

sys.exit(3)
