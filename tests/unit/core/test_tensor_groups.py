"""Jobs with tensor slices: whole groups on a server in selection and daemon, although Slurm splits GPU by GPU."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.job import ANYWHERE, Job, JobId, JobProfile, Request, Stage
from slurm_asrpt.core.placement.best_alpha import best_alpha, fits, worst_alpha
from slurm_asrpt.core.placement.selection import Strategy, place
from slurm_asrpt.core.placement.splitter import fill
from slurm_asrpt.core.policies import make_policy, policy_names
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.history.store import Source
from slurm_asrpt.status.reason_texts import text_of
from tests.benches.daemon import SLICED

FABRIC = Fabric(1.25e9, 300e9)


def job(replicas, tensor, request=ANYWHERE):
    profile = JobProfile("tp", (Stage(replicas, 1.0, 1.0, param_bytes=1e9),), tensor=tensor)
    return Job(JobId("1"), "ann", profile.gpus, profile, request=request)


def view(*free, gpus=8):
    nodes = [Node(f"n{i}", gpus, i) for i in range(1, len(free) + 1)]
    return ClusterView(nodes, {n.name: f for n, f in zip(nodes, free, strict=True)})


@pytest.mark.parametrize(
    ("request_", "unit", "step"),
    [
        (ANYWHERE, 4, 1),
        (Request(unit=2), 4, 2),
        (Request(unit=4), 4, 0),
        (Request(unit=8), 8, 0),
        (Request(unit=6), 12, 6),
        (Request(per_node=8), 1, 0),
    ],
)
def test_a_request_in_whole_groups(request_, unit, step):
    found = job(6, 4, request_).request
    assert (found.unit, found.step) == (unit, step)
    assert found.in_groups(4) == found


def test_a_request_that_separates_the_groups_is_rejected():
    with pytest.raises(ValueError, match="6 GPUs per node part groups of 4"):
        job(6, 4, Request(per_node=6))


@pytest.mark.parametrize(
    ("free", "replicas", "expected"),
    [
        ((4, 4), 4, {"n1": 4, "n2": 4}),
        ((7, 3), 3, {"n1": 6}),  # one server: Slurm allocates as requested
        ((5, 5), 4, None),  # Slurm would split 5 and 3
        ((5, 4), 4, None),  # also 5 and 3
        ((4, 5), 4, {"n1": 4, "n2": 4}),  # the odd server is last
        ((5, 4, 4), 4, {"n2": 4, "n3": 4}),
        ((1, 1, 1, 1), 2, None),  # four GPUs, but no pair
        ((3, 3, 2, 2), 2, {"n3": 2, "n4": 2}),
    ],
)
def test_servers_on_which_slurms_split_keeps_pairs(free, replicas, expected):
    found = place(view(*free), job(replicas, 2), Strategy.MOST_FREE, FABRIC)
    assert (None if found is None else found.gpus) == expected


requests = st.builds(
    Request,
    unit=st.sampled_from([1, 1, 2, 3]),
    min_nodes=st.integers(1, 3),
    max_nodes=st.sampled_from([None, 1, 2, 4]),
)


@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=6),
    st.sampled_from([1, 2, 4, 6]),
    st.sampled_from([2, 3, 4]),
    requests,
    st.sampled_from(list(Strategy)),
)
def test_every_placement_equals_slurms_split_and_keeps_slices_together(free, replicas, tensor, request, strategy):
    if replicas * tensor % request.unit:
        return
    one, cluster = job(replicas, tensor, request), view(*free)
    found = place(cluster, one, strategy, FABRIC)
    if found is None:
        return
    tasks = [cluster.free[name] // request.unit for name in found.gpus]
    split = fill(tasks, one.gpus // request.unit)
    assert split is not None
    assert tuple(count * request.unit for count in split) == tuple(found.gpus.values())
    assert all(count % tensor == 0 for count in found.gpus.values())
    groups = [found.ranks[i : i + tensor] for i in range(0, one.gpus, tensor)]
    assert all(len(set(group)) == 1 for group in groups)


@given(st.integers(1, 6), st.sampled_from([2, 4, 8]), st.integers(1, 12))
def test_every_job_that_fits_is_placed_on_an_idle_homogeneous_cluster(servers, tensor, replicas):
    cluster, one = view(*[8] * servers), job(replicas, tensor)
    assert fits(one, cluster.nodes) == (place(cluster, one, Strategy.MOST_FREE, FABRIC) is not None)
    if fits(one, cluster.nodes):
        assert best_alpha(one, cluster.nodes, FABRIC) <= worst_alpha(one, cluster.nodes, FABRIC) * (1 + 1e-9)


@pytest.mark.parametrize("name", policy_names())
def test_every_policy_waits_for_whole_groups(name):
    policy, cluster = make_policy(name, fabric=FABRIC), view(1, 1, 3, 3, gpus=4)
    policy.cluster_changed(cluster.nodes, 0.0)
    policy.submitted(job(4, 2), 0.0)
    assert not [d for d in policy.decide(cluster, 1.0) if hasattr(d, "placement")]
    assert text_of(policy.queue(1.0)[0][1])
    cluster.give({"n3": 1, "n4": 1})
    (start,) = policy.decide(cluster, 2.0)
    assert start.placement.gpus == {"n3": 4, "n4": 4}


# the daemon


def test_a_tensor_parallel_job_waits_for_whole_groups(make_bench):
    bench = make_bench((4, 4, 4))
    small = [bench.slurm.submit(3) for _ in range(3)]
    bench.cycle(2)
    job_id = bench.slurm.submit(8, profile="sliced")
    bench.slurm.end(small[0])
    bench.cycle(2)
    assert bench.job(job_id).job.request.unit == 2
    row = {r.job_id: r for r in bench.status(bench.slurm.now).jobs}[job_id]
    assert row.text == "needs 8 GPUs, 6 free for it"
    bench.slurm.end(small[1])
    bench.cycle(4)
    assert bench.job_state(job_id) is JobState.RUNNING
    given_ = bench.slurm.records[job_id].gpus_by_node
    assert sorted(given_.values()) == [4, 4]
    assert bench.job(job_id).placement.alpha > 0


@pytest.mark.parametrize(
    ("sizes", "fields"),
    [
        ((3, 3, 3, 3), {}),  # no two servers hold it in pairs, Slurm would separate them: it would wait forever
        ((4, 4, 4), {"tres_per_task": "", "tres_per_node": "gres:gpu:1", "min_nodes": 8}),
        ((4, 4, 4), {"min_nodes": 3}),  # Slurm splits 4, 3 and 1
    ],
)
def test_a_request_that_separates_the_slices_runs_as_an_unprofiled_job(make_bench, sizes, fields):
    bench = make_bench(sizes)
    job_id = bench.slurm.submit(8, profile="sliced", **fields)
    bench.cycle(3)
    assert not bench.job(job_id).job.profiled
    assert "2 GPUs a replica on one server" in bench.profiles.problems["sliced"][0]
    if "tres_per_node" not in fields:
        assert bench.state(job_id) == "RUNNING"


def test_gpus_per_task_and_slices_are_kept_together(make_bench):
    bench = make_bench((8, 8))
    job_id = bench.slurm.submit(8, profile="sliced", tasks=2, tres_per_task="gres:gpu:4")
    bench.slurm.starts_jobs = False
    bench.cycle()
    assert bench.job(job_id).job.request.unit == 4
    assert bench.job(job_id).job.request.step == 0


def test_a_job_that_slurm_started_with_separated_slices_is_recorded(make_bench):
    bench = make_bench((3, 3, 4))
    job_id = bench.slurm.submit(8, profile="sliced", leased=False, admin_comment="")
    bench.slurm.change(job_id, admin_comment="asrpt1:g=0123456789abcdef;n=5;p=sliced")
    assert bench.state(job_id) == "RUNNING"  # Slurm started it first
    bench.cycle(10)
    assert any(count % SLICED.tensor for count in bench.slurm.records[job_id].gpus_by_node.values())
    assert bench.job(job_id).placement is None
    bench.status(bench.slurm.now)
    bench.slurm.end(job_id)
    bench.cycle()
    run = bench.runs()[job_id]
    assert (run.gpus, run.iterations_source) == (8, Source.NONE)


def test_slices_separated_by_our_start_get_no_rank_map(make_bench, monkeypatch):
    """Slurm allocated other GPUs than planned: no rank map, and no job waits for one."""
    bench = make_bench((8, 8))
    job_id = bench.slurm.submit(8, profile="sliced")
    bench.slurm.starts_jobs = False
    bench.cycle()
    tracked = bench.job(job_id)
    tracked.pin.gpus.clear()
    tracked.pin.gpus.update({"n1": 5, "n2": 3})
    tracked.mapped = True
    monkeypatch.setattr(type(bench.slurm), "allocations", lambda self, ids: {job_id: {"n1": 5, "n2": 3}})
    bench.scheduler.between_cycles(1.0)
    assert not bench.hosts(job_id).exists()
    assert not bench.hosts(job_id).with_name(f"{job_id}.wait").exists()
