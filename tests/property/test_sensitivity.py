"""What is learned about communication: the truth from enough runs, nothing from noise, one run or one user."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import Job, JobId, JobProfile, Stage, unprofiled
from slurm_asrpt.core.placement.best_alpha import best_alpha
from slurm_asrpt.core.sensitivity import (
    UNKNOWN,
    communicating,
    in_seconds,
    seconds_per_gigabyte,
    slowest_server_s,
    spread_of,
)
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.core.topology import blocks_in
from slurm_asrpt.predict.sensitivity import GRID, Sensitivity, Timed
from slurm_asrpt.sim.engine import simulate_named
from slurm_asrpt.sim.job_table import JobTable
from tests.examples import examples

UNIT = 6.4
NEAR, FAR = 0.8, 6.4
FABRIC = Fabric(1.25e9, 300e9, (0.15625e9,))


def run(group="g", r=0.0, link_s=NEAR, off=1.0, base=100.0, program="", user="u", reported=True):
    """r: in units of the grid. off: what else made the run slower."""
    return Timed(group, program, user, 16, base * (1 + r / UNIT * link_s) * off, link_s, reported)


def rate(known, group="g", program="", user="u"):
    """r of a job in units of the grid."""
    found = known.beliefs().of(group, program, user)
    return 0.0 if found is None else found.rate * UNIT


def learned(runs):
    known = Sensitivity(UNIT)
    for each in runs:
        known.learn(each)
    return known


# one group


@settings(max_examples=examples(50), deadline=None)
@given(
    st.sampled_from([0.5, 1.0, 3.0, 8.0]),
    st.integers(0, 10_000),
    st.floats(1e-3, 1e5),
    st.sampled_from([(0.02, True, 6), (0.05, True, 10), (0.3, False, 100)]),
)
def test_r_is_found_whatever_the_base(r, seed, base, kind):
    (noise, reported, many), rng = kind, np.random.default_rng(seed)
    links = [NEAR, FAR] * many
    runs = [run(r=r, link_s=link, base=base, off=np.exp(rng.normal(0, noise)), reported=reported) for link in links]
    assert rate(learned(runs)) == pytest.approx(r, rel=0.6)


@settings(max_examples=examples(4), deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([(0.05, True), (0.3, True), (0.3, False), (0.7, False)]))
def test_noise_alone_makes_hardly_any_group_sensitive(seed, kind):
    """Of 60 groups, two on average at most: at single sites with the most noise, up to twenty."""
    (noise, reported), rng = kind, np.random.default_rng(seed)
    gated = []
    for _ in range(20):
        known = Sensitivity(UNIT)
        for group in range(60):
            for _ in range(rng.integers(2, 30)):
                link, off = rng.choice([NEAR, 2 * NEAR, FAR]), np.exp(rng.normal(0, noise))
                known.learn(run(f"g{group}", 0, link, off, user=f"u{group % 10}", reported=reported))
        found = known.beliefs()
        gated += [group for group in range(60) if found.of(f"g{group}", "", f"u{group % 10}").rate * UNIT > 0.1]
        assert found.of("new", "", "new").rate == 0
    assert len(gated) <= 2 * 20


@given(st.integers(2, 30), st.floats(0.01, 1000), st.booleans())
def test_no_single_run_is_believed(near, off, reported):
    runs = [run(reported=reported) for _ in range(near)]
    assert rate(learned([*runs, run(link_s=FAR, off=off, reported=reported)])) == 0


@given(st.integers(0, 20), st.floats(1.5, 100))
def test_one_outlier_among_many_runs_changes_little(place, off):
    runs = [run(link_s=link) for link in (NEAR, FAR) * 10]
    runs.insert(place, run(link_s=FAR, off=off))
    assert rate(learned(runs)) == 0


def test_a_group_that_was_believed_to_suffer_is_believed_not_to_by_later_runs():
    known = learned([run(r=4, link_s=link) for link in (NEAR, FAR) * 3])
    before = rate(known)
    for link in (NEAR, FAR) * 30:
        known.learn(run(link_s=link))
    assert before > 3
    assert rate(known) < before / 10


def test_what_was_observed_is_told():
    found = learned([run(r=1, link_s=link) for link in (NEAR, FAR) * 6]).beliefs().of("g", "", "u")
    assert (found.level, found.runs, found.apart) == ("group", 12, 6)
    assert found.slower == pytest.approx(2 / 1.125)


def test_runs_in_one_kind_of_placement_say_nothing():
    assert learned([run(r=4) for _ in range(50)]).beliefs().known.keys() <= {"cluster "}


def test_reports_and_runtimes_are_not_compared_with_each_other():
    runs = [run(base=1.0), run(base=1.0), run(link_s=FAR, base=1000.0, reported=False)] * 4
    assert rate(learned(runs)) == 0


# the others


def sensitive(groups, user="u", program="", r=2.0):
    places = product(groups, (NEAR, FAR) * 4)
    return [run(group, r=r, link_s=link, user=user, program=program) for group, link in places]


def test_a_new_group_starts_with_what_is_known_of_its_program_then_of_its_user():
    quiet = sensitive("abcdef", program="p0", r=0.0)
    known = learned([*sensitive("ghijkl", program="p4", r=4.0), *quiet])
    assert known.beliefs().of("new", "p4", "u").level == "program"
    assert rate(known, "new", "p4") > 2
    assert known.beliefs().of("new", "p9", "u").level == "user"
    assert 0.5 < rate(known, "new", "p9") < 3
    assert rate(known, "new", "p0") < 1
    assert rate(known, "new", "", "else") == 0


def test_a_group_is_judged_by_its_own_runs_even_among_sensitive_ones():
    known = learned([*sensitive("abcdef", program="p"), *sensitive("x", program="p", r=0.0)])
    assert rate(known, "x", "p") == 0


def test_jobs_of_unknown_users_are_planned_by_what_is_usual_in_the_cluster():
    runs = [each for user in range(10) for each in sensitive([f"g{user}"], f"u{user}", r=2.0 * (user % 2))]
    assert 0.5 < rate(learned(runs), "new", "", "new") < 1.5


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(1, 60))
def test_one_user_cannot_talk_others_into_anything(groups):
    lies = sensitive([f"l{n}" for n in range(groups)], "liar", r=float(GRID[-1]))
    truth = [each for user in range(3) for each in sensitive([f"g{user}"], f"u{user}", r=0.0)]
    assert rate(learned([*lies, *truth]), "new", "", "new") == 0


def test_without_any_run_nothing_is_believed():
    assert Sensitivity(UNIT).beliefs().of("g", "p", "u") is None


# a job with r


def racks(*sizes):
    flat = [(gpus, rack) for rack, some in enumerate(sizes) for gpus in some]
    return [Node(f"n{at}", gpus, at, switches=(f"r{rack}",)) for at, (gpus, rack) in enumerate(flat)]


@given(
    st.lists(st.tuples(st.sampled_from([4, 8]), st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=5),
    st.floats(0, 50),
)
def test_an_iteration_takes_one_plus_r_t_times_as_long_as_its_computation(rows, r):
    sizes, counts, switches = zip(*rows, strict=True)
    nodes = [Node(f"n{at}", g, at, switches=(f"r{s}",)) for at, (g, s) in enumerate(zip(sizes, switches, strict=True))]
    gpus = sum(counts)
    job = communicating(Job(JobId("1"), "u", gpus, unprofiled(gpus)), r)
    ranks = [server for server, count in enumerate(counts) for _ in range(count)]
    alpha = iteration_time(job.profile, ranks, sizes, FABRIC, blocks_in(FABRIC, nodes))
    assert alpha == pytest.approx(1 + r * seconds_per_gigabyte(nodes, counts, FABRIC) if gpus > 1 else 1)


def test_the_spread_of_a_placement():
    nodes = racks((8, 8), (8,))
    whole, half = (8, 8), (4, 4)
    assert spread_of(nodes[:2], whole, FABRIC) == (0.8, 1)
    assert spread_of(nodes[:2], half, FABRIC) == (1.6, 1)
    assert spread_of(nodes[1:], whole, FABRIC) == (6.4, 2) == (slowest_server_s(FABRIC), 2)
    assert spread_of(nodes[:1], (1,), FABRIC) == (0, 1)
    assert spread_of(nodes[:1], (9,), FABRIC) == spread_of([], (), FABRIC) == UNKNOWN == (0, 0)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 40), st.booleans(), st.integers(1, 30)), min_size=1, max_size=20),
    st.sampled_from([0.02, 0.3, 2.0]),
)
def test_a_job_whose_r_is_known_is_scheduled_like_one_with_that_profile(rows, r):
    """12 GPUs need three servers of a rack; racks have three and two."""
    nodes = racks((4, 4, 4), (4, 4), (4, 4, 4))
    flat = unprofiled(6)
    named = JobProfile("named", (Stage(12, 0.25, 0.75, param_bytes=r * 1e9 * 12 / 22),))
    best = best_alpha(Job(JobId("1"), "u", 12, named), nodes, FABRIC)
    twin = in_seconds(Job(JobId("1"), "u", 12, unprofiled(12)), r, best).profile
    submit, kind, seconds = (np.array(column) for column in zip(*sorted(rows), strict=True))
    starts = []
    longer = 1 + np.sqrt(np.arange(2, len(rows) + 2)) / 100  # no ties, which rounding would decide
    for profile, alpha in ((named, best), (twin, 1.0)):
        iterations = seconds * longer / np.where(kind, alpha, 1.0)
        table = JobTable((flat, profile), submit, kind.astype(np.int64), iterations, iterations)
        starts.append(simulate_named("asrpt-gated", nodes, table, FABRIC))
    assert starts[0].start == pytest.approx(starts[1].start)
    assert starts[0].nodes.tolist() == starts[1].nodes.tolist()
