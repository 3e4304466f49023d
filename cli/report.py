"""asrpt-report: report the progress of a training job. Uses only the standard library, as jobs call it often."""

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
  asrpt-report 700 --start 500    # after a checkpoint
  asrpt-report checkpointed 700
"""


CHECKPOINTED = "checkpointed"


class _Parser(argparse.ArgumentParser):
    """Prints errors in one line, as all our commands do."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {printable(message)}; {self.prog} --help lists the options", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)


def parser() -> argparse.ArgumentParser:
    made = _Parser(
        prog="asrpt-report",
        description="Report the progress of this training job to asrpt.\nDoes nothing outside of a job.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"slurm-asrpt {__version__}"
    made.add_argument("-V", "--version", action="version", version=version, help="print the version")
    made.add_argument(
        "event",
        metavar="checkpointed",
        nargs="?",
        choices=(CHECKPOINTED,),
        help="a checkpoint of iteration N is written; asrptd waits for this when it preempts the job",
    )
    made.add_argument("iterations", metavar="N", type=_count, help="iterations done since the start of the training")
    made.add_argument("--total", metavar="M", type=_count, help="total iterations of the training")
    made.add_argument("--loss", metavar="X", type=_loss, help="current training loss")
    made.add_argument("--start", metavar="K", type=_count, help="iterations done by earlier jobs")
    return made


def _count(text: str) -> int:
    value = to_count(text) if text.isascii() and text.isdigit() else None
    if value is None:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}")
    return value


def _loss(text: str) -> float | None:
    """A loss; nan and inf are reported as none, as they are not the script's mistake."""
    try:
        return to_number(float(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code: 0, even if nothing can be written; 2 for bad input."""
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
    marked = options.event is None or reporter.checkpointed(options.iterations)
    if reporter.writes and not (reporter.flush() and marked):
        folder = printable(os.environ[FOLDER_VARIABLE])
        print(
            f"asrpt-report: {folder}: cannot be written; the progress is not reported, the job continues",
            file=sys.stderr,
        )
    return 0
