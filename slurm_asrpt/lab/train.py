"""asrpt-lab train: simulates training, at the speed that its placement allows.

Inside a job, it reads the allocated GPUs and the node of each rank, computes the seconds per iteration from the
profile, sleeps for that time, and reports its progress as real training does. On a signal, it writes a checkpoint with
the iterations done, and waits to be requeued. Standard library only: it runs with the system's Python, and often.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.domains import layouts_of
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.errors import AsrptError, InputError, error_lines
from slurm_asrpt.files import replace_file
from slurm_asrpt.lab.allocation import Allocation, read_allocation, read_blocks, read_ranks
from slurm_asrpt.progress import Reporter, to_count

EXIT_TERMINATED = 143
REPORT_EVERY_S = 1.0
DEFAULT_INTER = 1.25e9  # as in config.settings.FabricSettings, which needs pydantic
DEFAULT_INTRA = 300e9
DEFAULT_ACROSS = 25e9
UNPROFILED_ALPHA = 1.0  # without a profile, one iteration per second in any placement

CHECK_EVERY_S = 1.0
SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)


class SimulatedTraining:
    """Iterations done by the clock, one every ``each_s`` seconds while it runs."""

    def __init__(self, iterations: int, each_s: float, done: int = 0) -> None:
        """done: iterations done at the checkpoint."""
        self.iterations, self._each_s = iterations, each_s
        self._base, self._since = min(done, iterations), time.monotonic()
        self._stopped = False

    @property
    def done(self) -> int:
        if self._stopped:
            return self._base
        passed = int((time.monotonic() - self._since) / self._each_s) if self._each_s > 0 else self.iterations
        return min(self.iterations, self._base + passed)

    @property
    def left_s(self) -> float:
        return self._since + (self.iterations - self._base) * self._each_s - time.monotonic()

    def stop(self) -> int:
        """Stop, and discard the current iteration. Returns the iterations done."""
        self._base, self._stopped = self.done, True
        return self._base

    def resume(self) -> None:
        self._since, self._stopped = time.monotonic(), False


class Checkpoint:
    """A file with the iterations done. wait_s: seconds to wait for a requeue after a signal before training goes on.

    requested: a signal has arrived since the last checkpoint.
    """

    def __init__(self, path: Path, wait_s: float) -> None:
        self.path, self._wait_s = path, wait_s
        self.requested = False
        for number in SIGNALS:
            signal.signal(number, self._request)

    def _request(self, number: int, frame: object) -> None:
        self.requested = True

    def read(self) -> int:
        """Iterations done by earlier runs, 0 if there were none. Raises InputError."""
        try:
            done = to_count(self.path.read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{self.path}: cannot be read ({error}); specify another file with --checkpoint") from None
        if done is None:
            raise InputError(
                f"{self.path}: not a checkpoint of asrpt-lab train; specify another file with --checkpoint"
            )
        return done

    def write(self, first: int, done: int) -> None:
        """Write the checkpoint durably, and print the iterations that it covers. Raises InputError."""
        try:
            replace_file(self.path, f"{done}\n".encode(), mode=None)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written ({error.strerror}); fix --checkpoint") from None
        print(f"asrpt-train: iterations {first} to {done} are done", flush=True)

    def preempt(self, training: SimulatedTraining, first: int, reporter: Reporter) -> int:
        """Write and report a checkpoint, then wait to be requeued. Returns the iterations done if it is not."""
        self.requested = False
        done = training.stop()
        self.write(first, done)
        reporter.report(done)
        reporter.flush()
        reporter.checkpointed(done)
        self._wait(done, reporter)
        training.resume()
        return done

    def _wait(self, done: int, reporter: Reporter) -> None:
        """Wait. On another signal, report the checkpoint again: the sender has missed the report."""
        until = time.monotonic() + self._wait_s
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(CHECK_EVERY_S, left))
            if self.requested:
                self.requested = False
                reporter.checkpointed(done)


@dataclass(frozen=True)
class Result:
    """The output of --json. alpha: seconds per iteration. seconds: elapsed time, divided by --speedup."""

    profile: str | None
    nodes: tuple[str, ...]
    counts: tuple[int, ...]
    ranks: tuple[int, ...]
    mapped: bool
    alpha: float
    iterations: int
    seconds: float


def train(
    iterations: int,
    seconds_each: float,
    reporter: Reporter,
    checkpoint: Checkpoint | None = None,
    report_every_s: float = REPORT_EVERY_S,
    converges: int = 0,
) -> float:
    """Sleep through the iterations. Returns the elapsed seconds. Progress is reported even after an exception.

    converges: the iteration at which the reported loss has converged; 0: no loss is reported.
    """
    started = time.monotonic()
    first = checkpoint.read() if checkpoint else 0
    training = SimulatedTraining(iterations, seconds_each, first)
    reporter.begin_at(first)
    reporter.report(training.done, iterations, loss_at(training.done, converges))
    with reporter:
        try:
            while (left := training.left_s) > 0:
                time.sleep(min(report_every_s, left))
                if checkpoint and checkpoint.requested:
                    first = checkpoint.preempt(training, first, reporter)
                reporter.report(training.done, loss=loss_at(training.done, converges))
        finally:
            reporter.report(training.done, loss=loss_at(training.done, converges))
    if checkpoint:
        checkpoint.write(first, iterations)
    return time.monotonic() - started


def loss_at(done: int, converges: int) -> float | None:
    """A loss that falls from 1.5 towards 0.5, all but a hundredth of it in ``converges`` iterations; None for 0."""
    return 0.5 + 1 / (1 + 99 * done / converges) if converges else None


def alpha_here(profile: str, allocation: Allocation, ranks: Sequence[int], options: argparse.Namespace) -> float:
    """Seconds per iteration of a profile in this placement. Raises InputError."""
    from slurm_asrpt.profile.schema import load_profile

    loaded = load_profile(profile, options.folders)
    if loaded.gpus != len(ranks):
        raise InputError(
            f"profile {profile} has {loaded.gpus} replicas, but this job has {len(ranks)} GPUs; request {loaded.gpus}"
        )
    fabric = Fabric(options.inter, options.intra, options.beyond, options.domain, options.across)
    blocks = read_blocks(allocation, options.beyond)
    layouts = layouts_of(allocation.indexes, fabric.domain) if fabric.domain else ()
    try:
        return iteration_time(loaded, ranks, allocation.totals, fabric, blocks, layouts)
    except ValueError as error:  # tensor slices on several servers: the formulas do not cover that
        raise InputError(f"profile {profile}: {error}; leave the placement to asrptd") from None


def _check_profile(options: argparse.Namespace) -> None:
    """Load the profile before the first call of scontrol. Raises InputError."""
    from slurm_asrpt.profile.schema import load_profile

    load_profile(options.profile, options.folders)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit code: 0, 2 for bad input, 1 for a Slurm that does not answer, 143 after SIGTERM."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        options = parse_options(arguments)
        result = _run(options, os.environ)
    except AsrptError as error:
        for line in error_lines(error):
            print(f"asrpt-train: {line}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(json.dumps(asdict(result)), flush=True)
    return 0


def _terminate(number: int, frame: object) -> NoReturn:
    raise SystemExit(EXIT_TERMINATED)


def _run(options: argparse.Namespace, environment: Mapping[str, str]) -> Result:
    alpha, mapped = UNPROFILED_ALPHA, False
    allocation = Allocation((), (), ())
    ranks: tuple[int, ...] = ()
    if options.profile:
        _check_profile(options)
    if options.profile or options.json:  # other jobs do not need their placement
        allocation = read_allocation(environment)
        ranks = read_ranks(allocation, environment)
        mapped = ranks != allocation.block_ranks()
    if options.profile:
        alpha = alpha_here(options.profile, allocation, ranks, options)
    checkpoint = Checkpoint(options.checkpoint, options.wait) if options.checkpoint else None
    reporter = Reporter(environment)
    each_s = alpha / options.speedup
    seconds = train(options.iterations, each_s, reporter, checkpoint, options.report_every, options.converges)
    placed = (allocation.nodes, allocation.counts, ranks, mapped)
    return Result(options.profile, *placed, alpha=alpha, iterations=options.iterations, seconds=round(seconds, 3))


class Parser(argparse.ArgumentParser):
    """Reports errors in one line, like all commands of the project."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see --help")


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="asrpt-lab train",
        description="Simulate training at the speed that the placement allows. Run this inside a job.",
        epilog="Example:\n  asrpt-lab train --profile vgg19-dp4 --iterations 100",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--profile", metavar="NAME", help="name or path of a profile; default: one iteration per second")
    made.add_argument("--iterations", metavar="N", type=_count, default=60, help="number of iterations (default 60)")
    made.add_argument("--speedup", metavar="X", type=_positive, default=1.0, help="run X times faster than real time")
    made.add_argument(
        "--checkpoint", metavar="FILE", type=Path, help="write a checkpoint on USR1 and USR2; resume from it"
    )
    made.add_argument(
        "--wait",
        metavar="S",
        type=_positive,
        default=120.0,
        help="wait so many seconds for the requeue (default 120)",
    )
    made.add_argument(
        "--report-every",
        metavar="S",
        type=_positive,
        default=REPORT_EVERY_S,
        help="seconds between reports of progress, and looks for a signal (default 1)",
    )
    made.add_argument(
        "--converges", metavar="N", type=_count, default=0, help="report a loss that converges in N iterations"
    )
    made.add_argument("--inter", metavar="RATE", type=_positive, help="B_inter in bytes/s; default: as in asrpt.toml")
    made.add_argument("--intra", metavar="RATE", type=_positive, help="B_intra in bytes/s; default: as in asrpt.toml")
    made.add_argument("--json", action="store_true", help="print placement and time as one line of JSON")
    return made


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; the fabric and the profiles that are not given come from $ASRPT_CONFIG. Raises InputError."""
    options = parser().parse_args(arguments)
    settings = _settings(os.environ)
    fabric = _table(settings, "fabric")
    options.inter = options.inter or float(fabric.get("inter_bytes_per_s", DEFAULT_INTER))
    options.intra = options.intra or float(fabric.get("intra_bytes_per_s", DEFAULT_INTRA))
    options.beyond = tuple(map(float, fabric.get("beyond_bytes_per_s", ())))
    options.domain = int(fabric.get("nvlink_domain", 0))
    options.across = float(fabric.get("across_bytes_per_s", DEFAULT_ACROSS))
    options.folders = [Path(folder) for folder in _table(settings, "paths").get("profiles", [])]
    return options


def _settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """The tables of $ASRPT_CONFIG, not validated: asrptd does that."""
    try:
        return tomllib.loads(Path(environment["ASRPT_CONFIG"]).read_text(encoding="utf-8"))
    except (KeyError, OSError, ValueError):
        return {}


def _table(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = settings.get(name)
    return table if isinstance(table, dict) else {}


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text}")
    return value


def _count(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= value < 10**12:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, not {text}")
    return value


if __name__ == "__main__":
    sys.exit(main())
