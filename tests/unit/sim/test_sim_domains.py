"""Simulated servers with several NVLink domains."""

import numpy as np
import pytest
from slurm_asrpt_cli.sim import app
from typer.testing import CliRunner

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import JobProfile, Stage
from slurm_asrpt.errors import InputError
from slurm_asrpt.sim.description import Cluster, Options
from slurm_asrpt.sim.domains import with_domains
from slurm_asrpt.sim.engine import simulate_named
from slurm_asrpt.sim.job_table import JobTable
from slurm_asrpt.sim.recorder import Recorder, simulate_recorded
from slurm_asrpt.sim.scenario import make_scenario, parse_policy
from slurm_asrpt.sim.workload import build
from slurm_asrpt.traces.synthetic import pai_like

PAIRS = Fabric(1.25e9, 300e9, domain=2, across=1e9)
SINGLE = JobProfile("single", (Stage(1, 1.0, 0.0),))
RING = JobProfile("ring", (Stage(2, 0.5, 0.5, param_bytes=1e9),))
"""Two GPUs that all-reduce: 1 s more if they are in two domains."""
FRAGMENTS = [(float(at), SINGLE, seconds) for at, seconds in enumerate((10, 300, 10, 300))] + [(20.0, RING, 300)]
POLICIES = ("asrpt-gated", "asrpt", "easy-backfill", "wcs-workload", "fifo")


def table(rows):
    """rows: (submit, profile, iterations)."""
    submit, profiles, iterations = zip(*rows, strict=True)
    profile = np.array([(SINGLE, RING).index(each) for each in profiles])
    work = np.array(iterations, dtype=float)
    return JobTable((SINGLE, RING), np.array(submit), profile, work, work)


def result(policy, rows, fabric, told=True, servers=1):
    cluster = Cluster(servers, 4)
    seen = fabric if told else Fabric(fabric.inter, fabric.intra)
    return simulate_named(policy, cluster.nodes, table(rows), seen, runner=with_domains(fabric))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_gets_the_lowest_free_gpus(policy):
    """Jobs of one GPU hold 0 and 1; the first ends, so 0 is free, and a pair would get 0 and 2."""
    rows = [(0.0, SINGLE, 10), (0.0, SINGLE, 30), (20.0, RING, 10)]
    assert result(policy, rows, PAIRS, told=False).alpha[2] == pytest.approx(2.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_gpus_in_one_domain_are_as_fast_as_without_domains(policy):
    rows = [(0.0, SINGLE, 30), (0.0, SINGLE, 30), (20.0, RING, 10)]
    assert result(policy, rows, PAIRS).alpha[2] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("policy", ["asrpt-gated", "asrpt", "easy-backfill"])
def test_the_policy_takes_a_server_with_a_free_domain(policy):
    """Of the first server, GPUs 0 and 2 are free; the second is idle."""
    assert result(policy, FRAGMENTS, PAIRS, servers=2).alpha[4] == pytest.approx(1.0, abs=0.01)


def test_without_them_it_may_take_gpus_of_two_domains():
    assert result("asrpt-gated", FRAGMENTS, PAIRS, told=False, servers=2).alpha[4] == pytest.approx(2.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_with_domains_as_large_as_the_servers_nothing_changes(policy):
    cluster = Cluster(6, 8)
    made = build(pai_like(300, seed=3), cluster, Options(load=1.2, predictor="perfect", history=0.0, seed=3))
    plain = simulate_named(policy, cluster.nodes, made.table, cluster.fabric)
    whole = Fabric(cluster.fabric.inter, cluster.fabric.intra, domain=8, across=1e9)
    other = simulate_named(policy, cluster.nodes, made.table, whole, runner=with_domains(whole))
    for column in ("start", "end", "alpha", "nodes"):
        assert np.array_equal(getattr(plain, column), getattr(other, column), equal_nan=True)


@pytest.mark.parametrize("policy", POLICIES)
def test_servers_never_run_out_of_indexes(policy):
    """What the policy expects of a placement is what the job gets: it sees the same indexes."""
    scenario = make_scenario("pai-like:400", cluster={"servers": 5, "gpus": 8, "domain": 4}, options={"load": 1.3})
    workload, expected = scenario.workload(), {}

    class Noted(Recorder):
        def started(self, row, now, placement):
            super().started(row, now, placement)
            expected[row] = placement.alpha

    found = simulate_recorded(parse_policy(policy), workload, Noted(workload.cluster.nodes))
    assert len(found.ended) > 150
    assert len(found.ended) + len(found.never_started) == len(workload.table)
    assert all(found.alpha[row] == alpha for row, alpha in expected.items())


@pytest.mark.parametrize("more", [["--contention", "1"], ["-p", "asrpt-gated:interrupts=true", "--consent", "0.5"]])
def test_what_cannot_be_simulated_together_is_refused(more):
    done = CliRunner().invoke(app, ["run", "pai-like:100", "--servers", "4", "--nvlink-domain", "4", *more])
    assert isinstance(done.exception, InputError)
    assert "--nvlink-domain cannot be simulated together" in str(done.exception)


def test_results_without_domains_are_named_as_before():
    plain, domains = Cluster(4), {"servers": 4, "domain": 4, "across_gbyte": 20.0}
    assert "domain" not in make_scenario("pai-like:10", cluster={"servers": 4}).document()["cluster"]
    assert make_scenario("pai-like:10", cluster=domains).document()["cluster"]["across_gbyte"] == 20.0
    assert plain.fabric == Fabric(plain.fabric.inter, plain.fabric.intra)
