"""asrpt-pool: equality to the bit, what a switch costs, and pools against processes of their own.

python -m benchmarks.pool --json --device cpu --quick

bit_equal: whether the weights of all trainings are equal to the bit in a plain loop, in pools of one and of three
slots, in one whose slots get a new process for each training, and in one whose executors are killed; killed: executors
lost there.
switch_ms: by way to switch and bytes of the state, (time(ABAB...) - time(AA...) - time(BB...)) / switches on one slot,
each time the least of several repetitions, of trainings on numpy arrays. The round trip to the driver is part of it.
module_switch_ms: if there is torch, the same of the tasks of torch modules in one process; on a GPU of the eight models
of Hare's Table III, whose figures are in paper_switch_ms. "one fits": only one may have its parameters on the device.
module_process_ms: a task of each in a process of its own, from the start of Python until its end.
ratio_sequential: mean completion time in a pool of one slot, over that of plain processes one after the other. On a GPU
these have everything there, as in a usual training loop, and the figures include seconds of each process's start.
ratio_shared: the same of a pool of two slots, over plain processes two at a time; on a GPU, of four and four.
idle_share: share of the slot's time, in the pool of one slot, in which it did not work.
busy_share: by run, the mean of what nvidia-smi calls the GPU's utilization: time in which any kernel ran.

On a GPU, bit_equal is of torch modules there. Ctrl-C: --json prints what has been found until then, with interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slurm_asrpt.pool.arrays import Packed
from slurm_asrpt.pool.driver import Driver, Plan
from slurm_asrpt.pool.ending import Ending
from slurm_asrpt.pool.folder import CHECKPOINT, PoolFolder
from slurm_asrpt.pool.slurm_job import local_keepers
from slurm_asrpt.pool.snapshot import Checkpoint, Snapshot, read_checkpoint, write_checkpoint
from slurm_asrpt.pool.status import PoolStatus
from slurm_asrpt.pool.sweep import PoolSettings, Spec, read_spec
from slurm_asrpt.pool.synchronization import RoundSum
from slurm_asrpt.pool.training import Switching, load
from tests.benches import pool_policies  # noqa: F401 registers a policy

CODE = Path(__file__).parents[1] / "tests" / "benches"
USES = "pool_models:Line"
TORCH_USES = "benchmarks.pool_trainings:Synthetic"
SEED = 0
ONE_CORE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Else two processes at a time would compete for cores, and one would use both."""
BYTES_PER_FEATURE = 8
"""float32 weights and momentum."""


# Pools and processes


@dataclass(frozen=True)
class Ran:
    """A pool that has ended, and the results of its trainings."""

    status: PoolStatus
    results: dict[str, Snapshot]
    switches: int

    @property
    def mean_s(self) -> float:
        """Mean completion time from the pool's start."""
        ended = [each.ended for each in self.status.trainings if each.ended is not None]
        return sum(ended) / len(ended) - self.status.started

    @property
    def slot_s(self) -> float:
        """Seconds that the slots were there."""
        return self.status.slots_s


def pool(specs: Sequence[Spec], slots: int, kills: int = 0, pause_s: float = 0.2, **settings: Any) -> Ran:
    """Run a pool to its end. kills: executors to kill, of all slots in turn. pause_s: at least, before each."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(PoolSettings(**settings), specs, str(CODE), PoolFolder(Path(folder)), local_keepers(slots))
        driver = Driver(plan)
        ending = asyncio.run(_run(driver, slots, kills, pause_s))
        if ending is Ending.INTERRUPTED:
            raise KeyboardInterrupt
        if ending is not Ending.DONE:
            raise SystemExit(f"the pool ended: {ending}")
        found = {spec.name: read_checkpoint(Path(folder) / "trainings" / spec.name / CHECKPOINT) for spec in specs}
        results = {name: checkpoint.snapshot for name, checkpoint in found.items() if checkpoint}
        return Ran(driver.status("done"), results, driver.board.switches)


async def _run(driver: Driver, slots: int, kills: int, pause_s: float) -> Ending:
    killing = asyncio.create_task(_kill(kills, pause_s))
    ending = await driver.run()
    killing.cancel()
    return ending


async def _kill(kills: int, pause_s: float) -> None:
    chance = random.Random(SEED)
    for number in range(kills):
        await asyncio.sleep(pause_s * (1 + 2 * chance.random()))
        executors = [child for keeper in _children(os.getpid()) for child in _children(keeper)]
        if executors:
            with suppress(ProcessLookupError):
                os.kill(executors[number % len(executors)], signal.SIGKILL)


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def processes(specs: Sequence[Spec], at_a_time: int, usual: bool = False) -> tuple[float, dict[str, Snapshot]]:
    """Each training in a plain Python process of its own. Returns the mean completion time, and the results.

    usual: in the usual loop of torch, without results.
    """
    began, ends, waiting = time.monotonic(), list[float](), deque(specs)
    running: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < at_a_time:
                running.append(_start(waiting.popleft(), Path(folder), usual))
            ended = [each for each in running if each.poll() is not None]
            if any(each.returncode for each in ended):
                raise SystemExit("a plain process has failed")
            ends += [time.monotonic() - began for _ in ended]
            running = [each for each in running if each not in ended]
            time.sleep(0.002)
        found = {} if usual else {spec.name: read_checkpoint(Path(folder) / spec.name) for spec in specs}
    return sum(ends) / len(ends), {name: each.snapshot for name, each in found.items() if each}


def _start(spec: Spec, folder: Path, usual: bool) -> subprocess.Popen[bytes]:
    told = json.dumps(spec.document())
    command = [sys.executable, "-m", "benchmarks.pool", "--train", told, *([] if usual else ["--into", str(folder)])]
    return subprocess.Popen(command)


def train(spec: Spec, folder: Path | None) -> None:
    """What each of the plain processes does: the usual loop, without a pool."""
    training = load(spec.uses, spec.settings, CODE)
    if folder is None:
        from benchmarks.pool_trainings import train as usual

        usual(training)  # type: ignore[arg-type]
        return
    if hasattr(training, "adopt"):
        training.adopt(Switching())  # to compute as in a pool
    snapshot = Snapshot(Packed.of(training.initial()))
    for round in range(training.rounds):
        total = RoundSum(training.tasks)
        for task in range(training.tasks):
            gradient, loss = training.gradient(snapshot.state.arrays(), round, task)
            total.add(task, Packed.of(gradient), loss)
        state = training.step(snapshot.state.arrays(), total.mean().arrays(), round)
        snapshot = snapshot.after(Packed.of(state), total.mean_loss)
    write_checkpoint(folder / spec.name, Checkpoint(snapshot, training.tasks, training.rounds, True))


# Figures


def spec(name: str, seed: int, **settings: Any) -> Spec:
    return Spec(name, USES, {"seed": seed, **settings})


def equality(quick: bool, device: str) -> tuple[bool, int]:
    """Whether all ways of running give the same weights, and how many executors were killed on the way."""
    if device == "cuda":
        return _equality_there(3 if quick else 12)
    rounds = 40 if quick else 150
    specs = [spec(f"t{seed}", seed, tasks=3, rounds=rounds, features=999, seconds=0.01) for seed in range(4)]
    short = [spec(f"s{seed}", seed, tasks=2, rounds=4, features=999) for seed in range(2)]
    _, plain = processes(specs, 2)
    killed = pool(specs, 3, kills=8 if quick else 40)
    runs = [pool(specs, 1), pool(specs, 3), killed]
    equal = all(same(run.results, plain) for run in runs)
    equal = equal and same(pool(short, 2, switch="process").results, processes(short, 2)[1])
    return equal, killed.status.lost


def _equality_there(kills: int) -> tuple[bool, int]:
    """On a GPU, where a process takes seconds to start: a killed one must have had the time to compute."""
    specs = [torch_spec(seed, tasks=3, rounds=20 * kills) for seed in range(4)]
    _, plain = processes(specs, 4)
    killed = pool(specs, 3, kills=kills, pause_s=2.0, switch="ahead")
    runs = [pool(specs, 1, switch="ahead"), pool(specs, 2, switch="warm"), killed]
    return all(same(run.results, plain) for run in runs), killed.status.lost


def torch_spec(seed: int, **settings: Any) -> Spec:
    """A small training on a GPU."""
    return Spec(f"t{seed:02d}", TORCH_USES, {"seed": seed, "model": "small", "device": "cuda", **settings})


def same(one: dict[str, Snapshot], two: dict[str, Snapshot]) -> bool:
    return one.keys() == two.keys() and all(
        one[name].losses == two[name].losses and one[name].state.same(two[name].state) for name in one
    )


PAPER_MS = {
    "process": (3288.94, 5961.16, 7807.43, 9016.99, 5257.17, 5125.64, 5327.24, 5213.54),
    "layers": (4.01, 4.75, 5.03, 12.57, 10.34, 8.91, 2.86, 2.42),
    "ahead": (2.77, 2.04, 2.46, 5.03, 5.79, 4.27, 1.83, 0.96),
}
"""Hare, Table III: "Default", "PipeSwitch" and "Hare", in the order of ``pool_trainings.PAPER``, on V100s."""


def switching(quick: bool) -> dict[str, dict[str, float]]:
    """Milliseconds per switch of a pool, by way and size of the state."""
    sizes = [100_000, 3_000_000] if quick else [100_000, 3_000_000, 30_000_000]
    ways = ("process", "warm", "ahead")
    return {way: {f"{size / 1e6:g} MB": _switch_ms(way, size, quick) for size in sizes} for way in ways}


def _switch_ms(way: str, size: int, quick: bool) -> float:
    rounds, repetitions = (6, 2) if way == "process" else (30, 9)
    repetitions *= 1 if quick else 2
    a, b = (
        spec(f"s{seed}", seed, tasks=1, rounds=rounds, rows=4, features=size // BYTES_PER_FEATURE) for seed in (0, 1)
    )
    runs = [[pool(specs, 1, switch=way, policy="turns") for specs in ([a, b], [a], [b])] for _ in range(repetitions)]
    both, first, second = (min(run[which].slot_s for run in runs) for which in range(3))
    return (both - first - second) / runs[0][0].switches * 1000


def completion(quick: bool, device: str) -> dict[str, Any]:
    """Mean completion times of 16 trainings (on a GPU, if quick: 8) of mixed length, in pools and in processes."""
    chance = random.Random(SEED)
    longest, there = (40 if quick else 400), device == "cuda"
    if there:
        lengths = [chance.randint(longest // 2, 4 * longest) for _ in range(8 if quick else 16)]
        specs = [torch_spec(n, tasks=2, rounds=rounds) for n, rounds in enumerate(lengths)]
    else:
        lengths = [chance.randint(longest // 8, longest) for _ in range(16)]
        settings = {"features": 2000, "rows": 400}
        specs = [spec(f"t{n:02d}", n, tasks=2, rounds=rounds, **settings) for n, rounds in enumerate(lengths)]
    way: dict[str, Any] = {"switch": "ahead"} if there else {}
    several = 4 if there else 2
    sides: dict[str, Callable[[], Any]] = {
        "pool_1": lambda: pool(specs, 1, **way),
        "sequential": lambda: processes(specs, 1, usual=there),
        f"pool_{several}": lambda: pool(specs, several, **way),
        "shared": lambda: processes(specs, several, usual=there),
    }
    # in turns, and the better of two: a machine's speed changes from minute to minute
    rows = [
        {name: watched(name, run, there) for name, run in sides.items()} for _ in range(1 if there and quick else 2)
    ]
    best = {name: min((row[name] for row in rows), key=lambda each: each.mean_s) for name in sides}
    mean_s = {name: each.mean_s for name, each in best.items()}
    one = best["pool_1"].ran
    return {
        "ratio_sequential": mean_s["pool_1"] / mean_s["sequential"],
        "ratio_shared": mean_s[f"pool_{several}"] / mean_s["shared"],
        "idle_share": 1 - one.status.work_s / one.slot_s,
        **{f"mean_s_{name}": each for name, each in mean_s.items()},
        "makespan_s": {name: each.makespan_s for name, each in best.items()},
        "busy_share": {name: each.busy for name, each in best.items()},
    }


@dataclass(frozen=True)
class Side:
    """A way of running all trainings. ran: the pool, if it is one. busy: mean utilization of the GPU; None: unknown."""

    ran: Any
    mean_s: float
    makespan_s: float
    busy: float | None


def watched(name: str, run: Callable[[], Any], there: bool) -> Side:
    """Run, and look at the GPU meanwhile. Says how it went on standard error."""
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200"]
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as seen:
        look = subprocess.Popen(query, stdout=seen) if there else None
        found = run()
        makespan_s = time.monotonic() - began
        if look:
            look.terminate()
            look.wait()
            seen.seek(0)
        shares = [int(line) / 100 for line in seen if line.strip().isdigit()]
    mean_s = found.mean_s if isinstance(found, Ran) else found[0]
    print(f"{name}: mean completion {mean_s:.2f} s, makespan {makespan_s:.2f} s", file=sys.stderr, flush=True)
    return Side(found, mean_s, makespan_s, round(sum(shares) / len(shares), 3) if shares else None)


PARTS = ("equality", "completion", "switching", "modules", "processes")


def figures(quick: bool, device: str, parts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The figures of each part, as it is done."""
    yield {"device": device}
    if "equality" in parts:
        equal, killed = equality(quick, device)
        yield {"bit_equal": equal, "killed": killed}
    if "completion" in parts:
        yield completion(quick, device)
    if "switching" in parts and device == "cpu":
        yield {"switch_ms": switching(quick)}
    if "modules" in parts and find_spec("torch"):
        from benchmarks.pool_trainings import PAPER, timed_models, turns_ms

        yield {"paper_switch_ms": {way: dict(zip(PAPER, row, strict=True)) for way, row in PAPER_MS.items()}}
        yield from ({"module_switch_ms": turns_ms(name, device, quick)} for name in timed_models(device))
    if "processes" in parts and find_spec("torch"):
        from benchmarks.pool_trainings import process_ms, timed_models

        repetitions = 1 if quick else 3
        yield from ({"module_process_ms": {n: process_ms(n, device, repetitions)}} for n in timed_models(device))


def merge(found: dict[str, Any], more: dict[str, Any]) -> None:
    """Put more into what was found, figure by figure."""
    for key, value in more.items():
        if isinstance(value, dict):
            merge(found.setdefault(key, {}), value)
        else:
            found[key] = value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="smaller: two to five minutes")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.update(ONE_CORE)
    if options.train:
        train(read_spec("--train", json.loads(options.train)), options.into)
        return
    found: dict[str, Any] = {}
    try:
        for each in figures(options.quick, options.device, options.parts):
            merge(found, each)
            if not options.json:
                for key, value in each.items():
                    print(f"{key:18} {value:.4g}" if isinstance(value, float) else f"{key:18} {value}", flush=True)
    except KeyboardInterrupt:
        found["interrupted"] = True
    if options.json:
        print(json.dumps(found))
    if "interrupted" in found:
        raise SystemExit(130)


if __name__ == "__main__":
    main()
