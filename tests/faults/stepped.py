"""asrptd with a clock that can be stepped: ``python -m tests.faults.stepped FILE``; FILE has the seconds to add.

Only time.time of Python is shifted, in asrptd and not in Slurm, its commands, or the machine. libfaketime would also
shift the clocks that waits use, and CPython's subprocess module then fails (EINVAL).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from slurm_asrpt_cli.asrptd import main

_real = time.time


def shift(offset: Path) -> None:
    """Shift time.time() by the seconds in the file, which is read at each call."""

    def shifted() -> float:
        return _real() + float(offset.read_text(encoding="ascii") or 0)

    time.time = shifted


if __name__ == "__main__":
    shift(Path(sys.argv.pop(1)))
    main()
