"""Rank maps: announced before a start, written after it, removed with the job."""

import errno

import pytest

from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.placements import placement_of
from slurm_asrpt.daemon.writes import rank_maps


def make_shared(make_bench):
    """Another job has one of n1's two GPUs: only Slurm knows what a job on n1, n2 and n3 gets there."""
    bench = make_bench(sizes=(2, 4, 1))
    bench.slurm.submit(1, leased=False, required_nodes="n1")
    return bench


def test_an_implausible_allocation_gets_no_rank_map(make_bench):
    """A job's name can look like scontrol's own fields; the daemon must survive that."""
    bench = make_shared(make_bench)
    job_id = bench.slurm.submit(6, profile="tail")
    bench.slurm.allocations = lambda ids: {i: {"n1": 1, "n2": 4, "n9": 8} for i in ids}
    bench.cycle()
    assert not bench.hosts(job_id).exists()
    bench.cycle()
    assert bench.job_state(job_id) is JobState.RUNNING


def test_a_rank_map_is_announced_written_and_finally_removed(make_bench):
    bench = make_shared(make_bench)
    job_id = bench.slurm.submit(6, profile="tail")
    bench.cycle()
    tracked = bench.job(job_id)
    assert tracked.mapped
    hosts = bench.hosts(job_id).read_text(encoding="utf-8").split()
    gpus = bench.slurm.records[job_id].gpus_by_node
    expected = placement_of(tracked, gpus, bench.scheduler.decider.cluster)
    assert hosts == list(expected.ranks)
    assert sorted(hosts) == ["n1"] + ["n2"] * 4 + ["n3"]
    assert not bench.hosts(f"{job_id}.wait").exists()
    assert bench.hosts(job_id).stat().st_mode & 0o777 == 0o644
    bench.cycle()
    assert bench.hosts(job_id).exists()
    bench.slurm.end(job_id)
    bench.cycle()
    assert not bench.hosts(job_id).exists()


def test_the_rank_map_of_a_job_on_whole_nodes_is_written_before_its_start(make_bench):
    bench = make_bench(sizes=(1, 4, 1))
    job_id = bench.slurm.submit(6, profile="tail")
    written, update = [], bench.slurm.update

    def watched(updates):
        written.extend(["ReqNodeList" in each.fields, bench.hosts(job_id).exists()] for each in updates)
        return update(updates)

    bench.slurm.update = watched
    bench.slurm.allocations = lambda ids: pytest.fail(f"asked for {ids}")
    bench.cycle()
    assert written == [[False, False], [True, True]]  # not with the fence, which shows whether the job is still pending
    assert sorted(bench.hosts(job_id).read_text(encoding="utf-8").split()) == ["n1"] + ["n2"] * 4 + ["n3"]
    assert not bench.hosts(f"{job_id}.wait").exists()


def test_a_slow_start_gets_its_rank_map_in_the_next_pause(make_bench):
    bench = make_shared(make_bench)
    job_id = bench.slurm.submit(6, profile="tail")
    bench.slurm.starts_jobs = False
    bench.cycle(seconds=0.5)
    assert not bench.hosts(job_id).exists()
    bench.slurm.starts_jobs = True
    bench.slurm.tick(0.1)
    bench.scheduler.between_cycles(0.5)
    assert bench.hosts(job_id).exists()


def test_a_job_whose_start_was_withdrawn_gets_no_rank_map(make_bench):
    """Its files are removed with its pin; Slurm may start it elsewhere."""
    bench = make_shared(make_bench)
    job_id = bench.slurm.submit(6, profile="tail")
    bench.slurm.starts_jobs = False
    bench.cycle(seconds=0.1)
    bench.job(job_id).state = JobState.INELIGIBLE
    bench.slurm.allocations = lambda ids: pytest.fail(f"asked for {ids}")
    bench.scheduler.between_cycles(0.5)


def test_a_full_spool_only_loses_the_rank_map(make_bench, monkeypatch, caplog):
    """Users write there, too: filling it must not stop scheduling."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "hosts")

    bench = make_shared(make_bench)
    job_id = bench.slurm.submit(6, profile="tail")
    with monkeypatch.context() as patch:
        patch.setattr(rank_maps, "replace_file", full)
        bench.cycle(2)
    assert bench.job(job_id).mapped
    assert bench.job_state(job_id) is JobState.RUNNING
    assert not bench.hosts(job_id).exists()
    assert "No space left" in caplog.text


def test_a_mapped_job_that_starts_late_gets_its_rank_map_when_it_runs(make_bench):
    bench = make_shared(make_bench)
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(6, profile="tail")
    bench.cycle()
    assert bench.hosts(f"{job_id}.wait").exists()
    bench.slurm.starts_jobs = True
    bench.slurm.tick(1)
    bench.cycle()
    assert bench.hosts(job_id).exists()
    assert not bench.hosts(f"{job_id}.wait").exists()


def test_a_withdrawn_start_leaves_no_rank_map_announcement(make_bench):
    bench = make_shared(make_bench)
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(6, profile="tail")
    bench.cycle()
    while bench.job(job_id).failures < 2:
        bench.cycle()
    assert bench.job_state(job_id) is JobState.INELIGIBLE
    assert list(bench.hosts("x").parent.iterdir()) == []


def test_rank_maps_that_cannot_be_removed_are_logged_only(make_bench, caplog):
    """As on a spool that has become read-only."""
    bench = make_shared(make_bench)
    job_id = bench.slurm.submit(6, profile="tail")
    bench.cycle(2)
    bench.hosts(job_id).unlink()
    bench.hosts(job_id).mkdir()
    bench.slurm.end(job_id)
    after = bench.slurm.submit(6, profile="tail")
    bench.cycle(2)
    assert bench.runs()[job_id]
    assert bench.job_state(after) is JobState.RUNNING
    assert str(bench.hosts(job_id)) in caplog.text


@pytest.mark.parametrize("restarted", [False, True])
def test_a_requeued_job_does_not_keep_the_rank_map_of_its_first_run(make_bench, restarted):
    """Otherwise its tasks would be sent to nodes that it no longer has."""
    bench = make_shared(make_bench)
    job_id = bench.slurm.submit(6, profile="tail")
    bench.cycle(2)
    assert bench.hosts(job_id).exists()
    if restarted:
        bench.stop()
    bench.slurm.requeued(job_id)
    if restarted:
        bench.start()
    bench.cycle()
    assert bench.slurm.records[job_id].state == "PENDING"
    assert not bench.hosts(job_id).exists()
