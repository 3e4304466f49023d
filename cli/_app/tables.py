"""Tables, facts and prose for terminals, pipes and scripts, from text that users control.

rich is imported only where text is not ASCII: importing it and its tables would slow down the start and the output.
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

from slurm_asrpt.errors import printable
from slurm_asrpt.slurm.notation import fold_gpus
from slurm_asrpt.text import UNKNOWN

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
Line = tuple[tuple[str, str], ...]
"""Pieces of text, each with a style: "", bold, dim, green, yellow or red."""

GAP = "  "
SEPARATOR = "|"
DAYS = {0: "", 1: "Tomorr ", -1: "Ystday "}
DAYS_BY_NAME = 6  # a week away, a weekday would be ambiguous


@dataclass(frozen=True)
class Column:
    """One column. cap: maximum width on a terminal, 0 for none. right: align right. styles: one per cell."""

    title: str
    cells: Sequence[str]
    right: bool = False
    cap: int = 0
    styles: Sequence[str] = ()

    @cached_property
    def natural(self) -> int:
        """Width of the widest entry, in terminal cells."""
        return max(map(_width, (self.title, *self.cells)))

    @property
    def width(self) -> int:
        """The natural width, limited to the cap."""
        return min(self.natural, self.cap) if self.cap else self.natural


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _cut(text: str, width: int) -> str:
    """``text`` cut to ``width`` cells, the last one an ellipsis."""
    if text.isascii():
        return text[: width - 1] + "…"
    from rich.cells import set_cell_size

    return set_cell_size(text, width - 1) + "…"


def safe(text: str) -> str:
    """``text`` on one line, without control characters; ``-`` if empty."""
    return printable(text) or UNKNOWN


def safe_cells(texts: Sequence[str]) -> list[str]:
    """``safe`` for many texts; fast when none needs escaping, which is the usual case."""
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
    """``15:04-16:30``; a common day or time is written once; ``?`` if there is no upper bound."""
    begin, end = slurm_clock(earliest, now), "?" if latest is None else slurm_clock(latest, now)
    if begin == end:
        return begin
    day, _, _ = begin.rpartition(" ")
    return f"{begin}-{end.removeprefix(f'{day} ')}"


def fold_nodes(nodes: Mapping[str, int]) -> str:
    """GPUs per node, folded: ``n1:4 n[2-3]:1``."""
    return safe(fold_gpus(nodes)) or UNKNOWN


def print_parsable(columns: Sequence[Column], header: bool) -> None:
    """Print one line per row, fields separated by ``|``; a ``|`` in a field becomes ``\\x7c``."""
    text = "\n".join("\0".join(row) for row in _rows(columns, header))  # no cell holds \0: see safe()
    if text:
        print(text.replace(SEPARATOR, r"\x7c").replace("\0", SEPARATOR))


def terminal_width() -> int | None:
    """Width of the terminal on standard output; None if it is not a terminal, so that nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def show_table(columns: Sequence[Column]) -> None:
    """Print a table with titles on standard output; on a narrow terminal the last column is cut."""
    print_table(columns, True, terminal_width())


def print_table(columns: Sequence[Column], header: bool, width: int | None) -> None:
    """Print aligned columns, one line per row. width: of the terminal; None: cut nothing."""
    print_lines(table_lines(columns, header, width))


def print_lines(lines: Iterable[Line]) -> None:
    """Print the lines, with colors on a terminal unless NO_COLOR is set."""
    colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    for line in lines:
        print("".join([_styled(text, style) if style and colored else text for text, style in line]))


def _styled(text: str, style: str) -> str:
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"


def table_lines(columns: Sequence[Column], header: bool, width: int | None) -> list[Line]:
    """Aligned columns as lines of at most ``width`` cells; None: cut nothing."""
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
    """The style of each cell, row by row."""
    titles = [("bold",) * len(columns)] if header else []
    return titles + list(zip(*(c.styles or [""] * len(c.cells) for c in columns), strict=True))


def _cell(column: Column, text: str, width: int) -> str:
    has = len(text) if text.isascii() else _width(text)
    if has > width:
        return _cut(text, width)
    return " " * (width - has) + text if column.right else text + " " * (width - has)


LABEL = 16


def print_facts(lines: Iterable[tuple[str, str]], label_width: int = LABEL) -> None:
    """Print a fact per line, after its label; on a terminal, long facts wrap."""
    width = terminal_width()
    for label, text in lines:
        parts = textwrap.wrap(text, max(width - label_width - 1, 20), break_on_hyphens=False) if width else [text]
        for number, part in enumerate(parts or [""]):
            print(f"{'' if number else label:<{label_width}} {part}")


def print_prose(text: str, indent: int = 0) -> None:
    """Print sentences: wrapped on a terminal, all lines but the first indented; on one line in a pipe."""
    width = terminal_width()
    lines = textwrap.wrap(printable(text), max(width - indent, 20), break_on_hyphens=False) if width else []
    print(f"\n{' ' * indent}".join(lines) or printable(text))


def clip(text: str, width: int) -> str:
    """``text`` in at most ``width`` cells, cut with an ellipsis."""
    return text if _width(text) <= width else _cut(text, width)
