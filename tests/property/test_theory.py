"""The paper's Lemmas 1-3 and Theorem 1 on random small instances, with the actual schedule of `asrpt`.

OPT_A is exact (tests/reference/exact.py), and so are α_i^min and ρ. docs/theory.md explains the statements tested here.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import JobProfile, Stage
from slurm_asrpt.core.placement.best_alpha import worst_alpha
from slurm_asrpt.core.policies import make_policy
from slurm_asrpt.sim.engine import simulate, simulate_named
from slurm_asrpt.sim.job_table import JobTable
from slurm_asrpt.sim.metrics import srpt
from tests.examples import examples
from tests.reference.exact import optimum, true_best_alpha

SLACK = 1 + 1e-9
FABRIC = Fabric(inter=2.0, intra=16.0)


def nodes_of(servers, gpus):
    return [Node(f"n{i}", gpus, i) for i in range(servers)]


@dataclass(frozen=True)
class Instance:
    """Jobs, cluster and settings of `asrpt`, with the symbols of the paper's section IV-C."""

    table: JobTable
    nodes: list[Node]
    tau: float = 1.0
    delay: str = "block"
    fabric: Fabric = FABRIC

    def __post_init__(self):
        set_ = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731
        table = self.table
        set_("G", sum(node.gpus for node in self.nodes))
        set_("g_max", int(table.gpus.max()))
        set_("jobs", len(table))
        true = [true_best_alpha(profile, self.nodes, self.fabric) for profile in table.profiles]
        worst = [worst_alpha(table.job(row), self.nodes, self.fabric) for row in range(len(table))]
        set_("alpha_min", np.array(true)[table.profile])
        set_("alpha_max", np.array(worst))
        set_("alpha_heavy_edge", table.best_alphas(self.nodes, self.fabric))
        set_("rho", float((self.alpha_max / self.alpha_min).max()))
        set_("error", float(np.abs(table.iterations - table.predicted).sum()))
        share = table.gpus / self.G * self.alpha_heavy_edge
        set_("virtual", srpt(table.submit, share * table.predicted))  # C_i(OPT_Ã1)
        set_("opt_a1", float(srpt(table.submit, share * table.iterations).sum()))

    def schedule(self):
        policy = make_policy("asrpt", fabric=self.fabric, tau=self.tau, delay=self.delay)
        return simulate(policy, self.nodes, self.table)

    def lemma2(self, opt, busy):
        """The right-hand side. busy: G - g^max as printed, or one more."""
        errors = self.jobs * self.g_max * self.alpha_max.max() / busy * self.error
        return (1 + self.tau + self.rho * self.G / busy) * self.virtual.sum() + errors + self.rho * opt

    def theorem1(self, opt, busy):
        spread = 2 * self.rho * self.g_max * self.alpha_max.max() / self.alpha_min.min()
        factor = (2 + self.tau + self.rho * self.G / busy) * self.rho
        more = spread * (1 + self.tau + (1 + self.rho) * self.G / busy) * self.error / self.jobs
        return (factor + more) * opt


def data_parallel(gpus, compute=1.0, h=0.0):
    return JobProfile(f"dp{gpus}/{compute:g}/{h:g}", (Stage(gpus, compute, 0.0, param_bytes=h),))


@st.composite
def profiles(draw, most):
    """One or two stages; small values, so that computation and communication take similar times."""
    amount = st.sampled_from([0.0, 0.25, 1.0, 4.0])
    compute = draw(st.sampled_from([0.25, 1.0, 3.0]))
    first = draw(st.integers(1, most))
    if first == most or draw(st.booleans()):
        return JobProfile("one", (Stage(first, compute, 0.0, param_bytes=draw(amount)),))
    second = draw(st.integers(1, most - first))
    sent = draw(amount)  # the total of all replicas, so that both ends agree
    stages = (
        Stage(first, compute, 0.0, 0.0, sent / first, draw(amount)),
        Stage(second, draw(st.sampled_from([0.25, 1.0])), 0.0, sent / second, 0.0, draw(amount)),
    )
    return JobProfile("two", stages)


@st.composite
def instances(draw, delay="block", least_iterations=0):
    servers, gpus = draw(st.sampled_from([(1, 2), (2, 1), (2, 2), (3, 1), (1, 4), (2, 3)]))
    kinds = draw(st.lists(profiles(min(4, servers * gpus)), min_size=1, max_size=3))
    count = st.one_of(st.integers(least_iterations, 9), st.integers(least_iterations, 2))
    row = st.tuples(st.integers(0, 6), st.integers(0, len(kinds) - 1), count, st.integers(0, 9))
    rows = sorted(draw(st.lists(row, min_size=1, max_size=4 if gpus > 1 and servers > 1 else 5)))
    submit, kind, true, predicted = (np.array(column) for column in zip(*rows, strict=True))
    perfect = draw(st.booleans())
    table = JobTable(tuple(kinds), submit * 1.0, kind, true * 1.0, (true if perfect else predicted) * 1.0)
    tau = draw(st.sampled_from([0.0, 0.5, 1.0, 4.0]))
    return Instance(table, nodes_of(servers, gpus), tau, delay)


@st.composite
def delaying(draw):
    """Two servers of four with one GPU in use for long on each, and a job of four GPUs that gets three and one.

    A job of three GPUs and one of one fill the first server; both jobs of one GPU run until long after the deadline.
    """
    tau, predicted = draw(st.sampled_from([1.0, 2.0, 4.0])), draw(st.integers(40, 80))
    heavy = data_parallel(4, 1.0, draw(st.sampled_from([8.0, 16.0])))
    kinds = (data_parallel(3), data_parallel(1), heavy)
    arrives = draw(st.integers(1, 3))
    alone = 4 / 8 * predicted * (1.0 + 1.5 * heavy.stages[0].param_bytes / FABRIC.intra)
    long = np.ceil(arrives + (1 + 3 * tau) * alone) + 1
    submit, kind = np.array([0.0, 0.0, 0.0, arrives]), np.array([0, 1, 1, 2])
    true, guess = np.array([1.0, long, long, draw(st.integers(1, 80))]), np.array([0.0, 0.0, 0.0, predicted])
    return Instance(JobTable(kinds, submit, kind, true, guess), nodes_of(2, 4), tau)


# statements that hold


@settings(max_examples=examples(150), deadline=None)
@given(instances())
def test_lemma_1(case):
    assert case.opt_a1 <= case.rho * optimum(case.table, case.nodes, case.fabric) * SLACK


@settings(max_examples=examples(150), deadline=None)
@given(instances())
def test_lemma_2_with_delays_that_block(case):
    opt = optimum(case.table, case.nodes, case.fabric)
    measured = case.schedule().end.sum()
    if case.g_max < case.G:
        assert measured <= case.lemma2(opt, case.G - case.g_max) * SLACK
    assert measured <= case.lemma2(opt, case.G - case.g_max + 1) * SLACK  # also useful for g^max = G


def limits_of_each_job(case, busy):
    """The key step of Lemma 2, with true workloads: C_i <= (1+τ) C_i(Ã1) + W_{i-1}/busy + n_i α_i^max.

    W_{i-1}: GPU-seconds, at α_j^max, of the jobs that complete before i in Ã1.
    """
    work = case.table.gpus * case.table.iterations * case.alpha_max
    order = np.lexsort((np.arange(case.jobs), case.virtual))
    ahead = np.zeros(case.jobs)
    ahead[order] = np.concatenate([[0.0], np.cumsum(work[order])[:-1]])
    return (1 + case.tau) * case.virtual + ahead / busy + case.table.iterations * case.alpha_max


@settings(max_examples=examples(300), deadline=None)
@given(instances())
def test_lemma_2_holds_for_each_job(case):
    limits = limits_of_each_job(case, case.G - case.g_max + 1)
    # jobs that complete together in Ã1 (some have zero length) may be in either order
    tied = np.array([(case.virtual == v).sum() > 1 for v in case.virtual])
    assert np.all((case.schedule().end <= limits * SLACK) | tied)


@settings(max_examples=examples(50), deadline=None)
@given(delaying())
def test_lemma_2_holds_for_each_job_that_is_delayed_until_its_deadline(case):
    """Line 20. Two thirds of the delay that it must have would be enough to break the bound if it were added."""
    found, turn = case.schedule(), case.virtual[3]
    delay = case.tau * (turn - case.table.submit[3])
    assert found.alpha[3] / case.alpha_heavy_edge[3] > 1.5
    assert found.start[3] == pytest.approx(turn + delay)
    limits = limits_of_each_job(case, case.G - case.g_max + 1)
    assert np.all(found.end <= limits * SLACK)
    assert found.end[3] + 2 * delay > limits[3], "three times the delay would be noticed"


def test_lemma_2_for_each_job_is_tight():
    """A long job on one GPU delays a job on all GPUs: only G - g^max + 1 = 1 GPU is busy."""
    kinds = (data_parallel(1, 900.0), data_parallel(4, 1.0))
    ones = np.ones(2)
    case = Instance(JobTable(kinds, np.array([0.0, 225.0]), np.array([0, 1]), ones, ones), nodes_of(1, 4), tau=0.0)
    end = case.schedule().end[1]
    assert end == 1126 <= limits_of_each_job(case, 1)[1] < end * 1.001
    assert end > limits_of_each_job(case, 2)[1]


@settings(max_examples=examples(300), deadline=None)
@given(instances())
def test_lemma_3_and_a_tighter_form_of_it(case):
    """OPT_Ã1 - OPT_A1 <= I (g^max α^max / G) ε; tighter: I times the length added, minus the length removed."""
    wrong = case.table.gpus / case.G * case.alpha_heavy_edge * (case.table.predicted - case.table.iterations)
    sharper = case.opt_a1 + case.jobs * wrong[wrong > 0].sum() + wrong[wrong < 0].sum()
    printed = case.opt_a1 + case.jobs * case.g_max * case.alpha_max.max() / case.G * case.error
    assert case.virtual.sum() <= sharper + 1e-9 * printed
    assert sharper <= printed * SLACK


@settings(max_examples=examples(150), deadline=None)
@given(instances(least_iterations=1))
def test_theorem_1_holds_if_every_job_runs_an_iteration(case):
    opt = optimum(case.table, case.nodes, case.fabric)
    measured = case.schedule().end.sum()
    if case.g_max < case.G:
        assert measured <= case.theorem1(opt, case.G - case.g_max) * SLACK
    assert measured <= case.theorem1(opt, case.G - case.g_max + 1) * SLACK


@settings(max_examples=examples(150), deadline=None)
@given(instances(delay="aside"))
def test_a_weaker_bound_holds_if_delayed_jobs_do_not_block(case):
    """R = ρG/(G-g^max+1): Γ <= (1+R)(1+τ+R) OPT_Ã1 + I (2+R) g^max α^max ε / (G-g^max+1) + ρ OPT_A."""
    busy = case.G - case.g_max + 1
    r = case.rho * case.G / busy
    errors = case.jobs * (2 + r) * case.g_max * case.alpha_max.max() * case.error / busy
    limit = (1 + r) * (1 + case.tau + r) * case.virtual.sum() + errors
    assert case.schedule().end.sum() <= (limit + case.rho * optimum(case.table, case.nodes, case.fabric)) * SLACK


# statements that fail: the smallest counterexamples found


def one_job(profile, iterations=1.0, predicted=1.0):
    return JobTable((profile,), np.zeros(1), np.zeros(1, dtype=int), np.array([iterations]), np.array([predicted]))


def test_lemma_1_fails_with_heavy_edges_estimate_instead_of_the_true_minimum():
    """Four replicas on two servers of three: "the fewest servers, full but the last" is 3 + 1, but 2 + 2 is faster."""
    case = Instance(one_job(data_parallel(4, 1.0, 8 * 2 / 3 / 1.5)), nodes_of(2, 3))
    assert case.alpha_max[0] == pytest.approx(9)
    assert case.alpha_heavy_edge[0] == pytest.approx(9)  # one replica alone on the second server
    assert case.alpha_min[0] == pytest.approx(5)
    opt = optimum(case.table, case.nodes, case.fabric)
    computable = (case.alpha_max / case.alpha_heavy_edge).max()
    assert computable == pytest.approx(1)
    assert case.opt_a1 > computable * opt * 1.1
    assert case.opt_a1 <= case.rho * opt


def test_lemma_1_fails_for_times_since_submission():
    """The same jobs, one every five seconds: each takes five and none waits, but the single machine's queue grows."""
    count = 8
    profile = data_parallel(4, 1.0, 8 * 2 / 3 / 1.5)
    ones = np.ones(count)
    table = JobTable((profile,), 5.0 * np.arange(count), np.zeros(count, dtype=int), ones, ones)
    case = Instance(table, nodes_of(2, 3))
    flow_of_a_schedule = 5.0 * count  # 2 + 2 GPUs each, one after another: no job waits
    assert case.opt_a1 - table.submit.sum() > case.rho * flow_of_a_schedule
    assert case.opt_a1 <= case.rho * (flow_of_a_schedule + table.submit.sum())


def test_theorem_1_fails_for_times_since_submission():
    """Two GPUs, two long jobs, then many short ones: A-SRPT delays the long jobs for a while, and then they run."""
    count = 40
    submit = np.array([0.0, 0.0] + [100.0] * count)
    iterations = np.array([100.0, 100.0] + [0.01] * count)
    table = JobTable((data_parallel(1),), submit, np.zeros(count + 2, dtype=int), iterations, iterations)
    case = Instance(table, nodes_of(2, 1))
    flow = lambda ends: float((ends - submit).sum())  # noqa: E731
    some_schedule = simulate_named("fifo", case.nodes, table, case.fabric).end  # its flow time is no less than OPT's
    assert flow(case.schedule().end) > case.theorem1(flow(some_schedule), case.G - case.g_max)
    assert case.schedule().end.sum() <= case.theorem1(some_schedule.sum(), case.G - case.g_max)


def test_theorem_1_fails_for_a_job_that_ends_before_its_first_iteration():
    case = Instance(one_job(data_parallel(1), iterations=0.0, predicted=5.0), nodes_of(2, 1))
    opt = optimum(case.table, case.nodes, case.fabric)
    assert opt == 0
    assert case.schedule().end.sum() == 2.5 > case.theorem1(opt, case.G - case.g_max)
    assert case.lemma2(opt, case.G - case.g_max) >= 2.5


def test_theorem_1_as_printed_excludes_jobs_of_all_gpus():
    case = Instance(one_job(data_parallel(2)), nodes_of(2, 1))
    with pytest.raises(ZeroDivisionError):
        case.theorem1(1.0, case.G - case.g_max)
    assert case.schedule().end.sum() == 2.0 <= case.theorem1(1.0, 1)


def test_alpha_max_is_no_maximum_if_the_network_is_faster_than_the_intra_server_links():
    """B_intra < B_inter/g: a job alone on one server is slower than α^max, ρ falls below 1 and Lemma 1 with it."""
    case = Instance(one_job(data_parallel(2, 0.0, 1.0)), nodes_of(1, 3), tau=0.0, fabric=Fabric(inter=30.0, intra=1.0))
    assert case.rho == pytest.approx(0.1)
    opt = optimum(case.table, case.nodes, case.fabric)
    assert case.opt_a1 > case.rho * opt
    assert case.schedule().end.sum() > case.lemma2(opt, case.G - case.g_max)


def test_lemma_2_fails_if_delayed_jobs_do_not_block():
    """Two servers of 16, τ = 1, no errors: one long job of 7 GPUs overtakes two hundred short jobs of 24.

    Two single-GPU jobs keep one GPU of each server busy ("door" separates them). The short jobs complete in
    Ã1 when the first job of 7 GPUs has just started, and wait for it. When it ends, GPUs are free, but in the wrong
    place: they are delayed, for less than 1 ms. If that does not block, the second job of 7 GPUs starts, for 144 s.
    """
    fabric, nodes = Fabric(inter=16.0, intra=1e9), nodes_of(2, 16)
    short = JobProfile("short", (Stage(16, 1e-3, 0.0, param_bytes=0.51e-3 * 16 / 30), Stage(8, 1e-3, 0.0)))
    plain = {"pin": (1, 192.0), "door": (15, 0.2), "first": (7, 32.0), "second": (7, 144.0)}
    kinds = (*(data_parallel(*shape) for shape in plain.values()), short)
    rows = [(0.0, 0), (0.0, 0), (0.0, 2), (11.9, 1), (19.2, 3), *[(19.2, 4)] * 200]
    submit, kind = (np.array(column) for column in zip(*rows, strict=True))
    table = JobTable(kinds, submit, kind, np.ones(len(rows)), np.ones(len(rows)))

    def measured(delay):
        return simulate(make_policy("asrpt", fabric=fabric, tau=1.0, delay=delay), nodes, table).end.sum()

    # OPT_A is at most the sum of this schedule, in which the jobs of 7 GPUs wait for the short ones
    patient = _later(table, (2, 3), 19.6)
    opt = simulate_named("fifo", nodes, patient, fabric).end.sum()
    virtual = srpt(table.submit, table.gpus / 32 * table.best_alphas(nodes, fabric)).sum()
    rho = 1.51  # only the short jobs depend on servers; no placement takes less than 1 ms
    assert worst_alpha(table.job(5), nodes, fabric) == pytest.approx(1.51e-3)
    limit = (1 + 1 + rho * 32 / (32 - 24)) * virtual + rho * opt
    assert measured("aside") > limit
    assert measured("block") < limit


def _later(table, kinds, submit):
    """The table with jobs of these kinds submitted later; its schedules are also schedules of the original table."""
    moved = np.where(np.isin(table.profile, kinds), submit, table.submit)
    order = np.argsort(moved, kind="stable")
    return JobTable(table.profiles, moved[order], table.profile[order], table.iterations, table.predicted)
