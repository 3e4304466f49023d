"""Figs. 1 to 4, 7 and 8 of Hare's paper, which motivate it: what our models and traces say of them. No seeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from papers.hare.models import MODELS, Model
from papers.report import FAILS, HOLDS, UNTESTED, Measured, Section, Table
from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.rounds.jobs import Fleet, RoundJob
from slurm_asrpt.sim.rounds import RoundResult, simulate_rounds
from slurm_asrpt.traces import read_trace
from slurm_asrpt.traces.samples import NAMED
from slurm_asrpt.traces.statistics import statistics

WORKERS, ROUNDS = 4, 100
"""Figs. 3 and 4: a job with so many tasks per round, and so many rounds."""
MIXES = ({"K80": 4}, {"K80": 2, "T4": 2}, {"K80": 2, "V100": 2}, {"T4": 4}, {"V100": 4})
HEAVY = 2.0
"""A tail with an index below is heavy: its variance is not finite."""


@dataclass(frozen=True)
class Mixed:
    """One mix of GPUs. epoch_s: seconds of ROUNDS rounds. busy: share of the time that each type computes."""

    name: str
    epoch_s: float
    busy: dict[str, float]


@dataclass(frozen=True)
class Tail:
    """A trace. small: share of the jobs below the mean runtime. top: share of GPU time of the largest 10% of jobs.

    hill: Hill's estimate of the tail index of the runtimes.
    """

    name: str
    small: float
    top: float
    hill: float


def introduction() -> list[Section]:
    """The sections of Figs. 1 to 4, 7 and 8."""
    return [_fig1(), _fig2(), _fig3(), _fig7()]


def model(name: str) -> Model:
    """Raises StopIteration for an unknown name."""
    return next(each for each in MODELS if each.name == name)


def _fig1() -> Section:
    types = ("M60", "T4", "V100")
    rows = [[each.name, *(f"{each.speed(kind):.1f}" for kind in types)] for each in MODELS]
    reason = (
        "Measurements on GPUs that we do not have. They are an input here: 2 and 7 for ResNet50 and 2 for GraphSAGE "
        "are the paper's, and the others are assumptions (`papers/hare/models.py`)."
    )
    claim = "A T4 trains ResNet50 2 times as fast as a K80, a V100 7 times, but GraphSAGE only about 2 times."
    return Section(
        "Hare, Fig. 1: speed by GPU", claim, (UNTESTED, [reason]), [Table(["relative to a K80", *types], rows)]
    )


def utilization(one: Model, gpu: str) -> float:
    """The share of a task in which the GPU computes: the part of its time that depends on the GPU."""
    return 1 - (1 - one.scaling) * one.speed(gpu)


def _fig2() -> Section:
    busy = utilization(model("GraphSAGE"), "V100")
    reason = (
        f"A consequence of Fig. 1: if only the part of GraphSAGE that scales is 7 times as fast, the GPU computes for "
        f"{busy:.0%} of the time."
    )
    measured = Measured("utilization of a V100 by GraphSAGE", "below 30%", (busy,))
    claim = "The utilization of a V100 that trains GraphSAGE is below 30%."
    return Section(
        "Hare, Fig. 2: utilization by GraphSAGE", claim, (HOLDS if busy < 0.3 else FAILS, [reason]), [], "", (measured,)
    )


def mixed() -> list[Mixed]:
    """A job of ResNet50's times on four GPUs of each mix, synchronized in rounds by a gang."""
    return [_mixed(mix) for mix in MIXES]


def _mixed(mix: dict[str, int]) -> Mixed:
    fleet, one = Fleet.of(mix), model("ResNet50")
    compute_s = tuple(one.compute_s(kind) for kind in fleet.types)
    job = RoundJob(JobId("0"), 0.0, WORKERS, compute_s, (one.sync_s(),) * len(mix), ROUNDS, model=one.name)
    ran: RoundResult = simulate_rounds("gavel-fifo", fleet, [job])
    epoch_s = float(ran.end_s[0])
    busy = {
        kind: float(ran.busy_s[np.array(fleet.kind) == number].mean()) / epoch_s
        for number, kind in enumerate(fleet.types)
    }
    return Mixed(" + ".join(f"{number} {kind}" for kind, number in mix.items()), epoch_s, busy)


def _fig3() -> Section:
    slow, *_ = found = mixed()
    both = found[1:3]
    gain = max(slow.epoch_s / one.epoch_s for one in both)
    idle = found[2].busy
    status = HOLDS if gain < 1.01 and idle["V100"] < 0.5 < idle["K80"] else FAILS
    sentences = [
        f"With ResNet50's times, two faster GPUs in place of two of four K80 make an epoch {gain:.2f} times as fast. "
        f"Of the mix with V100, the K80 compute for {idle['K80']:.0%} of the time, the V100 for {idle['V100']:.0%}."
    ]
    rows = [
        [one.name, f"{one.epoch_s:.1f}", ", ".join(f"{kind} {share:.0%}" for kind, share in one.busy.items())]
        for one in found
    ]
    measured = (
        Measured("speed with faster GPUs in the mix, relative to K80 only", "1", (gain,)),
        Measured("utilization of the V100 beside K80", "rarely over 50%", (idle["V100"],)),
    )
    return Section(
        "Hare, Figs. 3 and 4: mixes of GPUs",
        "To a pure K80 cluster, faster T4 or V100 bring no acceleration; the K80 are always busy, the V100 rarely over "
        "50% (ResNet152).",
        (status, sentences),
        [Table(["mix", f"{ROUNDS} rounds, s", "utilization"], rows)],
        "",
        measured,
    )


def tails() -> list[Tail]:
    """The tails of the trace samples in this repository."""
    return [_tail(name) for name in NAMED]


def _tail(name: str) -> Tail:
    trace = read_trace(NAMED[name])
    tail, seconds = statistics(trace)["tail"], trace.jobs["duration_s"].to_numpy()
    return Tail(name, float((seconds < seconds.mean()).mean()), tail["top_10_percent"], tail["hill_index"])


def _fig7() -> Section:
    found = tails()
    status = HOLDS if all(one.hill < HEAVY and one.top > 0.5 < one.small for one in found) else FAILS
    rows = [[one.name, f"{one.small:.0%}", f"{one.top:.0%}", f"{one.hill:.2f}"] for one in found]
    sentence = (
        "The paper's Google trace names no training jobs; these are the samples of three GPU clusters "
        f"(`slurm_asrpt/traces/samples`). A tail index below {HEAVY:g} is heavy."
    )
    return Section(
        "Hare, Figs. 7 and 8: durations in the trace",
        "Many jobs are small, and a few large jobs occupy most of the GPU time: a heavy tail.",
        (status, [sentence]),
        [Table(["trace", "jobs below the mean", "GPU time of the largest 10%", "tail index"], rows)],
        "",
        tuple(Measured(f"GPU time of the largest 10% of jobs, {one.name}", "most", (one.top,)) for one in found),
    )
