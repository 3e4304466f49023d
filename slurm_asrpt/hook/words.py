"""The words of a job script that say which job it is, and those that are set aside: half of the hook's Lua, in Python.

The rules are those of ``[group]``, in half a page in docs/decisions/0008. What counts is written word by word; numbers
of known hyper-parameters become features; launchers are seen through. Bytes in, bytes out: a script may hold anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from slurm_asrpt.hook.features import BOUND, spell
from slurm_asrpt.hook.wordrules import FIRST, IGNORED, SILENT, START, Launcher, Rules, option_key
from slurm_asrpt.profile.sizes import SIZE

PART_BYTES = 2048
"""What counts of a script: so many bytes of its lines that count from the front, and as many from the back."""

LONG, LONG_HEAD_BYTES, LONG_TAIL_BYTES = 16384, 256, 512
"""What counts of a script over LONG bytes; more from the back, where most start what they are for."""

LINE_COST = 16
"""What a line takes of PART_BYTES beside its own bytes: many short lines cost the hook as much as a few long ones."""

PART_LINES = 500
"""Lines looked at from either end, comments included."""

HEAD_BYTES, TAIL_BYTES = 32768, 8192
"""Bytes looked at from either end."""

_OPERATORS = frozenset(b"; ;; && || | |& & ( ) { } ! if then elif else while until do".split())
_NUMBER = re.compile(rb"-?[0-9.]+([eE][-+]?[0-9]+)?")
_REDIRECT = re.compile(rb"[0-9&]?>")
_BARE_REDIRECT = re.compile(rb"[0-9&]?>[>|]?")
_BLANK = b" \t\n\v\f\r"
_DATE = re.compile(rb"20[0-9][0-9][-_/.]?[01][0-9][-_/.]?[0-3][0-9]")
_CLOCK = re.compile(rb"@[-_T]?[0-2][0-9][-_:.h]?[0-5][0-9][-_:.m]?[0-5]?[0-9]?")
_EPOCH = re.compile(rb"1[5-9][0-9]{8}")


def head_lines(script: bytes, left: int, rules: Rules) -> tuple[list[bytes], int]:
    """The lines that count from the front, and where in the script that reading ended."""
    text, lines, pos, walked = script[:HEAD_BYTES], list[bytes](), 0, 0
    while left > 0 and walked < PART_LINES and pos <= len(text):
        stop = text.find(b"\n", pos) % (len(text) + 1)
        line = text[pos:stop].lstrip(_BLANK)
        if line:
            walked += 1
            line = line[:left].rstrip(_BLANK) if _counts(line, rules) else b""
            left -= len(line) + LINE_COST if line else 0
            lines += [line] if line else []
        pos = stop + 1
    return lines, min(pos, len(text))


def tail_lines(script: bytes, head_end: int, left: int, rules: Rules) -> list[bytes]:
    """The lines that count from the back, no further than ``head_end``."""
    start = max(head_end, len(script) - TAIL_BYTES)
    pieces = script[start:].split(b"\n")
    lines, walked = list[bytes](), 0
    for piece in reversed(pieces if start == head_end else pieces[1:]):
        line = piece.strip(_BLANK)
        if line and left > 0 and walked < PART_LINES:
            walked += 1
            line = line[-left:] if _counts(line, rules) else b""
            left -= len(line) + LINE_COST if line else 0
            lines += [line] if line else []
    return lines[::-1]


def _counts(line: bytes, rules: Rules) -> bool:
    comment = rules.settings.strip_comments and line.startswith(b"#")
    return not comment and not any(text in line for text in rules.ignore_lines)


def fold_dates(text: bytes) -> bytes:
    """``text`` with an @ for each date and each count of seconds since 1970."""
    return _EPOCH.sub(b"@", _CLOCK.sub(b"@", _DATE.sub(b"@", text)))


def number_in(word: bytes) -> float | None:
    """The number that a word is, quoted or not, to ten digits."""
    text = word[1:] if word[:1] in (b'"', b"'") else word
    text = text[:-1] if text[-1:] in (b'"', b"'") else text
    if len(word) > 32 or not _NUMBER.fullmatch(text):
        return None
    try:
        value = float(text)
        value = float(spell(value)) + 0.0 if abs(value) < BOUND else BOUND  # + 0.0: no minus zero
    except ValueError:  # 1.2.3
        return None
    return value if abs(value) < BOUND else None


def _open_quote(value: bytes) -> bytes:
    """The quote that ``value`` opens and does not close, b"" for none."""
    quote = value[:1]
    closed = len(value) > 1 and value[-1:] == quote
    return quote if quote in (b'"', b"'") and not closed else b""


class Reader:
    """Takes a script's lines and arguments word by word; ``out`` is what counts.

    note: told of each word that is set aside, with the rule; for those who explain a group.
    """

    def __init__(self, rules: Rules, note: Callable[[str, bytes], None] = lambda rule, word: None) -> None:
        self.rules, self.note = rules, note
        self.out: list[bytes] = []
        self.features: dict[str, float] = {}
        self.launched: list[bytes] = []
        self.plain: list[bytes] = []
        self._mark = 0
        self._action: str | None = None
        self._sized: str | None = None
        self._held = self._first = b""
        self.begin()

    @property
    def programs(self) -> list[bytes]:
        """Names of the programs that launchers start, else of all commands that do something."""
        return list(dict.fromkeys(self.launched or self.plain))

    def line(self, line: bytes) -> None:
        continued = False
        for word in line.split():
            if self.rules.settings.strip_comments and word.startswith(b"#"):
                break
            continued = word == b"\\"
            if not continued:
                self._word(word)
        if not continued:
            self.end()

    def end(self) -> None:
        """The end of a line that counts as such."""
        self.begin()
        if len(self.out) > self._mark:
            self.out.append(b"\n")
            self._mark = len(self.out)

    def begin(self) -> None:
        """A new command is to come."""
        self.out += [word for word in (self._held, self._first) if word]
        self._launcher: Launcher | None = START
        self._skip = self._drop = 0
        self._quote = self._held = self._first = b""
        self._action = self._sized = None
        self._silent = self._through = False

    def arguments(self, words: list[bytes]) -> None:
        """The arguments given to the script: no commands."""
        self._launcher = None
        for word in words:
            self._quote = b""
            self._core(word)
        self.begin()

    def _word(self, word: bytes) -> None:
        if self._quote:
            self.note("value", word)
            self._quote = b"" if word[-1:] == self._quote else self._quote
        elif word in _OPERATORS:
            self.begin()
        else:
            ends = word[-1:] == b";"
            self._core(word[:-1] if ends else word)
            if ends:
                self.begin()

    def _core(self, word: bytes) -> None:
        quote = _open_quote(word)
        word = _unquoted(word)
        if self._silent:
            self.note("ignored command", word)
        elif self._drop > 0:
            self._drop, self._quote = self._drop - 1, quote
            self._size(word)
            self.note("value", word)
        elif self._is_value(word, quote) or self._redirects(word):
            pass
        elif self._first:
            self._second(word)
        elif word.startswith(b"-"):
            self._option(word)
        elif word.find(b"=", 1) > 0:
            self._assignment(word)
        elif self._launcher is None or not word:
            self.out.append(word)
        elif self._skip > 0:
            self._skip -= 1
            self.note("launcher", word)
        else:
            self._command(word)

    def _is_value(self, word: bytes, quote: bytes) -> bool:
        """Whether ``word`` is what the option before it waits for."""
        action, self._action = self._action, None
        if action is None:
            return False
        if action == IGNORED:
            taken = not word.startswith(b"-") or word[1:2].isdigit() or word[1:2] == b"."
            self._quote = quote if taken else b""
            if taken:
                self.note("ignored option", word)
            return taken
        number = number_in(word)
        held, self._held = self._held, b""
        if number is None:
            self.out.append(held)
            return False
        self.note(_rule(action), held + b" " + word)
        self.features[action] = number
        return True

    def _redirects(self, word: bytes) -> bool:
        if not _REDIRECT.match(word):
            return False
        self.note("redirection", word)
        self._drop = 1 if _BARE_REDIRECT.fullmatch(word) else 0
        return True

    def _option(self, word: bytes) -> None:
        name, equals, value = word.partition(b"=")
        key = option_key(name[2:] if name[1:2] == b"-" else name[1:])
        launcher = self._launcher
        if launcher is not None and launcher is not START:
            self._drop = 0 if equals else launcher.values.get(key, 0)
            self._quote = _open_quote(value)
            self._sized = self.rules.sizes.get(key) if equals or self._drop else None
            self.note("launcher", word)
            if equals:
                self._size(value)
            return
        self._launcher = None
        action = self._find(key)
        if action is None:
            self.out.append(word)
        elif equals:
            self._set_aside(action, value, word)
        else:
            self._action = action
            self._held = word if action != IGNORED else b""
            if action == IGNORED:
                self.note("ignored option", word)

    def _size(self, value: bytes) -> None:
        """The value of a launcher's option; of a size that is no number nothing is known."""
        size, self._sized = self._sized, None
        number = number_in(value)
        if size and number is not None:
            self.features[size] = number
        elif size:
            self.features.pop(size, None)

    def _assignment(self, word: bytes) -> None:
        name, _, value = word[1:].partition(b"=")
        action = self._find(option_key(_without_plus(word[:1] + name)))
        if action is None:
            self.out.append(word)
        else:
            self._set_aside(action, value, word)

    def _find(self, key: bytes) -> str | None:
        """What ``key``, or its last part after a dot, stands for."""
        action = self.rules.keys.get(key)
        return self.rules.keys.get(key.rpartition(b".")[2]) if action is None else action

    def _set_aside(self, action: str, value: bytes, word: bytes) -> None:
        if action == IGNORED:
            self._quote = _open_quote(value)
            self.note("ignored option", word)
            return
        number = number_in(value)
        if number is None:
            self.out.append(word)
        else:
            self.note(_rule(action), word)
            self.features[action] = number

    def _command(self, word: bytes) -> None:
        name = word.rpartition(b"/")[2]
        found = self.rules.commands.get(name)
        if found is None and len(name) <= 32:
            found = self.rules.commands.get(name.rstrip(b".0123456789"))
        if isinstance(found, Launcher):
            self._enter(found, word)
        elif found == FIRST:
            self._first = word
        elif found == SILENT:
            self._silent = True
            self.note("ignored command", word)
        else:
            self._program(word, name if found is None else b"")

    def _second(self, word: bytes) -> None:
        """The word after one that may begin a launcher of two words."""
        first, self._first = self._first, b""
        name = first.rpartition(b"/")[2]
        found = self.rules.commands.get(name + b" " + word)
        if isinstance(found, Launcher):
            self._enter(found, first + b" " + word)
        else:
            self._program(first, name)
            self._core(word)

    def _enter(self, launcher: Launcher, word: bytes) -> None:
        self._launcher, self._skip, self._through = launcher, launcher.skip, True
        self.note("launcher", word)

    def _program(self, word: bytes, name: bytes) -> None:
        self._launcher = None
        self.out.append(word)
        if name:
            (self.launched if self._through else self.plain).append(name)


def _rule(action: str) -> str:
    return f"size {action[1:]}" if action.startswith(SIZE) else f"feature {action}"


def _without_plus(name: bytes) -> bytes:
    """Hydra's +name and ++name."""
    return name.removeprefix(b"+").removeprefix(b"+")


def _unquoted(word: bytes) -> bytes:
    quote = word[:1]
    if quote not in (b'"', b"'"):
        return word
    return word[1:-1] if len(word) > 1 and word[-1:] == quote else word[1:]


def read_script(script: bytes, reader: Reader) -> Iterator[bytes]:
    """Feed the lines of ``script`` that count to ``reader``; gives each line before it is read."""
    front, back = (LONG_HEAD_BYTES, LONG_TAIL_BYTES) if len(script) > LONG else (PART_BYTES, PART_BYTES)
    lines, end = head_lines(script, front, reader.rules)
    for line in lines + tail_lines(script, end, back, reader.rules):
        yield line
        reader.line(line)
    reader.end()
