"""Tables for terminals, pipes and scripts, from text that users control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console
from rich.text import Text

from slurm_asrpt.errors import printable
from slurm_asrpt.slurm.nodelist import fold_gpus

GAP = "  "
SEPARATOR = "|"
UNKNOWN = "-"
DAYS_BY_NAME = 6  # beyond, the same name would be another day


@dataclass(frozen=True)
class Column:
    """One column. cap: most characters on a terminal, 0 for no limit. right: numbers align right."""

    title: str
    cells: Sequence[str]
    right: bool = False
    cap: int = 0
    style: str = ""

    @property
    def width(self) -> int:
        """Terminal cells of the widest entry, within the cap."""
        natural = max(Text(text).cell_len for text in (self.title, *self.cells))
        return min(natural, self.cap) if self.cap else natural


def safe(text: str) -> str:
    """``text`` on one line with nothing that could steer a terminal; ``-`` for none."""
    return printable(text) or UNKNOWN


def slurm_time(seconds: float | None) -> str:
    """A duration as Slurm writes it: [D-]HH:MM:SS; ``-`` where not known."""
    if seconds is None or not 0 <= seconds < 1e12:
        return UNKNOWN
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}-" * bool(days) + f"{hour:02d}:{minute:02d}:{second:02d}"


def slurm_clock(seconds: float, now: float) -> str:
    """A time of day as Slurm writes it with SLURM_TIME_FORMAT=relative: 15:04, ``Tomorr 15:04``, ``Mon 15:04``."""
    then, today = datetime.fromtimestamp(seconds), datetime.fromtimestamp(now).date()
    days = (then.date() - today).days
    if abs(days) > DAYS_BY_NAME:
        return f"{then:%-d %b %H:%M}"
    return {0: "", 1: "Tomorr ", -1: "Ystday "}.get(days, f"{then:%a} ") + f"{then:%H:%M}"


def clock_interval(earliest: float, latest: float | None, now: float) -> str:
    """``15:04-16:30``; the day is said once where both are on it, and ``?`` is later than anybody can tell."""
    begin, end = slurm_clock(earliest, now), "?" if latest is None else slurm_clock(latest, now)
    day, _, _ = begin.rpartition(" ")
    return f"{begin}-{end.removeprefix(f'{day} ')}"


def fold_nodes(nodes: Mapping[str, int]) -> str:
    """GPUs per node, equal ones folded: ``n1:4 n[2-3]:1``."""
    return safe(fold_gpus(nodes))


def print_parsable(columns: Sequence[Column], header: bool) -> None:
    """One line per row, fields separated by ``|``; a ``|`` inside a field becomes ``\\x7c``."""
    for row in _rows(columns, header):
        print(SEPARATOR.join(cell.replace(SEPARATOR, r"\x7c") for cell in row))


def print_table(columns: Sequence[Column], header: bool, console: Console, width: int | None) -> None:
    """Aligned columns, each row on one line. width: of the terminal; None for a pipe, where nothing is cut."""
    widths = [column.width if width else _uncapped(column) for column in columns]
    if width:
        before = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
        widths[-1] = max(min(widths[-1], width - before), 1)
    for number, row in enumerate(_rows(columns, header)):
        style = "bold" if header and number == 0 else ""
        line = Text(GAP).join(_cell(*parts, style) for parts in zip(columns, row, widths, strict=True))
        line.rstrip()
        console.print(line, soft_wrap=True)


def _rows(columns: Sequence[Column], header: bool) -> list[tuple[str, ...]]:
    titles = [tuple(column.title for column in columns)] if header else []
    return titles + list(zip(*(column.cells for column in columns), strict=True))


def _uncapped(column: Column) -> int:
    return max(Text(text).cell_len for text in (column.title, *column.cells))


def _cell(column: Column, text: str, width: int, style: str) -> Text:
    # A Text, never a string with markup: "[red]" in a job's name is a name.
    cell = Text(text, style=style or column.style)
    cell.truncate(width, overflow="ellipsis")
    missing = width - cell.cell_len
    if column.right:
        cell.pad_left(missing)
    else:
        cell.pad_right(missing)
    return cell
