"""Iteration times computed by hand from (4)-(7)."""

import pytest

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import JobProfile, Stage, unprofiled
from slurm_asrpt.core.timing.pipeline import iteration_time, worst_iteration_time

FABRIC = Fabric(inter=8e6, intra=100e6)  # one GPU of a server of 8 reserves 1 MB/s
DATA_PARALLEL = JobProfile("dp", (Stage(4, 0.1, 0.2, param_bytes=10e6),))
PIPELINE = JobProfile("pp", (Stage(2, 0.1, 0.2, bytes_out=1e6, param_bytes=4e6), Stage(1, 0.5, 0.5, bytes_in=2e6)))


def test_data_parallel_in_one_server_synchronizes_over_the_intra_bandwidth():
    # 2 x 3 x 10 MB / 4 = 15 MB over 100 MB/s
    assert iteration_time(DATA_PARALLEL, [0, 0, 0, 0], [8], FABRIC) == pytest.approx(0.3 + 0.15)


def test_a_split_all_reduce_is_limited_by_the_smallest_share():
    # on the server with one replica: 15 MB over 1/8 of 8 MB/s = 15 s; with three: 5 s
    assert iteration_time(DATA_PARALLEL, [0, 0, 0, 1], [8, 8], FABRIC) == pytest.approx(0.3 + 15)


def test_a_smaller_server_gives_each_gpu_a_larger_share():
    assert iteration_time(DATA_PARALLEL, [0, 0, 0, 1], [8, 4], FABRIC) == pytest.approx(0.3 + 7.5)


def test_pipeline_in_one_server():
    # stage 1: 0.3 + 2 x 1 MB / 100 MB/s + all-reduce 2 x 1 x 4 MB / 2 / 100 MB/s; stage 2: 1 + 2 x 2 MB / 100 MB/s
    assert iteration_time(PIPELINE, [0, 0, 0], [8], FABRIC) == pytest.approx(1.04)


def test_pipeline_cut_between_the_stages():
    # stage 2 alone on its server: 1 + 2 x 2 MB over 1 MB/s; stage 1: 0.3 + 2 x 1 MB over 1 MB/s + 0.04
    assert iteration_time(PIPELINE, [0, 0, 1], [8, 8], FABRIC) == pytest.approx(5.0)


def test_pipeline_cut_through_the_first_stage():
    # stage 2 shares its server with one of two replicas: half its 4 MB leaves at 1 MB/s, half stays at 100 MB/s
    # stage 1 on server 0: 0.3 + 2 MB / 1 MB/s + all-reduce 4 MB / 1 MB/s = 6.3
    assert iteration_time(PIPELINE, [0, 1, 1], [8, 8], FABRIC) == pytest.approx(6.3)
    compute_bound = JobProfile("slow", (PIPELINE.stages[0], Stage(1, 5, 5, bytes_in=2e6)))
    assert iteration_time(compute_bound, [0, 1, 1], [8, 8], FABRIC) == pytest.approx(10 + 2.0 + 0.02)


def test_worst_case_gives_each_replica_its_own_server():
    assert worst_iteration_time(DATA_PARALLEL, 8, FABRIC) == pytest.approx(0.3 + 15)
    assert worst_iteration_time(PIPELINE, 8, FABRIC) == pytest.approx(max(0.3 + 2 + 4, 1 + 4))


def test_a_job_without_a_profile_runs_one_iteration_per_second_anywhere():
    assert iteration_time(unprofiled(3), [0, 1, 2], [8, 8, 8], FABRIC) == 1.0
    assert worst_iteration_time(unprofiled(3), 8, FABRIC) == 1.0


def test_all_replicas_must_be_placed():
    with pytest.raises(ValueError, match="3 ranks for 4 replicas"):
        iteration_time(DATA_PARALLEL, [0, 0, 0], [8], FABRIC)


@pytest.mark.parametrize("bad", [{"replicas": 0}, {"forward_s": -1.0}, {"param_bytes": float("nan")}])
def test_a_stage_rejects_impossible_values(bad):
    with pytest.raises(ValueError, match=r"replica|must be"):
        Stage(**{"replicas": 1, "forward_s": 1.0, "backward_s": 1.0, **bad})
