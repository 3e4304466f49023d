"""Jobs that must run within one of several sets of nodes (several partitions, -C [a|b])."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.job import Job, JobProfile, Stage, unprofiled
from slurm_asrpt.core.placement.best_alpha import best_alpha, fits
from slurm_asrpt.core.placement.selection import Strategy, place, within_each
from slurm_asrpt.core.policies import policy_names
from tests.benches.gated import Bench, job
from tests.examples import examples

FABRIC = Fabric(1.25e9, 300e9)
NAMES = ["n0", "n1", "n2", "n3", "gone"]
HEAVY = JobProfile("heavy", (Stage(6, 0.5, 0.5, param_bytes=1e9),))
sets = st.lists(st.frozensets(st.sampled_from(NAMES)), min_size=2, max_size=3).map(tuple)


@st.composite
def views(draw):
    nodes = [Node(f"n{i}", draw(st.integers(1, 8)), i, draw(st.sampled_from(["", "old"]))) for i in range(4)]
    return ClusterView(nodes, {n.name: draw(st.integers(0, n.gpus)) for n in nodes})


@given(views(), sets, st.none() | st.frozensets(st.sampled_from(NAMES)), st.sampled_from(Strategy))
def test_the_best_set_is_chosen(view, within, candidates, strategy):
    wanted = job("1", profile=HEAVY, within=within, candidates=candidates)
    each = [place(view, one, strategy, FABRIC) for one in within_each(wanted)]
    found = place(view, wanted, strategy, FABRIC)
    assert (found is None) == (not any(each))
    if found is not None:
        assert any(set(found.gpus) <= names for names in within)
        assert candidates is None or set(found.gpus) <= candidates
        assert found.alpha == min(one.alpha for one in each if one is not None)


@given(views(), sets)
def test_a_job_fits_if_one_set_holds_it_and_is_as_fast_as_on_the_best_set(view, within):
    wanted = job("1", profile=HEAVY, within=within)
    able = [one for one in within_each(wanted) if fits(one, view.nodes)]
    assert fits(wanted, view.nodes) == bool(able)
    if able:
        best = min(best_alpha(one, view.nodes, FABRIC) for one in able)
        assert math.isclose(best_alpha(wanted, view.nodes, FABRIC), best)
    else:
        with pytest.raises(ValueError, match="job 1 asks for"):
            best_alpha(wanted, view.nodes, FABRIC)


LEFT, RIGHT = frozenset({"n0", "n1"}), frozenset({"n2", "n3"})


@settings(max_examples=examples(40))
@given(
    st.sampled_from(policy_names()),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 50), st.booleans()), min_size=1, max_size=8),
    st.lists(st.integers(0, 4), min_size=4, max_size=4),
)
def test_every_policy_stays_within_one_set_and_starts_every_job(policy, asked, busy):
    bench = Bench(4, 4, 4, 4, policy=policy)
    bench.view.take({f"n{at}": count for at, count in enumerate(busy) if count})
    jobs = [
        job(str(i), gpus, iterations, profile=unprofiled(gpus), within=(LEFT, RIGHT) if bound else ())
        for i, (gpus, iterations, bound) in enumerate(asked)
    ]
    bench.submit(*jobs)
    waiting, now = {one.id: one for one in jobs if not one.request.within or one.gpus <= 8}, 0.0
    for step in range(3 * len(jobs)):
        for job_id, nodes in bench.decide(now).items():
            one: Job = waiting.pop(job_id)
            assert not one.request.within or set(nodes) <= LEFT or set(nodes) <= RIGHT
        if step == 0:
            bench.view.give({f"n{at}": count for at, count in enumerate(busy) if count})
        now += 100.0
        for job_id in list(bench.placed):
            bench.end(job_id, now)
    assert not waiting
