"""The toy examples of the Hare paper (Figs. 5, 9, 10 and 12), with their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from slurm_asrpt.core.convergence import REDUCED
from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.loss_curve import LossCurve
from slurm_asrpt.core.rounds.allox import SchedAllox
from slurm_asrpt.core.rounds.grouping import group
from slurm_asrpt.core.rounds.hlas import Hlas
from slurm_asrpt.core.rounds.jobs import Fleet, Progress, RoundJob, share_out
from slurm_asrpt.core.rounds.policies import make_round_policy
from slurm_asrpt.core.rounds.predictors import Conservative, NoPredictor
from slurm_asrpt.core.rounds.queues import Queues
from slurm_asrpt.sim.rounds import RoundResult, simulate_rounds

ONE = Fleet.of({"gpu": 1})
J_A, J_B = (3.0, 3.0, 1.8, 1.8), (1.0, 2.0, 2.5, 1.0)
"""Fig. 9: seconds per task on GPUs 1 to 4."""


def job(name: str, tasks: int, seconds: Sequence[float], rounds: int = 1, arrival_s: float = 0.0) -> RoundJob:
    return RoundJob(JobId(name), arrival_s, tasks, tuple(seconds), (0.0,) * len(seconds), rounds, model=name)


def play(policy: str, fleet: Fleet, jobs: Sequence[RoundJob], **settings: float) -> RoundResult:
    return simulate_rounds(policy, fleet, jobs, settings)


# Fig. 5: a job of three tasks arrives while three GPUs run a task each, of 1, 2 and 3 s

FIG5 = [job("i", 3, (1.0, 2.0, 3.0)), job("n", 3, (1.0, 1.0, 1.0), arrival_s=0.5)]


def test_relaxed_synchronization_starts_tasks_as_gpus_become_free() -> None:
    three = Fleet.of({"a": 1, "b": 1, "c": 1})
    strict = play("gavel-fifo", three, FIG5)
    relaxed = play("hlas", three, FIG5, groups=3)
    assert strict.end_s.tolist() == [3.0, 4.0]
    assert relaxed.end_s.tolist() == [3.0, 3.0]


# what Algorithm 1 leaves open

FAST_AND_SLOW = Fleet.of({"slow": 1, "fast": 1})
"""GPU 0 takes 4 s per task, GPU 1 takes 1 s."""


@pytest.mark.parametrize("whole", [False, True])
def test_the_fastest_idle_gpu_goes_first(whole: bool) -> None:
    alone = [job("a", 1, (4.0, 1.0))]
    assert play("hlas", FAST_AND_SLOW, alone, groups=2, whole=whole).end_s.tolist() == [1.0]


def test_gpus_of_a_round_become_free_one_by_one_except_those_of_a_gang() -> None:
    jobs = [job("a", 2, (4.0, 1.0)), job("b", 1, (4.0, 1.0), arrival_s=0.5)]
    ends = {
        policy: play(policy, FAST_AND_SLOW, jobs).end_s.tolist() for policy in ("hlas", "2d-las-released", "2d-las")
    }
    assert ends == {"hlas": [4.0, 2.0], "2d-las-released": [4.0, 2.0], "2d-las": [4.0, 8.0]}


def test_a_whole_group_shares_a_round_out_and_takes_the_next_when_all_its_gpus_are_idle() -> None:
    """Fig. 10: six tasks on GPUs with 1 and 2 s are divided into four and two."""
    two = Fleet.of({"1": 1, "2": 1})
    jobs = [job("b", 6, (1.0, 2.0)), job("c", 2, (3.0, 9.0)), job("d", 1, (1.0, 1.0))]
    assert play("hlas", two, jobs, groups=1, whole=True).end_s.tolist() == [4.0, 10.0, 11.0]


# Figs. 9 and 10: the definition of attained service


@pytest.mark.parametrize(
    ("tasks", "times", "gpus", "task_gpu_s"),
    [(4, J_A, (0, 1), 12), (6, J_B, (0, 1), 8), (4, J_A, (2, 3), 7.2), (6, J_B, (2, 3), 9)],
)
def test_task_gpu_time_depends_on_which_gpus_are_idle(
    tasks: int, times: Sequence[float], gpus: Sequence[int], task_gpu_s: float
) -> None:
    seconds = [times[gpu] for gpu in gpus]
    counts = share_out(tasks, seconds)
    assert sum(n * each for n, each in zip(counts, seconds, strict=True)) == pytest.approx(task_gpu_s)


def test_fewer_tasks_do_not_mean_a_shorter_job() -> None:
    """Fig. 9: by tasks, job A (4) would run before B (6), but B first has the lower mean."""
    four = Fleet.of({"1": 1, "2": 1, "3": 1, "4": 1})
    a, b = job("a", 4, J_A), job("b", 6, J_B)
    first_a, first_b = (play("gavel-fifo", four, jobs) for jobs in ([a, b], [b, a]))
    assert first_b.mean_jct_s < first_a.mean_jct_s


def test_the_size_of_a_job_does_not_depend_on_the_group_that_served_it() -> None:
    """T_n is |D_r| over the mean group's speed: 4 / (2/3 + 2/1.8) * 2 groups, and 6 / (1 + 1/2 + 1/2.5 + 1) * 2."""
    fleet = Fleet.of({"1": 1, "2": 1, "3": 1, "4": 1})
    jobs = [job("a", 4, J_A), job("b", 6, J_B)]
    policy = make_round_policy("hlas", fleet=fleet, jobs=jobs, groups=2)
    assert isinstance(policy, Hlas)
    assert policy.round_s(jobs[0]) == pytest.approx(4 * 2 / (2 / 3 + 2 / 1.8))
    assert policy.round_s(jobs[1]) == pytest.approx(6 * 2 / 2.9)


# Fig. 12: three jobs of 2, 3 and 4 rounds on one GPU

FIG12 = [job(f"j{rounds}", 1, (1.0,), rounds) for rounds in (2, 3, 4)]
EACH_ROUND: Mapping[str, float] = {"groups": 1, "first_s": 1.0, "factor": 1.5}
"""Limits 1, 1.5, 2.25, 3.4: one queue for each of the sizes 0 to 3."""


def test_hlas_takes_turns() -> None:
    result = play("hlas", ONE, FIG12, **EACH_ROUND)
    assert result.end_s.tolist() == [4.0, 7.0, 9.0]
    assert round(result.mean_jct_s, 1) == 6.7


def test_with_all_sizes_known_the_shortest_job_runs_first() -> None:
    assert round(play("srtf", ONE, FIG12).mean_jct_s, 1) == 5.3
    assert round(play("hare-offline", ONE, FIG12).mean_jct_s, 1) == 5.3


class _ThirdRunsThreeRounds:
    """Fig. 12(c): it is only known that J3 runs at least three rounds."""

    def predict(self, job: Progress) -> float:
        return 3.0 if job.job.id == "j4" and job.done == 0 else 0.0

    def learn(self, job: Progress) -> None:
        return None


def test_a_bound_on_one_size_gains_most_of_what_all_sizes_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_asrpt.core.rounds.hlas.NoPredictor", _ThirdRunsThreeRounds)
    result = play("hlas", ONE, FIG12, **EACH_ROUND)
    assert result.end_s.tolist() == [3.0, 5.0, 9.0]
    assert round(result.mean_jct_s, 1) == 5.7


# what each policy counts


def test_allox_counts_all_rounds_of_a_job_on_one_gpu() -> None:
    allox = SchedAllox(Fleet.of({"a": 1, "b": 1}), [])
    each = RoundJob(JobId("a"), 0.0, 2, (1.0, 2.0), (0.5, 1.0), rounds=3)
    assert allox.seconds(each).tolist() == [7.5, 15.0]


def test_2d_las_serves_a_new_job_before_one_that_has_run_for_long() -> None:
    old, new = (Progress(job(name, 1, (100.0,), rounds=5), left=1) for name in ("old", "new"))
    las = make_round_policy("2d-las", fleet=ONE, jobs=[], first_s=8.0)
    las.arrived(old, 0.0)
    las.freed([0], 0.0)
    assert [part.progress for part in las.assign(0.0)] == [old]
    las.round_ended(old, 100.0)
    las.arrived(new, 100.0)
    las.freed([0], 100.0)
    assert [part.progress for part in las.assign(100.0)] == [new]


def test_hare_offline_runs_each_task_where_it_ends_first() -> None:
    """The second fast GPU is idle at once, and the slow one would be later."""
    fleet = Fleet(("fast", "slow"), (0, 0, 0, 1))
    assert play("hare-offline", fleet, [job("a", 2, (2.0, 2.5))]).end_s.tolist() == [2.0]


def test_hlas_learns_from_each_job_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    learned = list[str]()

    class Learns(NoPredictor):
        def learn(self, job: Progress) -> None:
            learned.append(job.job.id)

    monkeypatch.setattr("slurm_asrpt.core.rounds.hlas.NoPredictor", Learns)
    play("hlas", ONE, FIG12)
    assert sorted(learned) == ["j2", "j3", "j4"]


def test_no_group_is_empty_though_some_gpus_count_for_nothing() -> None:
    """Relative speeds of 1e-400 are 0."""
    assert group([1, 1, 1], np.array([[1e200, 1e-200, 1e-200]]), 3).sum(axis=1).tolist() == [1, 1, 1]


@pytest.mark.parametrize("counts", [{"a": -1, "b": 2}, {"a": 0}, {}])
def test_a_fleet_has_gpus(counts: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="a fleet needs GPUs"):
        Fleet.of(counts)


@pytest.mark.parametrize(("compute", "sync"), [((1.0, 0.0), (0.0, 0.0)), ((1.0, 1.0), (0.0, -1.0))])
def test_a_round_takes_time_on_each_gpu(compute: tuple[float, ...], sync: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="finite times above 0"):
        RoundJob(JobId("a"), 0.0, 1, compute, sync)


def _curved(name: str, slope: float, search: str = "") -> Progress:
    """A job after 50 rounds, with many to come."""
    curve = LossCurve(slope, 1.0, 0.0, 1e-4)
    return Progress(RoundJob(JobId(name), 0.0, 1, (1.0,), (0.0,), curve=curve, search=search), done=50)


def test_hlas_p_counts_on_a_few_rounds_at_first_and_on_fewer_of_a_job_that_lags_behind() -> None:
    predictor = Conservative(alpha=8)
    assert predictor.predict(_curved("alone", 0.1)) == 8
    fast, slow = _curved("fast", 0.1, "grid"), _curved("slow", 0.001, "grid")
    assert (predictor.predict(fast), predictor.predict(slow)) == (8, 8 * REDUCED)
    predictor.learn(fast)
    assert predictor.predict(slow) == (8 + 0) / 2  # past runs of 50 rounds; nobody is ahead any more


def test_of_jobs_with_predictions_the_one_with_most_rounds_goes_first() -> None:
    queues = Queues([10.0])
    some = {rounds: Progress(job(f"r{rounds}", 1, (1.0,))) for rounds in (2, 5, 0, 3)}
    for rounds, each in some.items():
        queues.add(each, 0.0, rounds)
    assert [queues.pop() for _ in range(5)] == [some[5], some[3], some[2], some[0], None]
