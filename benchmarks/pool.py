"""asrpt-pool: equality to the bit, what a switch costs, and pools against processes of their own.

python -m benchmarks.pool --json --device cpu --quick

bit_equal: whether the weights of all trainings are equal to the bit in a plain loop, in pools of one and of three
slots, in one whose slots get a new process for each training, and in one whose executors are killed; killed: executors
lost there.
switch_ms: by way to switch and bytes of the state, (time(ABAB...) - time(AA...) - time(BB...)) / switches on one slot,
each time the least of several repetitions, of trainings on numpy arrays. The round trip to the driver is part of it.
module_switch_ms: if there is torch, the same of the tasks of torch modules in one process; on a GPU of the eight models
of Hare's Table III, whose figures are in paper_switch_ms. "one fits": only one may have its parameters on the device.
ratio_sequential: mean completion time in a pool of one slot, over that of plain processes one after the other.
ratio_shared: the same of a pool of two slots, over plain processes two at a time.
idle_share: share of the slot's time, in the pool of one slot, in which it did not work.

Equality is shown on CPUs. --device cuda has not been run on a GPU yet.
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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slurm_asrpt.pool.arrays import Packed
from slurm_asrpt.pool.driver import Driver, Ending, Plan
from slurm_asrpt.pool.folder import CHECKPOINT, PoolFolder
from slurm_asrpt.pool.slurm_job import local_keepers
from slurm_asrpt.pool.snapshot import Checkpoint, Snapshot, read_checkpoint, write_checkpoint
from slurm_asrpt.pool.status import PoolStatus
from slurm_asrpt.pool.sweep import PoolSettings, Spec
from slurm_asrpt.pool.synchronization import RoundSum
from slurm_asrpt.pool.training import load
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


def pool(specs: Sequence[Spec], slots: int, kills: int = 0, **settings: Any) -> Ran:
    """Run a pool to its end. kills: executors to kill, of all slots in turn."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(PoolSettings(**settings), specs, str(CODE), PoolFolder(Path(folder)), local_keepers(slots))
        driver = Driver(plan)
        ending = asyncio.run(_run(driver, slots, kills))
        if ending is not Ending.DONE:
            raise SystemExit(f"the pool ended: {ending}")
        found = {spec.name: read_checkpoint(Path(folder) / "trainings" / spec.name / CHECKPOINT) for spec in specs}
        results = {name: checkpoint.snapshot for name, checkpoint in found.items() if checkpoint}
        return Ran(driver.status("done"), results, driver.board.switches)


async def _run(driver: Driver, slots: int, kills: int) -> Ending:
    killing = asyncio.create_task(_kill(slots, kills))
    ending = await driver.run()
    killing.cancel()
    return ending


async def _kill(slots: int, kills: int) -> None:
    chance = random.Random(SEED)
    for number in range(kills):
        await asyncio.sleep(0.2 + 0.4 * chance.random())
        executors = [child for keeper in _children(os.getpid()) for child in _children(keeper)]
        if executors:
            with suppress(ProcessLookupError):
                os.kill(executors[number % len(executors)], signal.SIGKILL)


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def processes(specs: Sequence[Spec], at_a_time: int) -> tuple[float, dict[str, Snapshot]]:
    """Each training in a plain Python process of its own. Returns the mean completion time, and the results."""
    began, ends, waiting = time.monotonic(), list[float](), deque(specs)
    running: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < at_a_time:
                running.append(_start(waiting.popleft(), Path(folder)))
            ended = [each for each in running if each.poll() is not None]
            ends += [time.monotonic() - began for _ in ended]
            running = [each for each in running if each not in ended]
            time.sleep(0.002)
        found = {spec.name: read_checkpoint(Path(folder) / spec.name) for spec in specs}
    return sum(ends) / len(ends), {name: each.snapshot for name, each in found.items() if each}


def _start(spec: Spec, folder: Path) -> subprocess.Popen[bytes]:
    told = json.dumps(spec.document())
    return subprocess.Popen([sys.executable, "-m", "benchmarks.pool", "--train", told, "--into", str(folder)])


def train(spec: Spec, folder: Path) -> None:
    """What each of the plain processes does: the usual loop, without a pool."""
    training = load(spec.uses, spec.settings, CODE)
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


def equality(quick: bool) -> tuple[bool, int]:
    """Whether all ways of running give the same weights, and how many executors were killed on the way."""
    rounds = 40 if quick else 150
    specs = [spec(f"t{seed}", seed, tasks=3, rounds=rounds, features=999, seconds=0.01) for seed in range(4)]
    short = [spec(f"s{seed}", seed, tasks=2, rounds=4, features=999) for seed in range(2)]
    _, plain = processes(specs, 2)
    killed = pool(specs, 3, kills=8 if quick else 40)
    runs = [pool(specs, 1), pool(specs, 3), killed]
    equal = all(same(run.results, plain) for run in runs)
    equal = equal and same(pool(short, 2, switch="process").results, processes(short, 2)[1])
    return equal, killed.status.lost


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


def completion(quick: bool, device: str) -> dict[str, float]:
    """Mean completion times of 16 trainings of mixed length, in pools and in processes of their own."""
    chance = random.Random(SEED)
    longest = 40 if quick else 400
    if device == "cuda":
        uses, settings = TORCH_USES, {"model": "cnn", "device": device}
    else:
        uses, settings = USES, {"features": 2000, "rows": 400}
    specs = [
        Spec(f"t{n:02d}", uses, {"seed": n, "tasks": 2, "rounds": chance.randint(longest // 8, longest), **settings})
        for n in range(16)
    ]
    way = {"switch": "ahead"} if device == "cuda" else {}
    turns = range(2)  # in turns, and the better of two: a machine's speed changes from minute to minute
    rows = [
        (pool(specs, 1, **way), processes(specs, 1)[0], pool(specs, 2, **way), processes(specs, 2)[0]) for _ in turns
    ]
    one, two = (min((row[at] for row in rows), key=lambda ran: ran.mean_s) for at in (0, 2))
    alone, shared = min(row[1] for row in rows), min(row[3] for row in rows)
    return {
        "ratio_sequential": one.mean_s / alone,
        "ratio_shared": two.mean_s / shared,
        "idle_share": 1 - one.status.work_s / one.slot_s,
        "mean_s_pool_1": one.mean_s,
        "mean_s_pool_2": two.mean_s,
        "mean_s_sequential": alone,
        "mean_s_shared": shared,
    }


def figures(quick: bool, device: str) -> dict[str, Any]:
    equal, killed = equality(quick)
    found = {"device": device, "bit_equal": equal, "killed": killed, **completion(quick, device)}
    found["switch_ms"] = switching(quick)
    if find_spec("torch"):
        from benchmarks.pool_trainings import PAPER, turns_ms

        found["module_switch_ms"] = turns_ms(device, quick)
        found["paper_switch_ms"] = {way: dict(zip(PAPER, row, strict=True)) for way, row in PAPER_MS.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="smaller: two to five minutes")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.update(ONE_CORE)
    if options.train:
        train(Spec.of(json.loads(options.train)), options.into)
        return
    found = figures(options.quick, options.device)
    if options.json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        print(f"{key:18} {value:.4g}" if isinstance(value, float) else f"{key:18} {value}")


if __name__ == "__main__":
    main()
