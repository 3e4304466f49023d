"""asrpt-gated on clusters with switches: every job that fits runs, and a job that needs its rack waits for it."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.job import Job, JobId, JobProfile, Stage, unprofiled
from slurm_asrpt.core.policies import make_policy
from slurm_asrpt.core.policies.base import Start
from slurm_asrpt.sim.engine import simulate_named
from slurm_asrpt.sim.job_table import JobTable
from tests.examples import examples

SIZES = (1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 16, 20)
PROFILES = (
    *[JobProfile(f"p{gpus}", (Stage(gpus, 0.5, 0.5, param_bytes=size),)) for gpus in SIZES for size in (1e6, 1e9)],
    JobProfile("pipeline", (Stage(6, 0.1, 0.2, 0, 1e7, 1e8), Stage(4, 0.2, 0.2, 1e7, 0, 1e8))),
    JobProfile("slices", (Stage(4, 0.5, 0.5, param_bytes=1e9),), tensor=2),
    unprofiled(9),
    unprofiled(13),
)
FABRICS = (Fabric(1.25e9, 300e9, (0.3e9,)), Fabric(1.25e9, 300e9, (1e9, 0.1e9)), Fabric(1.25e9, 300e9))
SENSITIVE = JobProfile("sensitive", (Stage(12, 0.5, 0.5, param_bytes=1e9),))


@st.composite
def clusters(draw):
    """Up to twelve servers below two levels of switches; some below none."""
    equal = draw(st.sampled_from([None, 4]))
    nodes = []
    for leaf in range(draw(st.integers(1, 4))):
        path = (f"leaf{leaf}", f"top{draw(st.integers(0, 1))}")[: draw(st.sampled_from([0, 1, 2, 2]))]
        for _ in range(draw(st.integers(1, 3))):
            gpus = equal or draw(st.sampled_from([1, 2, 4, 8]))
            nodes.append(Node(f"n{len(nodes)}", gpus, len(nodes), switches=path))
    return tuple(nodes)


rows = st.tuples(st.floats(0, 40), st.integers(0, len(PROFILES) - 1), st.integers(1, 30), st.sampled_from([0.01, 1, 2]))


@settings(max_examples=examples(200), deadline=None)
@given(clusters(), st.sampled_from(FABRICS), st.lists(rows, min_size=1, max_size=20), st.sampled_from([1.0, 1.1]))
def test_every_job_that_fits_runs(nodes, fabric, jobs, gate):
    submit, profile, iterations, error = (np.array(column) for column in zip(*sorted(jobs), strict=True))
    table = JobTable(PROFILES, submit, profile, iterations.astype(float), iterations * error)
    result = simulate_named("asrpt-gated", nodes, table, fabric, {"gate": gate})
    assert result.ended.tolist() == np.flatnonzero(~np.isnan(table.best_alphas(nodes, fabric))).tolist()


def racks(*sizes: tuple[int, ...]) -> list[Node]:
    flat = [(gpus, rack) for rack, some in enumerate(sizes) for gpus in some]
    return [Node(f"n{at}", gpus, at, switches=(f"r{rack}",)) for at, (gpus, rack) in enumerate(flat)]


def job(profile: JobProfile, number: int = 1, iterations: float = 10.0) -> Job:
    return Job(JobId(str(number)), "u", profile.gpus, profile, iterations)


def decide(nodes, jobs, running=(), now=100.0, patience_s=1e6):
    """The nodes of each job that starts. The jobs are submitted at time 0."""
    policy, view = make_policy("asrpt-gated", fabric=FABRICS[0], patience_s=patience_s), ClusterView(nodes)
    policy.cluster_changed(nodes, 0.0)
    for name, gpus, until in running:
        view.take({name: gpus})
        policy.running(JobId(f"9{name[1:]}"), {name: gpus}, until, 0.0)
    for one in jobs:
        policy.submitted(one, 0.0)
    return policy, {d.job.id: d.placement.gpus for d in policy.decide(view, now) if isinstance(d, Start)}


def test_a_rack_whose_servers_are_too_small_is_not_reserved():
    """The first rack has three servers, as many as needed, and 12 GPUs; the job fits on two of the second."""
    _, started = decide(racks((4, 4, 4), (8, 4)), [job(SENSITIVE)])
    assert started == {"1": {"n3": 8, "n4": 4}}


def test_another_rack_is_tried_if_slurm_would_split_the_job_otherwise_in_the_first():
    """n0 would get more than the rest, as it comes first in the node table. Another job, which is late, goes first."""
    first = job(JobProfile("all", (Stage(16, 0.1, 0.1, param_bytes=1e3),)), 1, iterations=1.0)
    second = job(JobProfile("six", (Stage(6, 0.5, 0.5, param_bytes=1e9),)), 2, iterations=1000.0)
    _, started = decide(racks((4, 4), (4, 4)), [first, second], running=[("n0", 1, 1e6)], patience_s=60.0)
    assert started == {"2": {"n2": 4, "n3": 2}}


def test_a_job_that_needs_its_rack_reserves_one_and_an_insensitive_one_does_not_wait():
    nodes, running = racks((8, 8), (8, 8)), [("n0", 8, 5000.0), ("n3", 8, 900.0)]
    needs_rack = JobProfile("needs", (Stage(16, 0.5, 0.5, param_bytes=1e9),))
    policy, started = decide(nodes, [job(needs_rack)], running=running)
    assert started == {}
    assert policy.reservation.mask == 0b1100  # n2 is free, n3 soon
    anywhere = JobProfile("anywhere", (Stage(16, 0.5, 0.5, param_bytes=1e3),))
    _, started = decide(nodes, [job(anywhere)], running=running)
    assert started == {"1": {"n1": 8, "n2": 8}}


def test_a_job_on_one_server_leaves_the_racks_that_are_whole():
    nodes = racks((8, 8, 8), (8, 8, 8))
    _, started = decide(nodes, [job(unprofiled(8))], running=[("n4", 8, 5000.0)])
    assert started == {"1": {"n3": 8}}
