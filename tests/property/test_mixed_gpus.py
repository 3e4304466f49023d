"""GPUs of several types: the effect of speed on alpha, and the choice of the best type of placement."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, with_reference_gpus
from slurm_asrpt.core.free_index import quick_place
from slurm_asrpt.core.job import Job, JobId, JobProfile, Stage
from slurm_asrpt.core.placement.best_alpha import best_alpha, fits
from slurm_asrpt.core.placement.mapping import placement_on
from slurm_asrpt.core.placement.selection import Strategy, place
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.core.timing.speed import at_speed
from slurm_asrpt.sim.engine import simulate_named
from slurm_asrpt.sim.job_table import JobTable
from tests.examples import examples

FABRIC = Fabric(1.25e9, 300e9)
KINDS = (("h100", 2.28), ("a100", 1.0), ("v100", 0.42))
speeds = st.floats(0.01, 100)
profiles = st.builds(
    lambda gpus, seconds, size: JobProfile("p", (Stage(gpus, seconds, 2 * seconds, param_bytes=size),)),
    st.integers(1, 12),
    st.floats(0.001, 10),
    st.floats(0, 1e10),
)


@st.composite
def mixed(draw):
    rows = draw(st.lists(st.tuples(st.integers(1, 8), st.sampled_from(KINDS)), min_size=1, max_size=8))
    nodes = [Node(f"n{i}", gpus, i, *kind) for i, (gpus, kind) in enumerate(rows)]
    return nodes, {node.name: draw(st.integers(0, node.gpus)) for node in nodes}


def job(profile):
    return Job(JobId("1"), "ann", profile.gpus, profile)


@given(profiles, speeds, speeds, st.data())
def test_a_faster_gpu_shortens_only_computation(profile, one, other, data):
    slow, fast = sorted((one, other))
    ranks = data.draw(st.lists(st.integers(0, 2), min_size=profile.gpus, max_size=profile.gpus))

    def alpha(speed):
        return iteration_time(at_speed(profile, speed), ranks, [8, 8, 8], FABRIC)

    assert alpha(fast) <= alpha(slow)
    computing = sum(stage.forward_s + stage.backward_s for stage in profile.stages)
    assert np.isclose(alpha(slow) - alpha(fast), computing / slow - computing / fast)
    assert at_speed(profile, 1.0) == profile


@given(mixed(), profiles, st.sampled_from(Strategy))
def test_knowing_gpu_types_never_makes_a_placement_slower(state, profile, strategy):
    nodes, free = state
    known = place(ClusterView(nodes, free), job(profile), strategy, FABRIC)
    blind = place(ClusterView(with_reference_gpus(nodes), free), job(profile), strategy, FABRIC)
    if blind is not None:
        assert known is not None
        there = [node for node in nodes if node.name in blind.gpus]
        real = placement_on(there, tuple(blind.gpus.values()), profile, FABRIC)
        assert known.alpha <= real.alpha


@given(mixed(), profiles, st.sampled_from(Strategy))
def test_the_index_selects_the_same_servers_as_a_full_scan(state, profile, strategy):
    view = ClusterView(*state)
    assert quick_place(view, job(profile), strategy, FABRIC) == place(view, job(profile), strategy, FABRIC)


@given(mixed(), profiles)
def test_no_placement_on_idle_servers_of_one_size_beats_alpha_min(state, profile):
    nodes = [Node(node.name, 4, node.index, node.gpu_type, node.speed) for node in state[0]]
    found = place(ClusterView(nodes), job(profile), Strategy.TIGHTEST, FABRIC)
    if fits(job(profile), nodes):
        assert found is not None
        assert best_alpha(job(profile), nodes, FABRIC) <= found.alpha * (1 + 1e-9)


rows = st.lists(st.tuples(profiles, st.floats(0, 100), st.integers(1, 200)), min_size=1, max_size=12)


@settings(max_examples=examples(15))
@given(rows, st.sampled_from(("asrpt", "asrpt-gated", "easy-backfill", "spwf")))
def test_with_one_gpu_type_policies_decide_as_without_types(jobs, policy):
    jobs = sorted(jobs, key=lambda row: row[1])
    iterations = np.array([float(row[2]) for row in jobs])
    kinds, submit = tuple(row[0] for row in jobs), np.array([row[1] for row in jobs])
    table = JobTable(kinds, submit, np.arange(len(jobs)), iterations, iterations)
    plain = [Node(f"n{i}", 4, i) for i in range(4)]
    typed = [Node(node.name, node.gpus, node.index, "h100", 1.0) for node in plain]
    one, other = (simulate_named(policy, nodes, table, FABRIC) for nodes in (plain, typed))
    assert one.end.tolist() == other.end.tolist()
