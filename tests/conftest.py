"""Property tests try the same examples in each run, so that a failure is caused by the change and not by chance.

`make test-random` tries new examples, and five times as many. A failure prints its example, which then becomes a
separate test.
"""

from __future__ import annotations

import gc
import os

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, database=None, deadline=None, max_examples=20)
settings.register_profile("random", print_blob=True, deadline=None)
settings.load_profile("fixed")

os.umask(0o022)  # with another umask, files could be refused because others can write them

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads keep a CPU busy for a while in each process of a test
gc.set_threshold(50_000, 20, 20)  # with the defaults, all that thousands of tests have imported is scanned all the time
