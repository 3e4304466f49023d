"""Rounds on mixed GPUs: invariants of every policy, and the grouping of GPUs."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.hare.exact_grouping import group_exactly
from papers.hare.workload import curve_for
from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.loss_curve import LossCurve, fit, observed
from slurm_asrpt.core.rounds.grouping import gap, group, members, relative
from slurm_asrpt.core.rounds.jobs import Fleet, RoundJob, share_out
from slurm_asrpt.core.rounds.policies import round_policy_names
from slurm_asrpt.sim import rounds as engine
from slurm_asrpt.sim.rounds import simulate_rounds

fleets = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(
    lambda counts: Fleet.of({f"t{kind}": number for kind, number in enumerate(counts)})
)
seconds = st.sampled_from([0.5, 1.0, 1.5, 4.0])


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Fleet, list[RoundJob]]:
    fleet = draw(fleets)
    kinds = len(fleet.types)
    jobs = []
    for number in range(draw(st.integers(1, 6))):
        rounds = draw(st.integers(1, 6))
        jobs.append(
            RoundJob(
                JobId(str(number)),
                draw(st.sampled_from([0.0, 0.7, 3.0])),
                draw(st.integers(1, 6)),
                tuple(draw(seconds) for _ in range(kinds)),
                tuple(draw(st.sampled_from([0.0, 0.25])) for _ in range(kinds)),
                rounds,
                weight=draw(st.sampled_from([1.0, 3.0])),
                model=f"m{number}",
                history=draw(st.sampled_from(["u1", "u2"])),
                curve=curve_for(rounds, 0.1, 2.0, 1.0, 0.01, number),
            )
        )
    return fleet, jobs


class _Watch(engine.Run):
    """Records starts."""

    log: list[tuple[float, float, int, str, int]]

    def start(self, part: engine.Part, now: float) -> None:
        for gpu, tasks in zip(part.gpus, part.tasks, strict=True):
            each = part.progress.job.compute_s[self.fleet.kind[gpu]]
            type(self).log.append((now, now + tasks * each, gpu, part.progress.job.id, tasks))
        super().start(part, now)


@pytest.mark.parametrize("policy", round_policy_names())
@given(world=worlds())
def test_every_task_runs_once_on_its_own_gpu_after_the_previous_round(
    policy: str, world: tuple[Fleet, list[RoundJob]], monkeypatch_once: None
) -> None:
    fleet, jobs = world
    _Watch.log = []
    result = simulate_rounds(policy, fleet, jobs)
    by_gpu, by_job = defaultdict(list), defaultdict(list)
    for begin, end, gpu, name, tasks in _Watch.log:
        by_gpu[gpu].append((begin, end))
        by_job[name].append((begin, end, tasks))
    for spans in by_gpu.values():
        assert all(end <= begin + 1e-9 for (_, end), (begin, _) in itertools.pairwise(sorted(spans)))
    for job, end_s in zip(jobs, result.end_s, strict=True):
        _check_rounds(job, sorted(by_job[job.id]), float(end_s))
    assert result.rounds == sum(job.rounds or 0 for job in jobs)


def _check_rounds(job: RoundJob, parts: list[tuple[float, float, int]], end_s: float) -> None:
    """Tasks run in rounds of |D_r|; none starts before the previous round has ended."""
    assert parts[0][0] >= job.arrival_s
    done, ended, latest = 0, 0.0, 0.0
    for begin, end, tasks in parts:
        if done and done % job.tasks == 0:
            ended = latest
        assert begin >= ended - 1e-9
        done += tasks
        latest = max(latest, end)
    assert done == job.tasks * (job.rounds or 0)
    assert end_s >= latest - 1e-9


@pytest.fixture(scope="module")
def monkeypatch_once() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "Run", _Watch)
        yield


@given(tasks=st.integers(1, 30), times=st.lists(st.sampled_from([1.0, 1.5, 2.0, 7.0]), min_size=1, max_size=5))
def test_task_distribution_is_optimal(tasks: int, times: list[float]) -> None:
    counts = share_out(tasks, times)
    assert sum(counts) == tasks
    end = max(n * each for n, each in zip(counts, times, strict=True))
    assert sum(int((end - 1e-6) // each) for each in times) < tasks, "another distribution would end earlier"


speeds = st.lists(st.lists(st.floats(0.1, 10), min_size=2, max_size=2), min_size=1, max_size=3).map(np.array)


@given(counts=st.tuples(st.integers(1, 6), st.integers(0, 6)), speeds=speeds, share=st.floats(0, 1))
def test_grouping_uses_each_gpu_once(counts: tuple[int, int], speeds: np.ndarray, share: float) -> None:
    groups = 1 + int(share * (sum(counts) - 1))
    found = group(counts, speeds, groups)
    assert found.sum(axis=0).tolist() == list(counts)
    assert found.sum(axis=1).min() >= 1
    kind = Fleet.of({"a": counts[0], "b": counts[1]}).kind
    assert sorted(itertools.chain(*members(found, kind))) == list(range(sum(counts)))


def test_the_heuristic_against_the_exact_grouping() -> None:
    rng = np.random.default_rng(3)
    for counts, groups in (((4, 3), 2), ((5, 2), 3), ((6, 6), 4)):
        speeds = rng.uniform(1, 7, (3, 2))
        exact = gap(group_exactly(counts, speeds, groups), relative(speeds, counts))
        assert exact <= gap(group(counts, speeds, groups), relative(speeds, counts)) + 1e-6


@given(rounds=st.integers(20, 5000), start=st.floats(1, 5), floor=st.floats(0, 3))
def test_a_noiseless_loss_curve_is_fitted_exactly(rounds: int, start: float, floor: float) -> None:
    curve = curve_for(rounds, 0.1, start, floor, 0.0, 1)
    assert isinstance(curve, LossCurve)
    assert curve.rounds == rounds
    found = fit(*observed(curve, rounds // 2), curve.stop)
    assert found is not None
    assert found.loss(rounds) == pytest.approx(curve.loss(rounds), rel=0.2, abs=0.1)
