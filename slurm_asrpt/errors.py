"""The exceptions that users may see, and the one place that turns them into a line and an exit code."""

from __future__ import annotations

import os
from collections.abc import Callable

EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
DEBUG = "ASRPT_DEBUG"
"""Set in the environment, a bug shows its traceback as well."""


class AsrptError(Exception):
    """Something failed that the user should hear of in one line."""

    exit_code = EXIT_FAILURE


class InputError(AsrptError):
    """Bad input (settings, profile, trace, script): says what, where and what to do."""

    exit_code = EXIT_BAD_INPUT


class SlurmError(AsrptError):
    """A Slurm command failed, hung, or answered something we cannot read."""


class MachineError(AsrptError):
    """This machine lacks something (a package, a port, a privilege); the text names the remedy."""


def one_line(error: BaseException) -> str:
    """The cause chain of ``error`` on one printable line, the outermost message first."""
    parts: list[str] = []
    current: BaseException | None = error
    while current is not None:
        text = " ".join(str(current).split()) or type(current).__name__
        known = isinstance(current, OSError) and (current.strerror or text)  # "[Errno 2] ..." says it once more
        if not parts or (text not in parts[-1] and (not known or known not in parts[-1])):
            parts.append(text)
        current = current.__cause__
    return printable(": ".join(parts))


def printable(text: str) -> str:
    """``text`` with control and other unprintable characters escaped, so it cannot steer a terminal or a log."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _no_words(_: BaseException) -> str:
    return ""


def _os_words(error: BaseException) -> str:
    """Of an OSError that nobody has put into words: a full disk, a folder that has become unwritable."""
    name, text = getattr(error, "filename", None), getattr(error, "strerror", None)
    return printable(": ".join(str(part) for part in (name, text or error) if part))


def _bug_words(error: BaseException) -> str:
    import traceback  # what ends well starts without

    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({os.path.basename(last[0].filename)}:{last[0].lineno})" if last else ""
    return f"a bug of ours, please report it: {type(error).__name__}: {one_line(error)}{where}; {DEBUG}=1 shows more"


ENDINGS: tuple[tuple[type[BaseException], int, Callable[[BaseException], str]], ...] = (
    (AsrptError, EXIT_FAILURE, one_line),  # or its own exit_code: InputError has 2
    (KeyboardInterrupt, EXIT_INTERRUPTED, _no_words),
    (BrokenPipeError, 0, _no_words),  # `| head` has read all it wanted
    (OSError, EXIT_FAILURE, _os_words),
    (MemoryError, EXIT_FAILURE, lambda _: "there is not enough memory on this machine for that; ask for less"),
    (Exception, EXIT_BUG, _bug_words),
)
"""What ends a command, its exit code and what is said: the first kind that fits."""


def ending(error: BaseException) -> tuple[int, str]:
    """Exit code and line ("": nothing is said) of whatever has ended a command."""
    kind_of = ((code, words) for kind, code, words in ENDINGS if isinstance(error, kind))
    code, words = next(kind_of)
    return getattr(error, "exit_code", code), words(error)
