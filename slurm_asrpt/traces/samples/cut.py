"""Cuts consecutive jobs out of a trace: ``python -m slurm_asrpt.traces.samples.cut SOURCE FIRST COUNT TARGET``.

Rows are copied as they are, under the source's line of titles; SOURCE may be gzipped. README.md has the command that
made the sample of this directory.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path


def cut(lines: list[str], first: int, count: int) -> list[str]:
    """The titles and the rows ``first`` .. ``first + count - 1``, row 0 being the one after the titles.

    Raises ValueError if there are fewer rows.
    """
    rows = lines[1 + first : 1 + first + count]
    if first < 0 or len(rows) < count:
        raise ValueError(f"the source has {len(lines) - 1} rows, not {first + count}")
    return [lines[0], *rows]


def main(source: str, first: str, count: str, target: str) -> None:
    """Write rows ``first`` .. of ``source`` to ``target``."""
    raw = Path(source).read_bytes()
    text = (gzip.decompress(raw) if source.endswith(".gz") else raw).decode("utf-8")
    Path(target).write_text("".join(cut(text.splitlines(keepends=True), int(first), int(count))), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
