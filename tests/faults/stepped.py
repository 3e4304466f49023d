"""asrptd with a clock that can be stepped: ``python -m tests.faults.stepped FILE``, which holds seconds to add.

Only time.time of Python is shifted: that of asrptd, not of Slurm, of its commands, or of the machine. libfaketime
would shift the clocks that waits go by, too, and CPython's subprocess module then fails (EINVAL).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from slurm_asrpt_cli.asrptd import main

_real = time.time


def shift(offset: Path) -> None:
    """From now on time.time() is so many seconds off as stand in the file, whenever it is asked."""

    def shifted() -> float:
        return _real() + float(offset.read_text(encoding="ascii") or 0)

    time.time = shifted


if __name__ == "__main__":
    shift(Path(sys.argv.pop(1)))
    main()
