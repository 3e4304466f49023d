"""How asrpt-profile prints profiles: amounts, durations, charts, heads; and where profiles are."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from slurm_asrpt_cli._app.tables import GAP, Column, print_prose, safe, show_table, terminal_width

from slurm_asrpt.errors import InputError
from slurm_asrpt.files import replace_file
from slurm_asrpt.profile.header import Head
from slurm_asrpt.text import can_show

ProfileArgument = Annotated[str, typer.Argument(metavar="PROFILE", help="A file, or a name from asrpt-profile list.")]

BAR = "█"
BAR_CELLS, LEAST_CELLS = 30, 12
_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")


def folders(config: Path | None) -> list[Path]:
    """The directories of this site's profiles."""
    from slurm_asrpt.config.settings import load_settings  # needs pydantic, which the node that measures may lack

    return load_settings(config).paths.profiles


def amount(count: float) -> str:
    """Bytes in three digits: 5.37 MB; ``-`` for none."""
    if not count:
        return "-"
    unit = 0
    while count >= 999.5 and unit < len(_BYTES) - 1:
        count, unit = count / 1000, unit + 1
    return f"{count:.3g} {_BYTES[unit]}"


def seconds(value: float) -> str:
    """A duration in three digits: 12.4 ms; ``-`` for none."""
    if not value:
        return "-"
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if value * factor >= 0.9995:
            return f"{value * factor:.3g} {unit}" if value * factor < 999.5 else f"{value * factor:.0f} {unit}"
    return f"{value * 1e9:.3g} ns"


def fitting(columns: Sequence[Column], spare: Sequence[str], least: int) -> list[Column]:
    """The columns without the first ones of ``spare``, until a terminal has ``least`` cells to the right of them."""
    left, found = list(spare), list(columns)
    while left and room(found) < least:
        title = left.pop(0)
        found = [column for column in found if column.title != title]
    return found


def room(columns: Sequence[Column]) -> int:
    """Cells to the right of the columns on a terminal; unlimited in a pipe."""
    width = terminal_width()
    return (width or sys.maxsize) - sum(column.width + len(GAP) for column in columns)


def show_chart(
    columns: Sequence[Column], spare: Sequence[str], labels: Sequence[str], amounts: Sequence[float]
) -> None:
    """A table with a bar per row, the longest filling the room. spare: columns that may go, as in ``fitting``."""
    label = max(map(len, labels))
    texts = [f"{text:>{label}} " if label else "" for text in labels]
    shown = fitting(columns, spare, label + LEAST_CELLS)
    cells, most = max(min(BAR_CELLS, room(shown) - len(texts[0])), 1), max(amounts)
    sign = BAR if can_show(BAR, sys.stdout.encoding) else "#"
    bars = [text + sign * round(cells * amount / most) for text, amount in zip(texts, amounts, strict=True)]
    show_table([*shown, Column("TIME", bars)])


def print_head(head: Head, more: Mapping[str, str]) -> None:
    """Print the name and origin of a profile, then ``more``."""
    rows = {"model": head.model, "batch": str(head.batch), "device": head.device}
    rows |= {"date": head.date.isoformat()} if head.date else {}
    rows |= {"software": ", ".join(f"{name} {version}" for name, version in head.software.items())}
    rows |= {head.provenance.kind: head.provenance.origin, "formula": head.provenance.formula, **more}
    print(f"{safe(head.name)}:")
    for key, value in rows.items():
        if value:
            print_prose(f"  {key + ':':<13}{safe(value)}", indent=15)


def write_text(path: Path | None, text: str) -> None:
    """Write to a file, or to standard output. Raises InputError."""
    if path is None:
        print(text, end="")
        return
    try:
        replace_file(path, text.encode(), mode=None)
    except OSError as error:
        raise InputError(f"{path}: cannot write ({error.strerror}); name another file") from None
