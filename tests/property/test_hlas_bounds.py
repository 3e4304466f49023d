"""Invariants of HLAS for any arrivals: bounds, order, and no work lost or repeated."""

from hypothesis import given
from hypothesis import strategies as st

from tests.benches.hlas import HlasBench, simulated_job

JOBS = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 60), st.integers(0, 40), st.booleans()), min_size=1, max_size=14
)
SIZES = st.lists(st.sampled_from([2, 4]), min_size=2, max_size=3)


@given(
    SIZES,
    JOBS,
    st.integers(0, 3),
    st.sampled_from([0.0, 3.0]),
    st.sampled_from([0.5, 4.0]),
    st.sampled_from([2.0, 600.0]),
)
def test_bounds_hold_and_each_iteration_runs_once(sizes, rows, most, min_run_s, grace_s, reserve_after_s):
    """The bench checks each start (FIFO in a queue) and each preemption (a job of an earlier queue that fits)."""
    bench = HlasBench(
        sizes,
        grace_s,
        queues=4,
        first_gpu_s=8.0,
        factor=3.0,
        max_interruptions=most,
        min_run_s=min_run_s,
        reserve_after_s=reserve_after_s,
    )
    lives = [
        simulated_job(str(n), min(gpus, sum(sizes)), float(gpus * seconds), float(submit), opted_in)
        for n, (gpus, seconds, submit, opted_in) in enumerate(rows)
    ]
    played(bench, lives, sizes, most, min_run_s)


def played(bench, lives, sizes, most, min_run_s):
    """Play the jobs to the end, and check each of them."""
    done = bench.play(lives)
    assert {each.job.id for each in done} == {each.job.id for each in lives}
    assert bench.view.total_free == sum(sizes)
    for each in lives:
        assert each.interruptions <= (most if each.opted_in else 0)
        served = sum(end - begin for begin, end in each.ran) * each.job.gpus
        assert abs(served - each.work) < 1e-6, "attained service is the work, over all runs together"
        assert len(each.ran) <= each.interruptions + 1
        assert all(end - begin >= min_run_s - 1e-9 for begin, end in each.ran[:-1])


@given(SIZES, JOBS)
def test_without_preemptible_jobs_hlas_is_fifo(sizes, rows):
    def ends(policy_most: int, first_gpu_s: float) -> dict[str, float]:
        bench = HlasBench(sizes, first_gpu_s=first_gpu_s, max_interruptions=policy_most)
        lives = [
            simulated_job(str(n), min(g, sum(sizes)), float(g * s), float(t), False)
            for n, (g, s, t, _) in enumerate(rows)
        ]
        return {str(each.job.id): each.ran[-1][1] for each in bench.play(lives)}

    assert ends(3, 1.0) == ends(0, 1e9)


@given(SIZES, JOBS, st.lists(st.sampled_from([0.0, 1.0, 9.0, 30.0, 1e6]), min_size=14, max_size=14), st.integers(0, 3))
def test_bounds_hold_for_any_predicted_sizes(sizes, rows, expected, most):
    """HLAS-P, with predictions that may be wrong: the bench checks starts and preemptions by these sizes."""
    settings = {"queues": 4, "first_gpu_s": 8.0, "factor": 3.0, "min_run_s": 3.0, "reserve_after_s": 1e9}
    bench = HlasBench(sizes, 0.5, max_interruptions=most, predict="loss", **settings)
    lives = [
        simulated_job(str(n), min(gpus, sum(sizes)), float(gpus * seconds), float(submit), opted_in)
        for n, (gpus, seconds, submit, opted_in) in enumerate(rows)
    ]
    for each, size in zip(lives, expected, strict=False):
        each.expected = size
    played(bench, lives, sizes, most, 3.0)


@given(SIZES, JOBS)
def test_without_predictions_hlas_p_is_hlas(sizes, rows):
    def ends(predict: str) -> dict[str, float]:
        bench = HlasBench(sizes, first_gpu_s=8.0, min_run_s=3.0, predict=predict)
        lives = [
            simulated_job(str(n), min(g, sum(sizes)), float(g * s), float(t), opted_in)
            for n, (g, s, t, opted_in) in enumerate(rows)
        ]
        return {str(each.job.id): each.ran[-1][1] for each in bench.play(lives)}

    assert ends("loss") == ends("none")
