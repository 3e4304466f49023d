"""Which examples the property tests look at: the same ones in each run, unless asked for others.

A failure that comes and goes stops everybody's work and tells the one who changed something nothing about the change.
`make test-random` looks for new ones: its failures print the example, which then becomes a test of its own.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, database=None, deadline=None)
settings.register_profile("random", print_blob=True, deadline=None)
settings.load_profile("fixed")

os.umask(0o022)  # what is made with another could be refused as somebody else's
