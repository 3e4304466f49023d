"""Server selection and Slurm's splitter."""

import json

import pytest

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Placement
from slurm_asrpt.core.free_index import Plan
from slurm_asrpt.core.job import Job, JobId, JobProfile, Request, Stage, unprofiled
from slurm_asrpt.core.placement.best_alpha import best_alpha, best_counts, fits
from slurm_asrpt.core.placement.selection import Strategy, place
from slurm_asrpt.core.placement.splitter import Split, fill
from slurm_asrpt.core.policies.saved_amounts import amounts_of, read_amounts

FABRIC = Fabric(1.25e9, 300e9)


def view(*free, gpus=8, **more):
    nodes = [Node(f"n{i}", gpus, i) for i in range(1, len(free) + 1)]
    return ClusterView(nodes, {n.name: f for n, f in zip(nodes, free, strict=True)}, **more)


def job(gpus, **request):
    return Job(JobId("1"), "ann", gpus, unprofiled(gpus), request=Request(**request))


def chosen(cluster, wanted, strategy):
    placement = place(cluster, wanted, strategy, FABRIC)
    return None if placement is None else dict(placement.gpus)


@pytest.mark.parametrize(
    ("free", "gpus", "expected"),
    [
        ((4, 3, 3), 8, (4, 3, 1)),  # both measured on Slurm 22.05
        ((4, 3, 3), 6, (4, 1, 1)),
        ((1, 8), 5, (1, 4)),
        ((8, 8), 2, (1, 1)),
        ((8,), 9, None),
        ((8, 8, 8), 2, None),
        ((0, 8), 4, None),
        ((), 1, None),
    ],
)
def test_fill(free, gpus, expected):
    assert fill(free, gpus) == expected


def test_most_free_uses_the_fewest_and_freest_servers():
    assert chosen(view(4, 1, 8, 1), job(6), Strategy.MOST_FREE) == {"n3": 6}
    assert chosen(view(1, 4, 1), job(6), Strategy.MOST_FREE) == {"n1": 1, "n2": 4, "n3": 1}


def test_the_partial_server_is_the_last_of_its_equals_so_that_slurm_splits_as_planned():
    assert chosen(view(8, 8, 8), job(12), Strategy.MOST_FREE) == {"n1": 8, "n3": 4}


def test_the_split_is_slurms_not_the_ideal_one():
    # n1 has 4 and is first in the table: Slurm uses all of it before n2
    assert chosen(view(4, 8), job(10), Strategy.MOST_FREE) == {"n1": 4, "n2": 6}


@pytest.mark.parametrize(
    ("free", "gpus", "strategy", "paper", "slurm"),
    [
        ((6, 8), 12, Strategy.MOST_FREE, {"n1": 4, "n2": 8}, {"n1": 6, "n2": 6}),
        ((5, 2, 1), 4, Strategy.LEAST_FREE, {"n1": 1, "n2": 2, "n3": 1}, {"n1": 2, "n2": 1, "n3": 1}),
        ((2, 8, 8), 11, Strategy.MOST_FREE, {"n2": 8, "n3": 3}, {"n2": 8, "n3": 3}),
    ],
)
def test_the_paper_takes_gpus_in_the_order_of_selection_and_slurm_in_that_of_the_table(
    free, gpus, strategy, paper, slurm
):
    """Lines 9 and 22 of Algorithm 1: all free GPUs of a server before those of the next one."""
    assert chosen(view(*free, split=Split.PAPER), job(gpus), strategy) == paper
    assert chosen(view(*free), job(gpus), strategy) == slurm


def test_requested_node_counts_and_units_hold_with_the_papers_split():
    paper = view(8, 8, 6, split=Split.PAPER)
    assert chosen(paper, job(4, min_nodes=2, max_nodes=2), Strategy.MOST_FREE) == {"n1": 3, "n2": 1}
    assert chosen(paper, job(10, unit=2), Strategy.LEAST_FREE) == {"n1": 4, "n3": 6}
    assert chosen(paper, job(8, per_node=4), Strategy.LEAST_FREE) == {"n1": 4, "n3": 4}


def test_slices_share_a_server_with_the_papers_split():
    pairs = Job(JobId("1"), "u", 4, JobProfile("pairs", (Stage(2, 0.5, 0.5),), tensor=2))
    assert chosen(view(3, 3, split=Split.PAPER), pairs, Strategy.MOST_FREE) == {"n1": 2, "n2": 2}
    assert chosen(view(3, 3), pairs, Strategy.MOST_FREE) is None


def test_least_free_uses_fragmented_gpus():
    assert chosen(view(8, 1, 2, 8), job(3), Strategy.LEAST_FREE) == {"n2": 1, "n3": 2}
    assert chosen(view(8, 1, 2, 8), job(3, max_nodes=1), Strategy.LEAST_FREE) == {"n1": 3}


def test_tightest_uses_the_fewest_servers_and_of_these_the_least_free():
    assert chosen(view(8, 4, 5, 1), job(4), Strategy.TIGHTEST) == {"n2": 4}
    assert chosen(view(2, 3, 3), job(6), Strategy.TIGHTEST) == {"n2": 3, "n3": 3}


def test_even_requests():
    assert chosen(view(8, 3, 4), job(8, per_node=4), Strategy.MOST_FREE) == {"n1": 4, "n3": 4}
    assert chosen(view(8, 3, 3), job(8, per_node=4), Strategy.MOST_FREE) is None


def test_requested_node_counts_are_respected():
    assert chosen(view(8, 8, 8), job(4, min_nodes=2, max_nodes=2), Strategy.MOST_FREE) == {"n1": 3, "n3": 1}
    assert chosen(view(2, 2, 2), job(6, max_nodes=2), Strategy.MOST_FREE) is None


def test_cpus_memory_and_candidates_limit_the_gpus_of_a_node():
    cluster = view(8, 8, free_cpus={"n1": 8, "n2": 64}, free_memory={"n1": 1e6, "n2": 1e6})
    assert chosen(cluster, job(4, cpus_per_gpu=4), Strategy.LEAST_FREE) == {"n1": 2, "n2": 2}
    assert chosen(cluster, job(4, cpus_per_gpu=4, candidates=frozenset({"n2"})), Strategy.LEAST_FREE) == {"n2": 4}
    assert chosen(cluster, job(3, memory_per_gpu=9e5), Strategy.MOST_FREE) is None


def test_a_node_holds_as_many_jobs_as_it_has_of_their_other_generic_resources():
    cluster = view(8, 8, 8, free_gres={"nvme": {"n1": 0, "n2": 3}, "nic": {"n1": 9, "n2": 9, "n3": 9}})
    disks, both = job(2, gres_per_node=(("nvme", 2),)), job(2, gres_per_node=(("nic", 1), ("nvme", 2)))
    for wanted in (disks, both):
        assert chosen(cluster, wanted, Strategy.LEAST_FREE) == {"n2": 2}
    before = cluster.copy()
    cluster.take({"n2": 2}, both.request)
    assert cluster.free_gres == {"nvme": {"n1": 0, "n2": 1}, "nic": {"n1": 9, "n2": 8, "n3": 9}}
    assert chosen(cluster, disks, Strategy.LEAST_FREE) is None
    cluster.give({"n2": 2}, both.request)
    assert before.free_gres == cluster.free_gres


def test_a_job_takes_other_generic_resources_on_each_of_its_nodes():
    cluster = view(4, 4, gpus=4, free_gres={"nvme": {"n1": 1, "n2": 2}})
    assert chosen(cluster, job(6, gres_per_node=(("nvme", 1),)), Strategy.MOST_FREE) == {"n1": 4, "n2": 2}
    assert chosen(cluster, job(6, gres_per_node=(("nvme", 2),)), Strategy.MOST_FREE) is None


def test_a_job_uses_a_share_of_the_cpus_of_a_node_with_each_gpu():
    cluster = view(8, 8, 8, free_gres={"share": {"n1": 3, "n2": 7}})
    four, one = job(4, shares_per_gpu=(("share", 2.0),)), job(1, shares_per_gpu=(("share", 2.0),))
    before = cluster.copy()
    assert chosen(cluster, four, Strategy.LEAST_FREE) == {"n1": 1, "n2": 3}
    cluster.take({"n1": 1, "n2": 3}, four.request)
    assert cluster.free_gres == {"share": {"n1": 1, "n2": 1}}
    assert chosen(cluster, one, Strategy.LEAST_FREE) is None
    assert chosen(cluster, job(1), Strategy.LEAST_FREE) is not None
    cluster.give({"n1": 1, "n2": 3}, four.request)
    assert cluster.free_gres == before.free_gres


def test_a_node_without_known_cpus_or_memory_has_none():
    for stock, request in (("free_cpus", {"cpus_per_gpu": 1}), ("free_memory", {"memory_per_gpu": 1})):
        cluster = view(2, 2, **{stock: {"n1": 2.0}})
        assert chosen(cluster, job(2, **request), Strategy.LEAST_FREE) == {"n1": 2}
        assert chosen(cluster, job(3, **request), Strategy.LEAST_FREE) is None


def test_best_alpha_uses_the_fewest_largest_servers():
    profile = JobProfile("dp", (Stage(10, 1, 0, param_bytes=1e9),))
    wanted = Job(JobId("1"), "ann", 10, profile)
    nodes = [Node("a", 4, 0), Node("b", 8, 1), Node("c", 8, 2)]
    # 8 + 2: the two reserve 2/8 of 1.25 GB/s for 1.8 GB
    assert best_alpha(wanted, nodes, FABRIC) == pytest.approx(1 + 1.8e9 / (1.25e9 * 2 / 8))


def test_fits():
    nodes = view(8, 8).nodes
    assert fits(job(16), nodes)
    assert not fits(job(17), nodes)
    assert not fits(job(16, max_nodes=1), nodes)
    assert not fits(job(9, per_node=9), nodes)
    assert not fits(job(4, candidates=frozenset()), nodes)


def test_no_gpu_is_allocated_twice():
    cluster = view(4)
    cluster.take({"n1": 4})
    with pytest.raises(ValueError, match="-1 of 8"):
        cluster.take({"n1": 1})
    with pytest.raises(ValueError, match="9 of 8"):
        cluster.give({"n1": 9})
    assert cluster.total_free == 0


def test_slices_that_slurms_split_would_separate_do_not_fit() -> None:
    """3 GPUs per server: Slurm splits 4 as 3+1, which separates a pair, although each server has room for a pair."""
    pairs = Job(JobId("1"), "u", 4, JobProfile("pairs", (Stage(2, 0.5, 0.5),), tensor=2))
    assert not fits(pairs, [Node(f"n{i}", 3, i) for i in range(6)])
    assert fits(pairs, [Node(f"n{i}", 2, i) for i in range(6)])


@pytest.mark.parametrize("gpus", [3, 5, 8, 10, 11])
def test_the_cpus_of_a_node_suffice_for_all_its_gpus(gpus):
    """64 / 5 is rounded up, and 64 // (64 / 5) is 4."""
    cluster = view(gpus, gpus=gpus, free_cpus={"n1": 64})
    assert chosen(cluster, job(gpus, cpus_per_gpu=64 / gpus), Strategy.TIGHTEST) == {"n1": gpus}


def test_a_job_with_several_nodes_may_use_small_servers_below_one_switch():
    """The larger ones stay whole, though one of them could hold the job."""
    nodes = [Node(f"n{i}", 8, i, switches=(name,)) for i, name in enumerate("aabb", start=1)]
    cluster = ClusterView(nodes, {"n1": 1, "n2": 1, "n3": 8, "n4": 8})
    assert chosen(cluster, job(2, min_nodes=2), Strategy.LEAST_FREE) == {"n1": 1, "n2": 1}


def test_tasks_of_several_gpus_leave_the_rest_of_a_server_in_the_best_placement():
    nodes = [Node(f"n{i}", 8, i) for i in (1, 2)]
    assert best_counts(job(9, unit=3), nodes) == (6, 3)
    assert not fits(job(15, unit=3), nodes)


def test_a_planned_start_that_preempts_takes_what_is_free_on_each_of_its_nodes():
    plan = Plan(view(4, 2, 8))
    plan.add_preempting(job(8), Placement({"n1": 4, "n2": 4}, (), 1.0))
    assert plan.view().free == {"n1": 0, "n2": 0, "n3": 8}
    assert plan.free == 8


def test_a_planned_start_that_makes_a_node_short_of_memory_counts():
    plan = Plan(view(8, 8, free_memory={"n1": 10.0, "n2": 10.0}))
    plan.add(job(1, memory_per_gpu=20.0), Placement({"n1": 1}, (), 1.0))
    placement = plan.place(job(1), Strategy.LEAST_FREE, FABRIC)
    assert placement is not None
    assert dict(placement.gpus) == {"n2": 1}


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"cpus_per_gpu": 2.5},
        {"memory_per_node": 9.0, "gres_per_node": (("nvme", 1),)},
        {"cpus_per_gpu": 2.5, "shares_per_gpu": (("share", 2.5),)},
        {"gres_per_node": (("nic", 1), ("nvme", 2)), "shares_per_gpu": (("share", 1.0),)},
    ],
)
def test_what_a_running_job_takes_beside_its_gpus_is_saved(asked):
    request = Request(**asked)
    assert read_amounts(json.loads(json.dumps(amounts_of(request)))) == request
