"""The exceptions that users may see, and the one place that turns them into a line and an exit code."""

from __future__ import annotations

EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


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
