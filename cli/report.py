"""asrpt-report: a job script says how far it is. Standard library only, as it is started again and again."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from slurm_asrpt import __version__
from slurm_asrpt.errors import EXIT_BAD_INPUT, ending, printable
from slurm_asrpt.progress import FOLDER_VARIABLE, Reporter, to_count, to_number

EXAMPLES = """\
Examples:
  asrpt-report 400 --total 1000
  asrpt-report "$step" --loss "$loss"
  asrpt-report 700 --start 500    # began from a checkpoint
"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every command of the project does."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {printable(message)}; {self.prog} --help lists the options", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)


def parser() -> argparse.ArgumentParser:
    made = _Parser(
        prog="asrpt-report",
        description="Tell asrpt how far this training job is.\nOutside of a job it does nothing.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"slurm-asrpt {__version__}"
    made.add_argument("-V", "--version", action="version", version=version, help="show the version")
    made.add_argument("iterations", metavar="N", type=_count, help="iterations done since the training began")
    made.add_argument("--total", metavar="M", type=_count, help="iterations of the whole training")
    made.add_argument("--loss", metavar="X", type=_loss, help="the training loss now")
    made.add_argument("--start", metavar="K", type=_count, help="iterations that an earlier job had done")
    return made


def _count(text: str) -> int:
    value = to_count(text) if text.isascii() and text.isdigit() else None
    if value is None:
        raise argparse.ArgumentTypeError(f"a whole number from 0 is needed, not {text!r}")
    return value


def _loss(text: str) -> float | None:
    """A loss that has become nan or inf is reported as none: it is no mistake of the script's."""
    try:
        return to_number(float(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"a number is needed, not {text!r}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit code: 0, also where nothing can be written, and 2 for bad input."""
    try:
        options = parser().parse_args(arguments)
        return _report(options)
    except (Exception, KeyboardInterrupt) as error:
        code, words = ending(error)
        print(f"asrpt-report: {words}" if words else "", end="\n" * bool(words), file=sys.stderr)
        return code


def _report(options: argparse.Namespace) -> int:
    reporter = Reporter(os.environ)
    if options.start is not None:
        reporter.begin_at(options.start)
    reporter.report(options.iterations, options.total, options.loss)
    if reporter.writes and not reporter.flush():
        folder = printable(os.environ[FOLDER_VARIABLE])
        print(f"asrpt-report: {folder}: cannot be written, so this is not reported; the job goes on", file=sys.stderr)
    return 0
