"""asrpt-lab train: simulates training, at the speed that its placement allows.

Inside a job, it reads the allocated GPUs and the node of each rank, computes the seconds per iteration from the
profile, sleeps for that time, and reports its progress as real training does. On a signal, it writes a checkpoint with
the iterations done, and waits to be requeued. Standard library only: it runs with the system's Python, and often.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.domains import layouts_of
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.core.topology import Blocks, blocks_of
from slurm_asrpt.errors import AsrptError, InputError, SlurmError, error_lines
from slurm_asrpt.files import replace_file
from slurm_asrpt.progress import Reporter, to_count
from slurm_asrpt.slurm.gres import gpu_indexes
from slurm_asrpt.slurm.topology import parse_topology

EXIT_TERMINATED = 143
REPORT_EVERY_S = 1.0
DEFAULT_INTER = 1.25e9  # as in config.settings.FabricSettings, which needs pydantic
DEFAULT_INTRA = 300e9
DEFAULT_ACROSS = 25e9
UNPROFILED_ALPHA = 1.0  # without a profile, one iteration per second in any placement

CHECK_EVERY_S = 1.0
SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)

SCONTROL_TIMEOUT_S = 30.0
PATIENCE_S = 120.0
"""Seconds for which scontrol is retried while slurmctld is away or busy: real training would not notice that."""

_NODES_LINE = re.compile(r"(?<!\S)Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_NODE = re.compile(r"(?<!\S)NodeName=(\S+)(?: .*?)? Gres=(\S+)")
_BRACKET = re.compile(r"([^\[\],]*)\[([^\]]+)\]([^\[\],]*)")


@dataclass(frozen=True)
class Allocation:
    """The job's GPUs. counts: its GPUs on each node. totals: all GPUs of each node, g in the timing formulas.

    indexes: which GPUs of each node it has, as masks; () if Slurm does not show them.
    """

    nodes: tuple[str, ...]
    counts: tuple[int, ...]
    totals: tuple[int, ...]
    indexes: tuple[int, ...] = ()

    def block_ranks(self) -> tuple[int, ...]:
        """The node of each rank in ``srun``'s default block order."""
        return tuple(index for index, count in enumerate(self.counts) for _ in range(count))

    def hostfile_ranks(self, text: str, source: str) -> tuple[int, ...]:
        """The node of each rank from a host file, one node name per line. Raises InputError if it does not match."""
        index = {node: i for i, node in enumerate(self.nodes)}
        hosts = text.split()
        strange = next((host for host in hosts if host not in index), None)
        if strange is not None:
            raise InputError(f"{source}: {strange} is not a node of this job ({','.join(self.nodes)})")
        ranks = tuple(index[host] for host in hosts)
        given = tuple(ranks.count(i) for i in range(len(self.nodes)))
        if given != self.counts:
            raise InputError(f"{source}: {given} ranks on {','.join(self.nodes)}, but the job has {self.counts} GPUs")
        return ranks


def read_allocation(environment: Mapping[str, str]) -> Allocation:
    """The allocation of this process's job. Raises InputError outside of a job, SlurmError."""
    job = environment.get("SLURM_JOB_ID", "")
    if not job.isdigit():
        raise InputError("not in a Slurm job (no SLURM_JOB_ID); run this with sbatch or srun")
    shown = _scontrol("-d", "-o", "show", "job", job)
    given = parse_job(shown)
    if not given:
        raise InputError(f"job {job} has no GPUs; request them, e.g. with -n4 --gpus-per-task=1")
    totals = parse_nodes(_scontrol("-o", "show", "node", ",".join(given)))
    counts = tuple(given.values())
    all_gpus = tuple(max(totals.get(n, 0), given[n]) for n in given)
    return Allocation(tuple(given), counts, all_gpus, parse_indexes(shown, given))


def read_blocks(allocation: Allocation, beyond: Sequence[float]) -> Blocks:
    """The switches of the job's nodes. () without bandwidths beyond level 1, or for one node. Raises SlurmError."""
    if not beyond or len(allocation.nodes) < 2:
        return ()
    switches = parse_topology(_scontrol("show", "topology"), expand).switches
    pairs = zip(allocation.nodes, allocation.totals, strict=True)
    return blocks_of([Node(name, gpus, switches=switches.get(name, ())) for name, gpus in pairs])


def read_ranks(allocation: Allocation, environment: Mapping[str, str]) -> tuple[int, ...]:
    """The node of each rank: from $SLURM_HOSTFILE if readable, else in Slurm's block order.

    Does not compute Heavy-Edge's mapping: under plain Slurm, jobs do not have it.
    """
    hostfile = environment.get("SLURM_HOSTFILE", "")
    try:
        text = Path(hostfile).read_text(encoding="utf-8") if hostfile else ""
    except (OSError, UnicodeDecodeError):
        text = ""
    return allocation.hostfile_ranks(text, hostfile) if text.strip() else allocation.block_ranks()


def parse_job(text: str) -> dict[str, int]:
    """GPUs per node from ``scontrol -d -o show job``, in Slurm's order; nodes without GPUs are left out."""
    counts = {}
    for nodes, gres in _NODES_LINE.findall(text):
        gpus = gpus_in(gres)
        if gpus:
            counts.update(dict.fromkeys(expand(nodes), gpus))
    return counts


def parse_indexes(text: str, given: Mapping[str, int]) -> tuple[int, ...]:
    """Which GPUs of each node, as masks; () if not all are shown. given: GPUs per node."""
    lines = _NODES_LINE.findall(text)
    found = {name: gpu_indexes(gres) for nodes, gres in lines for name in expand(nodes) if name in given}
    return tuple(found.values()) if [each.bit_count() for each in found.values()] == list(given.values()) else ()


def parse_nodes(text: str) -> dict[str, int]:
    """All GPUs of each node from ``scontrol -o show node``."""
    return {name: gpus_in(gres) for line in text.splitlines() for name, gres in _NODE.findall(line)}


def gpus_in(gres: str) -> int:
    """GPUs in ``gpu:h100:4(IDX:0-1,3),gpu:t4:2(S:0)``; 0 in ``(null)``."""
    parts = re.sub(r"\([^)]*\)", "", gres).split(",")
    return sum(int(part.rpartition(":")[2]) for part in parts if re.fullmatch(r"gpu(:[^:]+)?:[0-9]+", part))


def expand(hostlist: str) -> list[str]:
    """Node names in ``n[1-3,07],m2``."""
    return [name for part in re.findall(r"(?:[^\[,]|\[[^\]]*\])+", hostlist) for name in _expand_one(part)]


def _expand_one(part: str) -> Iterator[str]:
    match = _BRACKET.search(part)
    if match is None:
        yield part
        return
    for item in match[2].split(","):
        first, _, last = item.partition("-")
        for number in range(int(first), int(last or first) + 1):
            middle = f"{match[1]}{number:0{len(first)}d}{match[3]}"
            yield from _expand_one(part[: match.start()] + middle + part[match.end() :])


def _scontrol(*arguments: str) -> str:
    """Output of scontrol, retried while slurmctld is away. Raises SlurmError."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        trouble = ""
        try:
            done = _call(["scontrol", *arguments])
            if done.returncode == 0:
                return done.stdout
            trouble = done.stderr
        except subprocess.TimeoutExpired:
            trouble = f"no answer within {SCONTROL_TIMEOUT_S:g} s"
        except OSError as error:
            raise SlurmError(f"scontrol: cannot be started ({error.strerror})") from error
        if "nvalid" in trouble or time.monotonic() > deadline:  # Invalid job id, Invalid node name
            raise SlurmError(f"scontrol {' '.join(arguments)}: {trouble}")
        time.sleep(1.0)


def _call(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, LC_ALL="C")
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env=environment,
        timeout=SCONTROL_TIMEOUT_S,
    )


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
