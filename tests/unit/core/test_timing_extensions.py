"""Synchronous pipelines, overlap, tensor slices and experts, computed by hand."""

import pytest

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import JobProfile, Overlap, Pipeline, Stage
from slurm_asrpt.core.timing.pipeline import iteration_time, worst_iteration_time

FABRIC = Fabric(inter=8e6, intra=100e6)  # one GPU of a server of 8 reserves 1 MB/s
STAGES = (Stage(1, 1.0, 2.0, bytes_out=1e6), Stage(1, 2.0, 4.0, bytes_in=1e6))


def synchronous(micro_batches, stages=STAGES):
    return JobProfile("sync", stages, pipeline=Pipeline.SYNCHRONOUS, micro_batches=micro_batches)


def test_one_micro_batch_passes_all_stages_in_turn():
    # comm of each stage: 2 MB over 100 MB/s = 0.02; forward 1 + 2, backward 2 + 4, and both communications
    assert iteration_time(synchronous(1), [0, 0], [8], FABRIC) == pytest.approx(9 + 2 * 0.02)


def test_micro_batches_fill_and_drain_the_pipeline():
    # two halves: f = .505, 1.005; b = 1.005, 2.005; forward 1.51 + 1.005; backward 3.01 + 2.005
    assert iteration_time(synchronous(2), [0, 0], [8], FABRIC) == pytest.approx(2.515 + 5.015)


def test_many_micro_batches_approach_the_slowest_stage():
    assert iteration_time(synchronous(10_000), [0, 0], [8], FABRIC) == pytest.approx(6.02, rel=1e-3)


def test_a_stage_synchronizes_while_earlier_ones_still_drain():
    # the last stage ends after 4 s of backward, stage 1 after 6; its all-reduce of 1 s (100 MB x 2 x 1 / 2) hides
    last = Stage(2, 2.0, 4.0, param_bytes=100e6)
    hidden = iteration_time(synchronous(1, (Stage(1, 1.0, 2.0), last)), [0, 0, 0], [8], FABRIC)
    assert hidden == pytest.approx(9.0)
    first = Stage(2, 1.0, 2.0, param_bytes=100e6)
    assert iteration_time(synchronous(1, (first, Stage(1, 2.0, 4.0))), [0, 0, 0], [8], FABRIC) == pytest.approx(10.0)


def test_a_barrier_waits_for_the_slowest_server_of_each_stage():
    # stage 2 has a replica beside stage 1 (2 MB over 100 MB/s) and one apart (2 MB over 1 MB/s): the latter counts.
    # stage 1: half of its 4 MB stays, half leaves: 2 + 0.02
    stages = (Stage(1, 1.0, 2.0, bytes_out=2e6), Stage(2, 2.0, 4.0, bytes_in=1e6))
    assert iteration_time(synchronous(1, stages), [0, 0, 1], [8, 8], FABRIC) == pytest.approx(9 + 2.02 + 2)


def test_a_synchronous_iteration_is_never_faster_than_the_bottleneck():
    asynchronous = JobProfile("async", STAGES)
    for ranks in ([0, 0], [0, 1]):
        bottleneck = iteration_time(asynchronous, ranks, [8, 8], FABRIC)
        assert iteration_time(synchronous(4), ranks, [8, 8], FABRIC) > bottleneck


def test_overlap_coefficients_scale_the_backward_pass_and_the_all_reduce():
    stage = Stage(4, 0.1, 0.2, param_bytes=10e6)
    profile = JobProfile("dp", (stage,), overlap=Overlap(backward=1.5, allreduce=0.2))
    # as in test_timing: 15 MB over 100 MB/s = 0.15 s
    assert iteration_time(profile, [0] * 4, [8], FABRIC) == pytest.approx(0.1 + 1.5 * 0.2 + 0.2 * 0.15)


def test_tensor_slices_all_reduce_inside_and_share_outgoing_traffic():
    # two replicas of two slices. slices: 2 x 1/2 x 4 MB over 100 MB/s = 0.04 s.
    # gradients 2 x 1 x 6 MB / 2 = 6 MB: apart over two GPUs' 2 MB/s = 3 s, together over two links = 0.03 s
    profile = JobProfile("tp", (Stage(2, 1.0, 2.0, param_bytes=6e6, tensor_bytes=4e6),), tensor=2)
    assert profile.gpus == 4
    assert iteration_time(profile, [0, 0, 1, 1], [8, 8], FABRIC) == pytest.approx(3 + 0.04 + 3)
    assert iteration_time(profile, [0] * 4, [8], FABRIC) == pytest.approx(3 + 0.04 + 0.03)
    assert worst_iteration_time(profile, 8, FABRIC) == pytest.approx(6.04)


def test_tensor_slices_must_share_a_server():
    profile = JobProfile("tp", (Stage(2, 1.0, 2.0),), tensor=2)
    with pytest.raises(ValueError, match="several servers"):
        iteration_time(profile, [0, 1, 0, 1], [8, 8], FABRIC)


def test_experts_exchange_tokens_by_average_routing_shares():
    stage = Stage(3, 1.0, 1.0, routed_bytes=1e6, routing=(0.5, 0.25, 0.25))
    profile = JobProfile("moe", (stage,))
    # inside one server the hot expert's replica moves 4 MB x (0.5 of its own tokens + 2 x 0.5 of others') = 6 MB
    assert iteration_time(profile, [0, 0, 0], [8], FABRIC) == pytest.approx(2 + 0.06)
    # the hot replica alone: all 6 MB over 1 MB/s
    assert iteration_time(profile, [0, 1, 1], [8, 8], FABRIC) == pytest.approx(2 + 6)
    # with a cold one: 4 x (0.25 + 0.5) = 3 MB leave and 3 MB stay; the single cold one: 4 x (0.75 + 2 x 0.25) = 5 MB
    assert iteration_time(profile, [0, 0, 1], [8, 8], FABRIC) == pytest.approx(2 + 5)


@pytest.mark.parametrize("routing", [(0.5, 0.5), (0.5, 0.4, 0.2), (1.2, -0.1, -0.1)])
def test_routing_shares_must_be_one_per_replica_and_sum_to_one(routing):
    with pytest.raises(ValueError, match="routing shares"):
        Stage(3, 1.0, 1.0, routing=routing)


@pytest.mark.parametrize("bad", [{"tensor": 0}, {"micro_batches": 0}])
def test_a_profile_rejects_impossible_values(bad):
    with pytest.raises(ValueError, match="at least 1"):
        JobProfile("bad", STAGES, **bad)


def test_an_overlap_coefficient_is_not_negative():
    with pytest.raises(ValueError, match="allreduce"):
        Overlap(allreduce=-0.1)
