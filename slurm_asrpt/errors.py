"""The exceptions that users may see, and their mapping to a message and an exit code."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
DEBUG = "ASRPT_DEBUG"
"""Environment variable; if set, bugs show a traceback."""


class AsrptError(Exception):
    """A failure that is reported to the user in one line."""

    exit_code = EXIT_FAILURE


class InputError(AsrptError):
    """Bad input (settings, profile, trace, script). The text says what, where, and what to do."""

    exit_code = EXIT_BAD_INPUT


MOST_ERRORS = 20
"""Errors of one input that are shown. A file with more is not the file that was meant."""


class CollectedError(InputError):
    """Several errors of one input. errors: each by itself, in the order of the input. As text: only the first."""

    def __init__(self, errors: Sequence[InputError]) -> None:
        more = len(errors) - 1
        super().__init__(f"{errors[0]} (and {more} more error{'' if more == 1 else 's'})")
        self.errors = tuple(errors)


class Collected:
    """The errors of the steps that read one input, so that users can fix all of them at once::

        errors = Collected()
        with errors:
            head = read_head(table)
        with errors:
            stages = read_stages(table)
        errors.check()

    An InputError ends its ``with`` block, not the reader. Use what the blocks have read only after ``check``.
    """

    def __init__(self) -> None:
        self.errors: list[InputError] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> bool:
        if isinstance(error, InputError):
            self.errors += error.errors if isinstance(error, CollectedError) else [error]
            return True
        return False

    def check(self) -> None:
        """Raises InputError if a step has failed."""
        if self.errors:
            raise as_one(self.errors)


def as_one(errors: Iterable[InputError]) -> InputError:
    """One exception for these errors, of which there is at least one."""
    found = tuple(errors)
    return found[0] if len(found) == 1 else CollectedError(found)


class SlurmError(AsrptError):
    """A Slurm command failed, timed out, or its output cannot be parsed."""


class MachineError(AsrptError):
    """This machine lacks something (a package, a port, a privilege). The text names the remedy."""


def one_line(error: BaseException) -> str:
    """The cause chain of ``error`` on one printable line, the outermost message first."""
    parts: list[str] = []
    current: BaseException | None = error
    while current is not None:
        text = " ".join(str(current).split()) or type(current).__name__
        known = isinstance(current, OSError) and (current.strerror or text)  # "[Errno 2] ..." repeats it
        if not parts or (text not in parts[-1] and (not known or known not in parts[-1])):
            parts.append(text)
        current = current.__cause__
    return printable(": ".join(parts))


def error_lines(error: BaseException) -> list[str]:
    """As ``one_line``, but a line for each error of an input; at most ``MOST_ERRORS``, and how many more there are."""
    if not isinstance(error, CollectedError):
        return [one_line(error)]
    shown, more = error.errors[:MOST_ERRORS], len(error.errors) - MOST_ERRORS
    return [*map(one_line, shown), *([f"... and {more} more errors"] if more > 0 else [])]


def printable(text: str) -> str:
    """``text`` with control and other unprintable characters escaped, for terminals and logs."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def short(value: object) -> str:
    """A wrong value, as errors show it."""
    huge = isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128
    try:
        return "a huge number" if huge else repr(value)[:60]
    except ValueError:  # Python writes no integer of more than 4300 digits (CVE-2020-10735), nor a list with one
        return "a huge number"


def _lines_message(error: BaseException) -> str:
    return "\n".join(error_lines(error))


def _no_message(_: BaseException) -> str:
    return ""


def _os_message(error: BaseException) -> str:
    """An OSError that no caller has handled: a full disk, a directory that has become unwritable."""
    name, text = getattr(error, "filename", None), getattr(error, "strerror", None)
    return printable(": ".join(str(part) for part in (name, text or error) if part))


def _bug_message(error: BaseException) -> str:
    import traceback  # late, so that commands start faster

    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({os.path.basename(last[0].filename)}:{last[0].lineno})" if last else ""
    what = f"{type(error).__name__}: {one_line(error)}{where}"
    return f"a bug in slurm-asrpt, please report it: {what}; {DEBUG}=1 shows more"


ENDINGS: tuple[tuple[type[BaseException], int, Callable[[BaseException], str]], ...] = (
    (AsrptError, EXIT_FAILURE, _lines_message),  # or its own exit_code: InputError has 2
    (KeyboardInterrupt, EXIT_INTERRUPTED, _no_message),
    (BrokenPipeError, 0, _no_message),  # `| head` has read enough
    (OSError, EXIT_FAILURE, _os_message),
    (MemoryError, EXIT_FAILURE, lambda _: "not enough memory on this machine; try a smaller input"),
    (Exception, EXIT_BUG, _bug_message),
)
"""Exception, exit code and message of each way in which a command can end. The first match counts."""


def ending(error: BaseException) -> tuple[int, str]:
    """Exit code and message ("": none; a line for each error of an input) for the exception that ended a command."""
    code, message = next((code, message) for kind, code, message in ENDINGS if isinstance(error, kind))
    return getattr(error, "exit_code", code), message(error)
