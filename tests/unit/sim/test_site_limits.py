"""Limits of the site in simulations: what past jobs count against them, and a limit per user on a trace."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from slurm_asrpt_cli.sim import app
from typer.testing import CliRunner

from slurm_asrpt.core.policies import policy_names
from slurm_asrpt.errors import InputError
from slurm_asrpt.sim import what_if as whatif
from slurm_asrpt.sim.engine import simulate_named
from slurm_asrpt.sim.scenario import make_scenario, scenario_of
from slurm_asrpt.sim.what_if_remarks import remarks
from slurm_asrpt.slurm.limits import Qos, SiteLimits
from slurm_asrpt.traces import accounting

RECORDED = Path(__file__).parents[2] / "recorded" / "22.05" / "assoc_mgr.txt"
TITLES = (
    "JobID|User|Account|QOS|Partition|Submit|Start|End|ElapsedRaw|TimelimitRaw|State|ReqTRES|AllocTRES|AdminComment"
)
POLICIES = [name for name in policy_names() if name != "users-in-turn"]


def row(job, user="asrpt2", gpus=4, account="lab", qos="normal", submit=1000, wait=0, ran=100, **more):
    tres = f"billing=1,cpu=1,gres/gpu={gpus},mem=1G,node=1"
    start = submit + wait
    cells = (job, user, account, qos, "gpu", submit, start, start + ran, ran, 60, "COMPLETED", tres, tres, "")
    return "|".join(map(str, cells))


def past_of(*rows, node_gpus=(8, 8, 8, 8)):
    return whatif.replay(accounting.parse_jobs("\n".join((TITLES, *rows)), "jobs.txt"), node_gpus)


def recorded():
    return accounting.parse_limits(RECORDED.read_text(), RECORDED.name)


def most_gpus(result, users, user):
    """The most GPUs that a user held at a time."""
    mine = np.array([name == user for name in users]) & ~np.isnan(result.start)
    gpus = result.table.gpus[mine]
    times = np.concatenate([result.end[mine], result.start[mine]])  # at any instant ends come first
    return int(np.cumsum(np.concatenate([-gpus, gpus])[np.argsort(times, kind="stable")]).max())


# jobs of sacct


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_starts_more_of_a_users_jobs_than_slurm_allows(policy):
    """QOS normal: at most 8 GPUs (two jobs of 4) of each user, and 20 of each account."""
    rows = [row(job, wait=100 * (job // 2)) for job in range(6)] + [row(job, "asrpt3") for job in (6, 7)]
    past = past_of(*rows)
    held = whatif.under_limits(past, recorded())
    users = past.jobs["user"].tolist()
    free, limited = (
        simulate_named(policy, each.cluster.nodes, each.table, each.cluster.fabric) for each in (past, held)
    )
    assert most_gpus(free, users, "asrpt2") > 8
    assert most_gpus(limited, users, "asrpt2") == 8
    assert not len(limited.never_started)


def test_every_policy_of_the_comparison_waits_for_the_limit():
    past = whatif.under_limits(past_of(*(row(job, wait=100 * (job // 2)) for job in range(4))), recorded())
    outcomes, _ = whatif.compare(past, ["fifo", "asrpt-gated"])
    assert [each.figures["max_wait_s"] for each in outcomes] == [100, 100, 100]


def test_the_report_says_which_limits_counted():
    past = whatif.under_limits(past_of(row(1), row(2), row(3, account="", qos="")), recorded())
    told = " ".join(remarks(past))
    assert "2 of 3 jobs counted against limits of today" in told
    assert "MaxTRESPU=cpu of QOS normal (2)" in told
    assert past.notes["site_limits"]["by_limit"]["MaxTRESPU=gres/gpu of QOS normal"] == 2
    assert "1 job without a known account and QOS" in told
    assert "GrpTRESMins" not in told  # used-up minutes are not simulated
    assert past.notes["limits"] == list(whatif.LIMITS_BESIDES_SITE)
    json.dumps(whatif.document(past, [], interrupted=False), allow_nan=False)


def test_a_job_that_ran_beyond_a_limit_of_today_runs_alone():
    """16 GPUs of a user who may have 8 today: it ran, so it starts, but beside no other job of the user."""
    past = past_of(row(1, gpus=16), row(2, gpus=1), row(3, "asrpt3", gpus=1))
    limits = SiteLimits({"normal": Qos("normal", user={"MaxTRESPU=gres/gpu": 8.0}, job={"MaxTRESPJ=gres/gpu": 4.0})})
    held = whatif.under_limits(past, limits)
    result = simulate_named("fifo", held.cluster.nodes, held.table, held.cluster.fabric)
    assert result.waits.tolist() == [0, 100, 0]
    assert held.notes["site_limits"]["beyond"] == 1
    assert "1 job beyond a limit of today" in " ".join(remarks(held))


def test_licenses_and_older_files():
    text = "\n".join([TITLES, row(1).replace("node=1", "node=1,license/matlab=1")])
    past = whatif.replay(accounting.parse_jobs(text, "jobs.txt"), [8])
    assert whatif.under_limits(past, SiteLimits(licenses={"matlab": 2.0})).table.charges == [(("license matlab", 1.0),)]
    old = past_of(row(1))
    old = replace(old, jobs=old.jobs.drop(columns=["account", "qos", "tres"]))  # a file without these columns
    held = whatif.under_limits(old, recorded())
    assert held.table.charges == ()
    assert held.notes["site_limits"]["unknown"] == 1


def test_a_file_that_has_no_limits():
    with pytest.raises(InputError, match="scontrol -o show assoc_mgr"):
        accounting.parse_limits("NodeName=n1", "limits.txt")
    with pytest.raises(InputError, match=r"limits\.txt"):
        accounting.parse_limits("QOS=normal(1) GrpJobs=many(3)", "limits.txt")


# the command


@pytest.fixture
def ask():
    return lambda *words: CliRunner().invoke(app, ["what-if", *words])


def test_limits_from_a_file(ask, tmp_path):
    (tmp_path / "jobs.txt").write_text("\n".join((TITLES, *(row(job) for job in range(4)))))
    words = ("--dump", str(tmp_path / "jobs.txt"), "--servers", "4", "-p", "fifo", "--json")

    def wait(*more):
        done = ask(*words, *more)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)["rows"][1]["max_wait_s"]

    assert (wait(), wait("--no-limits"), wait("--limits", str(RECORDED))) == (0, 0, 100)
    assert isinstance(ask(*words, "--no-limits", "--limits", str(RECORDED)).exception, InputError)


SACCT = """#!/bin/sh
for word; do case "$word" in --delimiter=*) between="${word#--delimiter=}" ;; esac; done
sed "s/|/$between/g" JOBS
"""
SCONTROL = """#!/bin/sh
case "$*" in
"show config") echo "AccountingStorageEnforce = ENFORCE"; echo "SLURM_VERSION = 22.05.8" ;;
*assoc_mgr*) cat ASSOC ;;
*partition*) echo "PartitionName=gpu AllowGroups=ALL QoS=N/A X=1" ;;
*) echo "No licenses configured in Slurm." ;;
esac
"""


@pytest.mark.parametrize(("enforce", "wait"), [("associations,limits,qos", 100), ("associations", 0)])
def test_live_limits_count_if_slurm_enforces_them(ask, tmp_path, monkeypatch, enforce, wait):
    text = "\n".join((TITLES, *(row(job) for job in range(4))))
    answers = {"sinfo": "#!/bin/sh\necho 'n1|gpu:16|idle'\necho 'n2|gpu:16|idle'\n"}
    (tmp_path / "jobs.txt").write_text(text)
    answers["sacct"] = SACCT.replace("JOBS", str(tmp_path / "jobs.txt"))
    answers["scontrol"] = SCONTROL.replace("ENFORCE", enforce).replace("ASSOC", str(RECORDED))
    for name, script in answers.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    done = ask("--sacct", "-p", "fifo", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["rows"][1]["max_wait_s"] == wait
    assert ("site_limits" in found["notes"]) == bool(wait)


# a limit per user on a trace


def test_a_limit_per_user_on_a_trace():
    made = make_scenario("pai-like:400:2", options={"max_gpus_per_user": 4, "predictor": "perfect"})
    workload = made.workload()
    users = workload.table.users
    result = simulate_named("asrpt-gated", workload.cluster.nodes, workload.table, workload.cluster.fabric)
    assert max(most_gpus(result, users, user) for user in set(users)) <= 4
    assert set(result.table.gpus[result.never_started]) == {g for g in set(result.table.gpus) if g > 4}
    assert made.document()["options"]["max_gpus_per_user"] == 4
    assert scenario_of(json.loads(json.dumps(made.document()))) == made


def test_without_a_limit_per_user_scenarios_are_as_in_earlier_releases():
    made = make_scenario("pai-like:400:2")
    assert "max_gpus_per_user" not in made.document()["options"]
    assert scenario_of(made.document()) == made
    assert made.workload().table.charges == ()


def test_a_limit_per_user_needs_users(tmp_path):
    (tmp_path / "jobs.csv").write_text("job_id,submit_s,gpus,duration_s\n1,0,1,10\n2,5,1,10\n")
    scenario = make_scenario(str(tmp_path / "jobs.csv"), options={"max_gpus_per_user": 4, "history": 0.0})
    with pytest.raises(InputError, match="names the users"):
        scenario.workload()
    with pytest.raises(InputError, match="at least 1 GPU"):
        make_scenario("pai-like:400", options={"max_gpus_per_user": 0})


def test_the_option_of_compare():
    words = ["compare", "pai-like:300:2", "-p", "fifo", "--servers", "8", "--json", "--predictor", "median"]
    free, held = (
        json.loads(CliRunner().invoke(app, [*words, *more]).stdout)["policies"][0]
        for more in ([], ["--max-gpus-per-user", "4"])
    )
    assert held["never_started"] > free["never_started"] == 0
