"""Tables for terminals, pipes and scripts, from text that users control.

ClusterShell and rich are imported where they are needed: what prints a few lines starts in less time without.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property

from slurm_asrpt.core.durations import UNKNOWN
from slurm_asrpt.errors import printable
from slurm_asrpt.slurm.nodelist import fold_gpus

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
Line = tuple[tuple[str, str], ...]
"""Pieces of text, each with the name of a style: "", bold, dim, green, yellow, red."""

GAP = "  "
SEPARATOR = "|"
DAYS = {0: "", 1: "Tomorr ", -1: "Ystday "}
DAYS_BY_NAME = 6  # beyond, the same name would be another day


@dataclass(frozen=True)
class Column:
    """One column. cap: most characters on a terminal, 0 for no limit. right: numbers align right.

    style: of all its cells; styles: of each.
    """

    title: str
    cells: Sequence[str]
    right: bool = False
    cap: int = 0
    style: str = ""
    styles: Sequence[str] = ()

    @cached_property
    def natural(self) -> int:
        """Terminal cells of the widest entry."""
        return max(map(_width, (self.title, *self.cells)))

    @property
    def width(self) -> int:
        """The same within the cap."""
        return min(self.natural, self.cap) if self.cap else self.natural


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _cut(text: str, width: int) -> str:
    """``text`` in ``width`` cells, the last one an ellipsis."""
    if text.isascii():
        return text[: width - 1] + "…"
    from rich.cells import set_cell_size

    return set_cell_size(text, width - 1) + "…"


def safe(text: str) -> str:
    """``text`` on one line with nothing that could steer a terminal; ``-`` for none."""
    return printable(text) or UNKNOWN


def safe_cells(texts: Sequence[str]) -> list[str]:
    """The same of many: hardly ever is anything to be escaped, and that is told of all at once."""
    if "".join(texts).isprintable():
        return [text or UNKNOWN for text in texts]
    return [safe(text) for text in texts]


def slurm_clock(seconds: float, now: float) -> str:
    """A time of day as Slurm writes it with SLURM_TIME_FORMAT=relative: 15:04, ``Tomorr 15:04``, ``Mon 15:04``."""
    then = datetime.fromtimestamp(seconds)
    days = (then.date() - date.fromtimestamp(now)).days
    if abs(days) > DAYS_BY_NAME:
        return f"{then:%-d %b %H:%M}"
    clock = f"{then.hour:02d}:{then.minute:02d}"
    return f"{DAYS[days]}{clock}" if days in DAYS else f"{then:%a} {clock}"


def clock_interval(earliest: float, latest: float | None, now: float) -> str:
    """``15:04-16:30``; the day is said once where both are on it, and ``?`` is later than anybody can tell."""
    begin, end = slurm_clock(earliest, now), "?" if latest is None else slurm_clock(latest, now)
    day, _, _ = begin.rpartition(" ")
    return f"{begin}-{end.removeprefix(f'{day} ')}"


def fold_nodes(nodes: Mapping[str, int]) -> str:
    """GPUs per node, equal ones folded: ``n1:4 n[2-3]:1``."""
    return safe(fold_gpus(nodes)) or UNKNOWN


def print_parsable(columns: Sequence[Column], header: bool) -> None:
    """One line per row, fields separated by ``|``; a ``|`` inside a field becomes ``\\x7c``."""
    text = "\n".join("\0".join(row) for row in _rows(columns, header))  # no cell holds \0: see safe()
    if text:
        print(text.replace(SEPARATOR, r"\x7c").replace("\0", SEPARATOR))


def terminal_width() -> int | None:
    """Of standard output; None where that is no terminal, and nothing has to be cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def show_table(columns: Sequence[Column]) -> None:
    """Print a table with titles on standard output; on a narrow terminal the last column is cut."""
    print_table(columns, True, terminal_width())


def print_table(columns: Sequence[Column], header: bool, width: int | None) -> None:
    """Aligned columns, each row on one line. width: of the terminal; None for a pipe, where nothing is cut."""
    print_lines(table_lines(columns, header, width))


def print_lines(lines: Iterable[Line]) -> None:
    """Print them, in colour where somebody looks and wants any (rich would take longer to import than all else)."""
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    for line in lines:
        print("".join([_styled(text, style) if style and coloured else text for text, style in line]))


def _styled(text: str, style: str) -> str:
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"


def table_lines(columns: Sequence[Column], header: bool, width: int | None) -> list[Line]:
    """Aligned columns, as lines of at most ``width`` cells; None: nothing is cut."""
    widths = [column.width if width else column.natural for column in columns]
    if width:
        before = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
        widths[-1] = max(min(widths[-1], width - before), 1)
    return [
        _line([_cell(*parts) for parts in zip(columns, row, widths, strict=True)], styles)
        for row, styles in zip(_rows(columns, header), _styles(columns, header), strict=True)
    ]


def _line(cells: Sequence[str], styles: Sequence[str]) -> Line:
    last = cells[-1].rstrip()
    pieces = [(text + GAP, style) for text, style in zip(cells[:-1], styles, strict=False)]
    if not last and pieces:
        text, style = pieces.pop()
        return (*pieces, (text.rstrip(), style))
    return (*pieces, (last, styles[-1]))


def _rows(columns: Sequence[Column], header: bool) -> list[tuple[str, ...]]:
    titles = [tuple(column.title for column in columns)] if header else []
    return titles + list(zip(*(column.cells for column in columns), strict=True))


def _styles(columns: Sequence[Column], header: bool) -> list[tuple[str, ...]]:
    """The styles of each cell, row by row."""
    titles = [("bold",) * len(columns)] if header else []
    return titles + list(zip(*(c.styles or [c.style] * len(c.cells) for c in columns), strict=True))


def _cell(column: Column, text: str, width: int) -> str:
    has = len(text) if text.isascii() else _width(text)
    if has > width:
        return _cut(text, width)
    return " " * (width - has) + text if column.right else text + " " * (width - has)


LABEL = 17


def print_facts(lines: Iterable[tuple[str, str]]) -> None:
    """A fact a line, with what it is about; on a terminal long ones go on below, in a pipe each stays one line."""
    width = terminal_width()
    for label, text in lines:
        parts = textwrap.wrap(text, max(width - LABEL, 20), break_on_hyphens=False) if width else [text]
        for number, part in enumerate(parts or [""]):
            print(f"{'' if number else label:<{LABEL - 1}} {part}")


def print_prose(text: str, indent: int = 0) -> None:
    """Sentences: on a terminal in lines of whole words, all but the first indented; in a pipe on one line."""
    width = terminal_width()
    lines = textwrap.wrap(printable(text), max(width - indent, 20), break_on_hyphens=False) if width else []
    print(f"\n{' ' * indent}".join(lines) or printable(text))


def clip(text: str, width: int) -> str:
    """``text`` in at most ``width`` cells, with an ellipsis where something is cut."""
    return text if _width(text) <= width else _cut(text, width)
