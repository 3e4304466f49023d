"""Files of rows, plain or gzipped: read in chunks, within limits; every row is either returned or counted."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Protocol

from slurm_asrpt.errors import InputError, printable
from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.traces.trace import numbers

LARGEST_BYTES = 8 << 30
"""Limit of one file, uncompressed; the largest table of a known trace has about 2.5 GB."""
MAX_PACKED = 300
"""Limit of the compression ratio; real traces have 3 to 30."""
SMALL_BYTES = 16 << 20
"""Below this size the compression ratio is not checked: a short sample may be repetitive."""
LONGEST_LINE = 1 << 20
HEAD_LINES = 200
_CHUNK = 50_000
_BLOCK = 16 << 20
_PLAIN_NAMES = ("jobs", "cluster_log", "cluster_full_log", "cluster_job_log")

WRONG_FIELDS = "wrong number of fields"
SEVERAL_LINES = "quotes that span lines"
UNREADABLE = "unreadable line"


@dataclass(frozen=True)
class TraceFile:
    """A file or directory, and its first lines (none for a directory)."""

    path: Path
    head: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The file's name without suffixes; the directory's name if the file's is generic."""
        plain = re.sub(r"(?<=.)\.(csv|swf|txt|json|log)$", "", self.path.name.removesuffix(".gz"))
        folder = self.path.absolute().parent.name
        return printable(folder if folder and plain in _PLAIN_NAMES else plain)

    @property
    def titles(self) -> tuple[str, ...]:
        """The fields of the first line, in lower case."""
        return titles_of(self.head[0]) if self.head else ()

    def has(self, *titles: str) -> bool:
        """Whether the first line has all these fields."""
        return set(titles) <= set(self.titles)


@dataclass(frozen=True)
class Rows:
    """What was read from a file: the requested columns, and the number of rows that could not be split into fields,
    by reason."""

    frame: pd.DataFrame
    faults: Mapping[str, int]


def open_trace_file(path: Path) -> TraceFile:
    """Raises InputError if the path is neither a readable file nor a directory."""
    try:
        if path.is_dir():
            return TraceFile(path)
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: not a regular file; write the trace to a file first")
    except (OSError, ValueError) as error:  # a name that is too long, or a null byte
        raise InputError(f"{path}: cannot be read ({_reason(error)}); name the file") from None
    with lines(path) as text:
        return TraceFile(path, tuple(_head(text)))


def _head(text: Iterator[str]) -> Iterator[str]:
    """As many first lines as are needed to recognize the format."""
    size = 0
    for line in islice(text, HEAD_LINES):
        yield line.rstrip("\n")
        size += len(line)
        if size > LONGEST_LINE:
            return


@contextmanager
def lines(path: Path, newline: str | None = None) -> Iterator[Iterator[str]]:
    """The lines of a text file. Bytes that are not UTF-8 become replacement characters.

    newline: as for ``open``; "" if line breaks inside quotes matter. Raises InputError if the file cannot be read,
    or exceeds a limit of this module.
    """
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream = gzip.GzipFile(fileobj=raw) if packed else raw
            limited = io.BufferedReader(_Limited(path, stream, packed), 1 << 16)
            yield iter(io.TextIOWrapper(limited, encoding="utf-8-sig", errors="replace", newline=newline))
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({_reason(error)}); name the file") from None


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or " ".join(str(error).split()) or type(error).__name__


class _Limited(io.RawIOBase):
    """The bytes of a file, up to the limits of size and line length."""

    def __init__(self, path: Path, stream: gzip.GzipFile | io.BufferedReader, packed: bool) -> None:
        self.path, self.stream = path, stream
        size = path.stat().st_size
        self.most = min(LARGEST_BYTES, max(SMALL_BYTES, MAX_PACKED * size)) if packed else LARGEST_BYTES
        self.count = self.line = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self.stream.read(len(buffer))
        self.count += len(data)
        last = data.rfind(b"\n")
        self.line = self.line + len(data) if last < 0 else len(data) - last - 1
        if self.count > self.most:
            raise InputError(f"{self.path}: unpacks to more than {self.most >> 20} MiB; is this a trace?")
        if self.line > LONGEST_LINE:
            raise InputError(f"{self.path}: a line of more than {LONGEST_LINE} bytes; is this a trace?")
        buffer[: len(data)] = data
        return len(data)


def titles_of(line: str) -> tuple[str, ...]:
    """The fields of a header line, stripped and in lower case."""
    try:
        fields = next(iter(csv.reader([line])), [])
    except csv.Error:
        return ()
    return tuple(field.strip().casefold() for field in fields)


def read_rows(path: Path, text: Sequence[str], number: Sequence[str], titles: Sequence[str] = ()) -> Rows:
    """The columns ``text`` (as objects of str) and ``number`` (as float64, nan if not a number) of a CSV file.

    titles: the columns of a file without a header line. Blank lines do not count as rows. Raises InputError.
    """
    with lines(path) as opened:
        if not titles:
            titles = titles_of(next(opened, ""))
        return read_columns(opened, LineFormat(titles), text, number)


@dataclass(frozen=True)
class LineFormat:
    """How lines are split. quotes: whether quotes hold fields together; tail: whether the last field may contain
    the separator."""

    titles: Sequence[str]
    separator: str = ","
    quotes: bool = True
    tail: bool = False


def read_columns(opened: Iterable[str], layout: LineFormat, text: Sequence[str], number: Sequence[str]) -> Rows:
    """The requested columns of the rows that have as many fields as the header. Raises InputError for a missing
    column."""
    missing = [name for name in (*text, *number) if name not in layout.titles]
    if missing:
        raise InputError(f"no column {', '.join(missing)}; there are: {printable(', '.join(layout.titles))[:200]}")
    gathering = _ColumnReader(layout, text, number)
    rest = iter(opened)
    for block in _blocks(rest):
        if not gathering.quick(block):
            gathering.careful(block, rest)
    return gathering.rows()


def _blocks(opened: Iterable[str]) -> Iterator[list[str]]:
    """The lines in chunks of limited size."""
    block: list[str] = []
    size = 0
    for line in opened:
        block.append(line)
        size += len(line)
        if size >= _BLOCK:
            yield block
            block, size = [], 0
    if block:
        yield block


class _ColumnReader:
    """Collects columns. pandas splits most chunks; chunks that it would split wrongly, or not count, are split here."""

    def __init__(self, layout: LineFormat, text: Sequence[str], number: Sequence[str]) -> None:
        self.layout, self.text, self.number = layout, text, number
        self.places = [layout.titles.index(name) for name in (*text, *number)]
        self.commas = len(layout.titles) - 1
        self.pieces: list[pd.DataFrame] = []
        self.faults: Counter[str] = Counter()

    def rows(self) -> Rows:
        empty = self._piece([])
        return Rows(pd.concat([*self.pieces, empty], ignore_index=True) if self.pieces else empty, self.faults)

    def quick(self, block: list[str]) -> bool:
        """Read the chunk with pandas, if nothing in it needs care. Returns whether it was read."""
        separator, commas = self.layout.separator, self.commas
        whole = "".join(block)
        if whole.count("\n") > len(block):  # pandas would read such a line as two
            return False
        if "\0" in whole or "\r" in whole or (self.layout.quotes and '"' in whole) or len(separator) > 1 or not commas:
            return False
        sound = [line for line in block if line.count(separator) == commas]
        if len(sound) < len(block):
            if self.layout.tail and any(line.count(separator) > commas for line in block):
                return False
            blank = sum(not line.strip("\n") for line in block)
            self.faults[WRONG_FIELDS] += len(block) - len(sound) - blank
            whole = "".join(sound)
        if sound:
            self.pieces.append(self._parsed(whole))
        return True

    def _parsed(self, text: str) -> pd.DataFrame:
        names = dict(zip(self.places, (*self.text, *self.number), strict=True))
        frame = pd.read_csv(
            io.StringIO(text),
            sep=self.layout.separator,
            header=None,
            names=range(self.commas + 1),
            usecols=self.places,
            index_col=False,
            dtype=object,
            quoting=csv.QUOTE_NONE,
            na_filter=False,
            skip_blank_lines=False,
        ).rename(columns=names)
        return frame.assign(**{name: numbers(frame[name]) for name in self.number})[[*self.text, *self.number]]

    def careful(self, block: list[str], rest: Iterator[str]) -> None:
        """Read the chunk row by row, and the rest of the file if a quote may extend beyond the chunk."""
        reader: _Reader
        if self.layout.quotes:
            reader = csv.reader(chain(block, rest), delimiter=self.layout.separator)
        else:
            reader = _Split(iter(block), self.layout.separator, self.commas if self.layout.tail else -1)
        pick = itemgetter(*self.places) if len(self.places) > 1 else lambda row: (row[self.places[0]],)
        rows = map(pick, _valid_rows(reader, self.commas + 1, self.faults))
        while kept := list(islice(rows, _CHUNK)):
            self.pieces.append(self._piece(kept))

    def _piece(self, rows: Sequence[Sequence[str]]) -> pd.DataFrame:
        columns = list(zip(*rows, strict=True)) or [()] * len(self.places)
        frame = {}
        for name, values in zip((*self.text, *self.number), columns, strict=True):
            series = pd.Series(values, dtype=object)
            frame[name] = series if name in self.text else numbers(series)
        return pd.DataFrame(frame)


def _valid_rows(reader: _Reader, width: int, faults: Counter[str]) -> Iterator[list[str]]:
    """Rows of ``width`` fields on one line each; all others are counted by the lines that they take."""
    before = reader.line_num
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error:
            row = None
        span, before = reader.line_num - before, reader.line_num
        if row is None:
            faults[UNREADABLE] += span
        elif span > 1:
            faults[SEVERAL_LINES] += span
        elif len(row) == width:
            yield row
        elif row:
            faults[WRONG_FIELDS] += 1


class _Reader(Protocol):
    """The interface of ``csv.reader``."""

    line_num: int

    def __next__(self) -> list[str]: ...


class _Split:
    """As ``csv.reader``, for lines without quotes. most: number of separators to split at, -1 for all."""

    def __init__(self, opened: Iterator[str], separator: str, most: int) -> None:
        self.opened, self.separator, self.most = opened, separator, most
        self.line_num = 0

    def __next__(self) -> list[str]:
        line = next(self.opened).rstrip("\r\n")
        self.line_num += 1
        return line.split(self.separator, self.most) if line else []
