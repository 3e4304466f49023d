"""Lower bounds, compared with hand-made schedules."""

import numpy as np
import pytest

from benchmarks.priced_bound import priced_bound
from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import unprofiled
from slurm_asrpt.sim.engine import Result
from slurm_asrpt.sim.job_table import JobTable
from slurm_asrpt.sim.metrics import design_bound, latest_starts, sound_bound, srpt

FABRIC = Fabric(1.25e9, 300e9)


def table(*rows, sizes):
    """rows: (submit, index into sizes, iterations)."""
    submit, profile, iterations = (np.array(column) for column in zip(*rows, strict=True))
    iterations = iterations.astype(float)
    return JobTable(tuple(map(unprofiled, sizes)), submit.astype(float), profile, iterations, iterations)


def test_srpt_by_hand():
    ends = srpt(np.array([0.0, 1.0, 2.0, 20.0]), np.array([5.0, 1.0, 4.0, 1.0]))
    assert ends.tolist() == [6.0, 2.0, 10.0, 21.0]


def test_one_job_is_bounded_by_its_own_length():
    jobs = table((3, 0, 10), sizes=(2,))
    assert design_bound(jobs, [Node("n0", 8)], FABRIC) == pytest.approx(13)
    assert sound_bound(jobs, [Node("n0", 8)], FABRIC) == pytest.approx(13)


def test_full_width_jobs_meet_the_bounds():
    jobs = table((0, 0, 4), (0, 0, 2), sizes=(8,))
    assert design_bound(jobs, [Node("n0", 8)], FABRIC) == pytest.approx(2 + 6)
    assert sound_bound(jobs, [Node("n0", 8)], FABRIC) == pytest.approx(2 + 6)


def test_a_job_too_large_for_the_cluster_is_excluded():
    jobs = table((0, 0, 4), (0, 1, 2), sizes=(16, 8))
    assert design_bound(jobs, [Node("n0", 8)], FABRIC) == pytest.approx(2)


def test_the_design_bound_can_be_beaten_and_the_sound_one_cannot():
    """One narrow long job and fifty wide short ones, which run one at a time beside it."""
    jobs = table((0, 0, 10), *[(0, 1, 0.102)] * 50, sizes=(1, 99))
    nodes = [Node("n0", 100)]
    possible = 10 + sum(0.102 * k for k in range(1, 51))
    assert sound_bound(jobs, nodes, FABRIC) <= possible < design_bound(jobs, nodes, FABRIC)


def test_latest_starts_count_earlier_jobs_that_still_wait():
    submit, start, end = [0.0, 1.0, 1.0, 2.0, 3.0], [0.0, 30.0, 11.0, 12.0, np.nan], [40.0, 31.0, 12.0, 13.0, np.nan]
    table = JobTable((unprofiled(1),), np.array(submit), np.zeros(5, dtype=int), np.ones(5), np.ones(5))
    nodes = np.array([1, 1, 1, 1, 0])
    done = Result(table, np.array(start), np.array(end), np.ones(5), nodes, clock=40.0, events=9, interrupted=False)
    # The longest run is 40 s. Twice the patience is over at 10, 11, 11 and 12 s. At 11 s job 1 is waiting and job 2 has
    # just started, at 12 s only job 1 is waiting. A job holds a server of two GPUs, and a quarter of four may be held.
    step = 2 * 40 * (1 + 2 / (0.25 * 4))
    expected = [10 + step, 11 + step, 11 + 2 * step, 12 + 2 * step, np.nan]
    found = latest_starts(done, patience_s=5.0, late_share=0.25, servers=2, gpus=2)
    assert found.tolist() == pytest.approx(expected, nan_ok=True)


SERVER = [Node("n0", 8)]


def test_prices_bound_a_job_alone_by_its_own_end():
    assert priced_bound(table((3, 0, 10), sizes=(2,)), SERVER, FABRIC, 13) == pytest.approx(13)


def test_prices_bound_jobs_that_take_turns():
    assert 7.9 <= priced_bound(table((0, 0, 4), (0, 0, 2), sizes=(8,)), SERVER, FABRIC, 8) <= 8 + 1e-9


def test_prices_know_that_jobs_do_not_fit_side_by_side():
    """Two jobs of five GPUs for 10 s each: the least sum is 10 + 20. At 0.2 s for each GPU-second of the first 10 s, a
    job costs 20 s at either time, and the 80 GPU-seconds are worth 16 s: 24 s in all, the most with any prices."""
    jobs = table((0, 0, 10), (0, 0, 10), sizes=(5,))
    assert sound_bound(jobs, SERVER, FABRIC) == pytest.approx(22.5)
    assert 23.5 <= priced_bound(jobs, SERVER, FABRIC, 30) <= 24 + 1e-9


def test_prices_leave_out_a_job_that_is_too_large():
    assert priced_bound(table((0, 0, 4), (0, 1, 2), sizes=(16, 8)), SERVER, FABRIC, 2) == pytest.approx(2)
    assert priced_bound(table((0, 0, 4), sizes=(16,)), SERVER, FABRIC, 2) == 0


def test_prices_do_not_depend_on_when_the_clock_starts():
    early, late = ([(at, 0, 10), (at, 0, 10), (at + 2, 1, 1)] for at in (0, 1000))
    found = [priced_bound(table(*rows, sizes=(5, 3)), SERVER, FABRIC, 33 + 3 * rows[0][0]) for rows in (early, late)]
    assert found[1] - 3000 == pytest.approx(found[0])


def test_prices_are_for_gpus_of_one_speed():
    with pytest.raises(ValueError, match="same speed"):
        priced_bound(table((0, 0, 4), sizes=(1,)), [*SERVER, Node("n1", 8, speed=2.0)], FABRIC, 1)
