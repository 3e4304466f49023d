"""Compare (5) and (6) with real transfers: python -m benchmarks.communication --json

Servers are network namespaces whose NICs have a stated rate (benchmarks.shaped_network). Processes exchange bytes over
gloo (torch), whose all-reduce is a ring. core/timing predicts each exchange from the rate alone; nothing is fitted.
Each row has ``predicted_s``, the median ``measured_s``, ``error`` (predicted over measured, less 1) and ``unsteady``
(the interquartile range over the median).

allreduce: (6), one process per server, or all processes of full servers. shared: two jobs have half of each server
and all-reduce at the same time, so that each has the share x/g of the NICs that (6) reserves. alone: one of these jobs
without the other; Slurm reserves no bandwidth, so it may be up to g/x times as fast as predicted. inside: (6) inside a
server, B_intra between two processes. transfer, chain: (5), two and three stages of a pipeline, one per server:
activations go there and gradients come back, one transfer after the other. streams: (5), three stages whose
transfers of different mini-batches happen at the same time, as in an asynchronous pipeline.

small: all-reduces whose bytes take less time than their steps. ``step_s`` is what remains of the measured time for each
of the 2 (k-1) steps. ``error_with_steps`` of an all-reduce is its error if (6) had 2 (k-1) step_s more. --delay adds a
delay to each packet, measures all-reduces of several sizes, and nothing else. --library measures nothing: it computes
how much longer the iterations of the shipped profiles would be at most, split over servers of 8 GPUs, if each step of
their rings took a stated time beside its bytes. Needs root, iproute2 and torch; takes about four minutes, with --quick
one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from benchmarks.shaped_network import NIC, Network, network, why_not
from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import JobProfile, Stage
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.errors import MachineError
from slurm_asrpt.profile.documents import load_named
from slurm_asrpt.profile.schema import library_names

MBIT = 1e6 / 8
RATES = (200, 400, 800)
INTRA = 4
"""B_intra over B_inter of the emulated servers."""
COUNTS = (2, 4, 8)
SIZE, SMALL = 16 << 20, 4 << 10
DELAYED_SIZES = (1 << 20, 4 << 20, SIZE)
LIMIT_S = 120
GPUS, LIBRARY_INTRA = 8, 300e9


@dataclass(frozen=True)
class Cell:
    """One exchange. jobs: the ranks of each job, stage by stage. servers: the server of each rank of the first job.

    gpus: g of each server. size: bytes of gradients, or of activations between two stages. times: back to back.
    """

    kind: str
    jobs: tuple[tuple[int, ...], ...]
    servers: tuple[int, ...]
    gpus: int
    size: int
    times: int = 1

    @property
    def processes(self) -> int:
        return len(self.jobs[0])

    @property
    def steps(self) -> int:
        """Of a ring all-reduce, one after the other."""
        return 2 * (self.processes - 1)


PIPELINES = ("transfer", "chain", "streams")


def profile(cell: Cell) -> JobProfile:
    """A model that only communicates: one data-parallel stage, or a pipeline of stages with one replica."""
    if cell.kind not in PIPELINES:
        return JobProfile(cell.kind, (Stage(cell.processes, 0, 0, param_bytes=cell.size),))
    last = cell.processes - 1
    sizes = [(cell.size * (s > 0), cell.size * (s < last)) for s in range(cell.processes)]
    return JobProfile(cell.kind, tuple(Stage(1, 0, 0, bytes_in=i, bytes_out=o) for i, o in sizes))


def predicted(cell: Cell, inter: float) -> float:
    """(7) without computation: seconds of one exchange. inter: bytes/s of a NIC."""
    fabric = Fabric(inter, INTRA * inter)
    return iteration_time(profile(cell), cell.servers, [cell.gpus] * (max(cell.servers) + 1), fabric)


def rings(sizes: Sequence[int], times: int) -> list[Cell]:
    """All-reduces between servers with one process each. times: of the small ones."""
    small = [Cell("small", (_first(k),), _first(k), 1, SMALL, times) for k in COUNTS]
    return small + [Cell("allreduce", (_first(k),), _first(k), 1, size) for k in COUNTS for size in sizes]


def pipelines() -> list[Cell]:
    return [
        Cell("transfer", (_first(2),), _first(2), 1, SIZE),
        *(Cell(kind, (_first(3),), _first(3), 1, SIZE) for kind in ("chain", "streams")),
    ]


def four_each() -> list[Cell]:
    """Cells for two servers with four processes each: ranks 0 to 3 and 4 to 7."""
    one, other = (0, 1, 4, 5), (2, 3, 6, 7)
    return [
        Cell("allreduce", (_first(8),), (0,) * 4 + (1,) * 4, 4, SIZE),
        Cell("shared", (one, other), (0, 0, 1, 1), 4, SIZE),
        Cell("alone", (one,), (0, 0, 1, 1), 4, SIZE),
        Cell("inside", ((0, 1),), (0, 0), 4, SIZE),
        Cell("inside", (_first(4),), (0,) * 4, 4, SIZE),
    ]


def _first(count: int) -> tuple[int, ...]:
    return tuple(range(count))


# the processes


class Workers:
    """Processes on the servers, ``each`` of them on every one, that make the exchanges together."""

    def __init__(self, net: Network, each: int, stack: ExitStack) -> None:
        self._processes = [
            stack.enter_context(_worker(net, rank, each, len(net.names) * each))
            for rank in range(len(net.names) * each)
        ]
        stack.callback(self._kill)

    def _kill(self) -> None:
        """All at once: the rest would complain that a peer is gone."""
        for process in self._processes:
            process.kill()

    def seconds(self, cell: Cell, repeats: int) -> list[float]:
        """Seconds of each repetition, until the last process of the slowest job is done. Raises MachineError."""
        for process in self._processes:
            _tell(process, asdict(cell) | {"repeats": repeats})
        answers = [_answer(process) for process in self._processes]
        return [max(times) / cell.times for times in zip(*filter(None, answers), strict=True)]


@contextmanager
def _worker(net: Network, rank: int, each: int, world: int) -> Iterator[subprocess.Popen[str]]:
    meeting = {"MASTER_ADDR": net.address(0), "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": NIC}
    place = {"RANK": str(rank), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    command = [*net.inside(rank // each), sys.executable, "-m", "benchmarks.communication", "--worker"]
    pipe = subprocess.PIPE
    # its own session: Ctrl-C reaches only the parent, which ends the processes before it deletes their namespaces
    process = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, env=os.environ | meeting | place, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _tell(process: subprocess.Popen[str], cell: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(cell) + "\n")
    process.stdin.flush()


def _answer(process: subprocess.Popen[str]) -> list[float]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise MachineError("a process ended before it had answered")
    found: list[float] = json.loads(line)
    return found


def worker() -> None:
    """Make the exchanges that standard input names; print the seconds of each, [] for those of other processes."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=timedelta(seconds=LIMIT_S))
    rank, groups = distributed.get_rank(), dict[tuple[int, ...], Any]()
    for line in sys.stdin:
        cell = json.loads(line)
        for job in map(tuple, cell["jobs"]):
            if job not in groups:
                groups[job] = distributed.new_group(job)  # all processes take part in this
        mine = next((job for job in map(tuple, cell["jobs"]) if rank in job), None)
        exchange = _exchange(cell, mine, groups) if mine else lambda: None
        times = []
        for _ in range(cell["repeats"] + 1):
            distributed.barrier()
            began = time.perf_counter()
            for _ in range(cell["times"]):
                exchange()
            times.append(time.perf_counter() - began)
        print(json.dumps(times[1:] if mine else []), flush=True)


def _exchange(cell: dict[str, Any], job: tuple[int, ...], groups: dict[tuple[int, ...], Any]) -> Any:
    import torch
    from torch import distributed

    if cell["kind"] not in PIPELINES:
        gradients = torch.ones(cell["size"] // 4)
        return lambda: distributed.all_reduce(gradients, group=groups[job])
    at = job.index(distributed.get_rank())
    before, after = (job[at - 1] if at else None), (job[at + 1] if at + 1 < len(job) else None)
    return (_streams if cell["kind"] == "streams" else _chain)(before, after, cell["size"] // 4)


def _chain(before: int | None, after: int | None, count: int) -> Any:
    """Activations to the last stage, then gradients to the first."""
    import torch
    from torch.distributed import recv, send

    buffer = torch.ones(count)

    def exchange() -> None:
        if before is not None:
            recv(buffer, before)
        if after is not None:
            send(buffer, after)
            recv(buffer, after)
        if before is not None:
            send(buffer, before)

    return exchange


def _streams(before: int | None, after: int | None, count: int) -> Any:
    """All transfers of a mini-batch at the same time."""
    import torch
    from torch.distributed import irecv, isend

    peers = [peer for peer in (before, after) if peer is not None]
    buffers = [(torch.ones(count), torch.ones(count), peer) for peer in peers]

    def exchange() -> None:
        works = [irecv(into, peer) for into, _, peer in buffers] + [isend(out, peer) for _, out, peer in buffers]
        for work in works:
            work.wait()

    return exchange


# the table


def rows(rates: Sequence[float], repeats: int, times: int) -> Iterator[dict[str, Any]]:
    """times: how many small all-reduces follow each other."""
    yield from measured(8, 1, [*rings([SIZE], times), *pipelines()], rates, repeats)
    yield from measured(2, 4, four_each(), rates, repeats)


def measured(
    servers: int, each: int, cells: Sequence[Cell], rates: Sequence[float], repeats: int, delay_s: float = 0.0
) -> Iterator[dict[str, Any]]:
    """Rows for servers with ``each`` processes."""
    with network(servers, delay_s) as net, ExitStack() as stack:
        workers = Workers(net, each, stack)
        for rate in rates:
            net.limit_nics(rate * MBIT)
            step = dict[int, float]()
            for cell in cells:
                if cell.kind == "inside":  # a ring of x processes uses x links of B_intra at the same time
                    net.limit_loopback(0, cell.processes * INTRA * rate * MBIT)
                found = row(cell, rate, workers.seconds(cell, repeats))
                if cell.kind == "small":
                    step[cell.processes] = found["step_s"]
                elif cell.kind == "allreduce" and cell.processes in step:
                    found |= with_steps(found, cell, step[cell.processes])
                yield found | {"delay_s": delay_s}


def with_steps(found: dict[str, Any], cell: Cell, step_s: float) -> dict[str, float]:
    return {"error_with_steps": (found["predicted_s"] + cell.steps * step_s) / found["measured_s"] - 1}


def row(cell: Cell, rate: float, times: Sequence[float]) -> dict[str, Any]:
    """rate: of a NIC, Mbit/s. times: of each repetition."""
    guess, truth = predicted(cell, rate * MBIT), statistics.median(times)
    first, _, third = statistics.quantiles(times, n=4)
    found = {
        "kind": cell.kind,
        "processes": cell.processes,
        "servers": len(set(cell.servers)),
        "gpus": cell.gpus,
        "mbit_per_s": rate,
        "bytes": cell.size,
        "predicted_s": guess,
        "measured_s": truth,
        "error": guess / truth - 1,
        "unsteady": (third - first) / truth,
    }
    return found | ({"step_s": (truth - guess) / cell.steps} if cell.kind == "small" else {})


def library(rate: float, step_s: float) -> dict[str, Any]:
    """2 (k-1) ``step_s`` over alpha (7), of the shipped profiles with several replicas of a stage."""
    shares = {}
    for name in library_names():
        made = load_named(name, ())
        if isinstance(made, JobProfile) and (most := max(stage.replicas for stage in made.stages)) > 1:
            shares[name] = 2 * (most - 1) * step_s / _split(made, rate)
    first = max(shares, key=lambda name: shares[name])
    found = {"mbit_per_s": rate, "step_s": step_s, "profiles": len(shares)}
    return found | {"most": shares[first], "most_of": first, "median": statistics.median(shares.values())}


def _split(made: JobProfile, rate: float) -> float:
    """alpha on full servers, or on two if one would be enough."""
    half = made.gpus // 2 // made.tensor * made.tensor
    ranks = [rank // min(GPUS, half) for rank in range(made.gpus)]
    return iteration_time(made, ranks, [GPUS] * (ranks[-1] + 1), Fabric(rate * MBIT, LIBRARY_INTRA))


def line(found: dict[str, Any]) -> str:
    """A row as text."""
    where = f"{found['processes']} on {found['servers']} of {found['gpus']}"
    times = f"predicted {found['predicted_s'] * 1e3:8.2f} ms  measured {found['measured_s'] * 1e3:8.2f} ms"
    more = f"  step {found['step_s'] * 1e6:.0f} us" if "step_s" in found else ""
    if "error_with_steps" in found:
        more = f"  {found['error_with_steps']:+.1%} with steps"
    what = f"{found['mbit_per_s']:>4g} Mbit/s {found['bytes'] >> 10:>6} KiB"
    return f"{found['kind']:<10}{where:<11}{what}  {times}  {found['error']:+7.1%}{more}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, metavar="MBIT", help="Mbit/s of a NIC")
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    parser.add_argument("--delay", type=float, default=0.0, metavar="MS", help="of each packet, milliseconds")
    parser.add_argument("--library", type=float, metavar="US", help="only compute, with steps of US microseconds")
    parser.add_argument("--quick", action="store_true", help="one rate and three repetitions")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker()
        return
    if options.library:
        for rate in options.rates:
            print(json.dumps(library(rate, options.library / 1e6)))
        return
    torch = "" if importlib.util.find_spec("torch") else "missing: torch (pip install 'slurm-asrpt[profile]')"
    if reason := why_not() or torch:
        sys.exit(f"communication: {reason}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rates, repeats = (options.rates[:1], 3) if options.quick else (options.rates, options.repeats)
    if options.delay:  # each small all-reduce takes long
        made = measured(8, 1, rings(DELAYED_SIZES, 3), rates, repeats, options.delay / 1e3)
    else:
        made = rows(rates, repeats, 20 if options.quick else 100)
    try:
        for found in made:
            print(json.dumps(found) if options.json else line(found), flush=True)
    except MachineError as error:
        sys.exit(f"communication: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
