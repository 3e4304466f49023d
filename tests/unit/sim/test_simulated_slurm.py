"""A site's own Slurm in the simulator: its settings, shares and priorities from scontrol, and what reports say."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_asrpt_cli.sim import app
from typer.testing import CliRunner

from slurm_asrpt.core.multifactor import Leaf, Usage
from slurm_asrpt.errors import InputError
from slurm_asrpt.sim import simulated_slurm
from slurm_asrpt.sim import what_if as whatif
from slurm_asrpt.sim.what_if_remarks import remarks
from slurm_asrpt.slurm.scheduler import SchedulerSettings, parse_scheduler
from slurm_asrpt.traces import accounting

RECORDED = Path(__file__).parents[2] / "recorded"
RELEASES = sorted(path.parent.name for path in RECORDED.glob("*/priorities-config.txt"))
TITLES = "JobID|User|Account|QOS|Partition|Submit|Start|End|ElapsedRaw|TimelimitRaw|State|ReqTRES|AllocTRES"
CONFIG = """\
PriorityType            = priority/multifactor
PriorityDecayHalfLife   = 1-00:00:00
PriorityCalcPeriod      = 00:01:00
PriorityFavorSmall      = No
PriorityMaxAge          = 7-00:00:00
PriorityWeightAge       = 1000
PriorityWeightFairShare = 100000
PriorityWeightQOS       = 0
SchedulerParameters     = bf_continue,bf_interval=60,bf_window=2880,bf_max_job_test=1000,bf_max_job_user=20
SchedulerType           = sched/backfill
"""
SHARES = "SharesRaw/Norm/Level/Factor"
ACCOUNTS = "\n".join(
    f"ClusterName=lab Account={account} UserName={user} Partition= Priority=0 {SHARES}={shares}/0.5/2/0.5 "
    f"ParentAccount={above} X=1"
    for account, user, shares, above in (
        *(("root", "", 1, ""), ("lab", "", 3, "root(1)"), ("lab", "ann(1)", 1, ""), ("lab", "bob(2)", 1, "")),
        *(("sub", "", 0x7FFFFFFF, "lab(2)"), ("sub", "cy(3)", 5, "")),
    )
)


def row(job, user="ann", gpus=8, submit=1000, wait=0, ran=100, limit=60, account="lab", asked="node=1"):
    request, start = f"billing={2 * gpus},cpu=1,gres/gpu={gpus},{asked}", submit + wait
    cells = (job, user, account, "normal", "gpu", submit, start, start + ran, ran, limit, "COMPLETED", request, request)
    return "|".join(map(str, cells))


def past_of(*rows, node_gpus=(8,)):
    return whatif.replay(accounting.parse_jobs("\n".join((TITLES, *rows)), "jobs.txt"), node_gpus)


def site(config=CONFIG, accounts=ACCOUNTS):
    return accounting.parse_site(f"{config}\n{accounts}", "slurm.txt")


# reading


def test_the_parameters_of_the_scheduler():
    text = "bf_interval=60,BF_WINDOW=2880,bf_max_job_user=20,bf_continue,bf_window_linear=30"
    assert parse_scheduler({"SchedulerParameters": text}) == (
        SchedulerSettings(bf_interval_s=60.0, bf_window_s=172800.0, bf_max_job_user=20, bf_window_linear_s=30.0)
    )
    assert (
        parse_scheduler({"SchedulerParameters": "bf_interval=-1,bf_window=x,bf_max_job_test=0"}) == SchedulerSettings()
    )
    assert parse_scheduler({"SchedulerParameters": "(null)", "SchedulerType": "sched/builtin"}).type == "sched/builtin"


@pytest.mark.parametrize("release", RELEASES)
def test_a_recorded_site(release):
    names = ("config", "assoc_mgr", "partitions")
    text = "\n".join((RECORDED / release / f"priorities-{name}.txt").read_text() for name in names)
    text += "SchedulerType           = sched/backfill\n"
    found = accounting.parse_site(text, "recorded.txt")
    past = whatif.under_slurm(past_of(row(1, "asrpt1")), found, "recorded.txt")
    assert past.slurm.settings | {"weight_age": 1000, "weight_fair_share": 1000, "weight_job_size": 100} == (
        past.slurm.settings
    )
    assert past.slurm.settings["half_life_s"] == 7 * 86400
    assert past.slurm.tree.users[Leaf("lab", "asrpt1")] == 1.0
    assert past.slurm.tree.parents["lab"] == "root"
    assert past.slurm.tree.accounts["lab"] == 1.0


def test_a_file_without_slurms_configuration():
    with pytest.raises(InputError, match="scontrol show config"):
        accounting.parse_site(ACCOUNTS, "slurm.txt")
    with pytest.raises(InputError, match=r"slurm\.txt: .*priorities"):
        accounting.parse_site(CONFIG.replace("7-00:00:00", "7-x"), "slurm.txt")


# a site


def test_the_settings_shares_and_factors_of_a_site():
    past = whatif.under_slurm(past_of(row(1), row(2, "cy", account="sub")), site(), "slurm.txt")
    found = past.slurm
    assert found.settings | {
        "bf_interval_s": 60,
        "bf_window_s": 172800,
        "bf_max_job_test": 1000,
        "bf_max_job_user": 20,
        "weight_age": 1000,
        "weight_fair_share": 100000,
        "half_life_s": 86400,
        "calc_period_s": 60,
    } == dict(found.settings)
    assert found.factors["0"].leaf == Leaf("lab", "ann")
    assert found.factors["0"].billing == 16
    assert found.tree.accounts == {"lab": 3.0, "sub": None}
    assert found.tree.of_user(Leaf("sub", "cy")) == "lab"
    assert found.tree.users == {Leaf("lab", "ann"): 1.0, Leaf("lab", "bob"): 1.0, Leaf("sub", "cy"): 5.0}
    told = remarks(past)
    assert (
        "slurm-backfill simulates this Slurm: bf_interval 1 min, bf_window 2 days, bf_max_job_test 1000, "
        "bf_max_job_user 20; priorities by age 1000, fair share (half-life 1 day) 100000 (slurm.txt)."
    ) in told
    assert whatif.document(past, [], interrupted=False)["notes"]["simulated_slurm"]["settings"]["bf_interval_s"] == 60


def test_qos_association_partition_and_tres_add_points():
    config = CONFIG.replace("WeightQOS       = 0", "WeightQOS       = 500") + (
        "PriorityWeightAssoc = 70\nPriorityWeightPartition = 90\nPriorityWeightTRES = GRES/gpu=16\n"
    )
    lines = (
        *("QOS=normal(1) Priority=2 X=1", "QOS=high(2) Priority=4 X=1"),
        *(
            f"PartitionName={name} PriorityJobFactor={factor} PriorityTier={factor}"
            for name, factor in (("gpu", 1), ("b", 3))
        ),
    )
    accounts = ACCOUNTS.replace("UserName=ann(1) Partition= Priority=0", "UserName=ann(1) Partition= Priority=5")
    found = whatif.under_slurm(past_of(row(1)), site(config, "\n".join((accounts, *lines))), "x").slurm
    assert found.factors["0"].points == pytest.approx(500 * 2 / 4 + 70 * 5 / 5 + 90 / 3 + 16 * 8 / 8)
    assert found.factors["0"].tier == 1


def test_fair_share_decides_in_the_simulated_slurm_and_nowhere_else():
    """ann's first job holds all GPUs. Her second was submitted before bob's, but she has used more."""
    rows = [row(1, ran=600), row(2, submit=1010, wait=600), row(3, "bob", submit=1020, wait=700)]
    past = whatif.under_slurm(past_of(*rows), site(), "slurm.txt")
    outcomes, _ = whatif.compare(past, ["slurm-backfill", "easy-backfill", "slurm-backfill:weight_fair_share=0"])
    assert [each.wait.tolist() for each in outcomes[1:]] == [[0, 690, 580], [0, 590, 680], [0, 590, 680]]


def with_usage(**usage):
    lines = ACCOUNTS
    for user, amount in usage.items():
        lines = lines.replace(f"UserName={user}(", f"UsageRaw/Norm/Efctv={amount}/0.5/0.5 UserName={user}(")
    return lines


ROWS = [row(1, ran=600), row(2, submit=1010, wait=600), row(3, "bob", submit=1020, wait=700)]


@pytest.mark.parametrize(("bob", "waits"), [(1600, [0, 690, 580]), (501_600, [0, 590, 680])])
def test_what_users_had_used_before_counts(bob, waits):
    """Until an hour later these jobs have used 16 x 700 and 16 x 100 billing units times seconds."""
    known = site(CONFIG.replace("HalfLife   = 1-00:00:00", "HalfLife   = 00:00:00"), with_usage(ann=11_200, bob=bob))
    past = whatif.under_slurm(past_of(*ROWS), known, "slurm.txt", asked_at=4600.0)
    assert past.slurm.used == ({Leaf("lab", "bob"): 500_000.0} if bob > 1600 else {})
    assert ("had used before the first job follows" in " ".join(remarks(past))) == bool(past.slurm.used)
    outcomes, _ = whatif.compare(past, ["slurm-backfill"])
    assert outcomes[1].wait.tolist() == waits


@given(st.floats(1e5, 1e9), st.floats(0, 2.9 * 86400))
def test_usage_before_the_first_job_is_what_its_decayed_rest_tells(before, asked_s):
    past, day = past_of(*ROWS), 86400.0
    usage = Usage(day)
    usage.add(Leaf("lab", "bob"), before, 0.0)
    usage.started("3", Leaf("lab", "bob"), 16.0, 720.0)
    usage.ended("3", min(max(asked_s, 720.0), 820.0))
    now = usage.at(asked_s).get(Leaf("lab", "bob"), 0.0) if asked_s > 720.0 else before * 2 ** -(asked_s / day)
    found = whatif.under_slurm(past, site(accounts=with_usage(bob=repr(now))), "x", asked_at=1000.0 + asked_s).slurm
    assert found.used[Leaf("lab", "bob")] == pytest.approx(before, rel=1e-6)


def test_usage_of_long_ago_or_of_an_unknown_time_does_not_count():
    known = site(accounts=with_usage(bob=501_600))
    assert not whatif.under_slurm(past_of(*ROWS), known, "x", asked_at=1000.0 + 4 * 86400).slurm.used
    assert not whatif.under_slurm(past_of(*ROWS), known, "x").slurm.used


def test_the_baseline_is_the_plain_default_where_nothing_is_known():
    past = past_of(row(1), row(2, submit=1010, wait=90))
    assert past.slurm.settings == {}
    assert (
        "slurm-backfill simulates this Slurm: bf_interval 30 s, bf_window 1 day, bf_max_job_test 500; jobs in order "
        in (" ".join(remarks(past)))
    )
    basic = site(CONFIG.replace("priority/multifactor", "priority/basic"))
    found = whatif.under_slurm(past, basic, "slurm.txt").slurm
    assert (found.tree, found.factors) == (None, {})
    assert found.settings["bf_interval_s"] == 60


def test_a_partition_of_a_higher_tier_goes_first_also_without_multifactor():
    config = CONFIG.replace("priority/multifactor", "priority/basic")
    lines = "\n".join(f"PartitionName={n} PriorityJobFactor=1 PriorityTier={t}" for n, t in (("gpu", 1), ("fast", 9)))
    rows = [row(1, ran=600), row(2, submit=1010, wait=600), row(3, submit=1020, wait=700).replace("|gpu|", "|fast|")]
    past = whatif.under_slurm(past_of(*rows), site(config, lines), "slurm.txt")
    outcomes, _ = whatif.compare(past, ["slurm-backfill"])
    assert outcomes[1].wait.tolist() == [0, 690, 580]


def test_the_report_says_what_is_not_known():
    past = whatif.under_slurm(past_of(row(1, account="")), site(CONFIG.replace("sched/backfill", "sched/builtin")), "x")
    told = " ".join(remarks(past))
    assert "1 job without a known account: fair share counts them by user" in told
    assert "This Slurm runs sched/builtin" in told
    assert "(fair share) are those of today" in told
    assert "what users had used before the first job" in " ".join(past.notes["limits"])


def test_jobs_get_the_nodes_that_their_owners_asked_for():
    """Four jobs of 4 GPUs: the one that asked for two nodes gets two, and one that no longer fits gets any."""
    asked = ["node=1", "node=2", "node=9"]
    past = past_of(*(row(job, gpus=4, asked=each) for job, each in enumerate(asked)), node_gpus=(8, 8, 8))
    bounds = [(request.min_nodes, request.max_nodes) for request in past.table.requests]
    assert bounds == [(1, 1), (2, 2), (1, None)]
    policy = "slurm-backfill"
    result = whatif.simulate_past(past, policy, {}, past.cluster.fabric)
    assert result.nodes.tolist() == [1, 2, 1]


# the command


@pytest.fixture
def ask(tmp_path):
    (tmp_path / "jobs.txt").write_text("\n".join((TITLES, row(1), row(2, "bob", submit=1010, wait=90))))
    words = ("what-if", "--dump", str(tmp_path / "jobs.txt"), "--servers", "1", "--json")
    return lambda *more: CliRunner().invoke(app, [*words, *more])


def test_slurm_from_a_file(ask, tmp_path):
    file = tmp_path / "slurm.txt"
    file.write_text(f"{CONFIG}\nAccountingStorageEnforce = limits\n{ACCOUNTS} GrpTRES=gres/gpu=8(0)\n")
    done = ask("--slurm", str(file), "-p", "slurm-backfill,fifo")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    simulated = found["notes"]["simulated_slurm"]
    assert (simulated["source"], simulated["settings"]["weight_fair_share"]) == (str(file), 100000)
    assert "site_limits" in found["notes"]
    assert [row["policy"] for row in found["rows"]] == [whatif.AS_IT_WAS, "slurm-backfill", "fifo"]
    assert found["rows"][1]["jct_over_simulated"] == 1
    assert "site_limits" not in json.loads(ask("--slurm", str(file), "--no-limits", "-p", "fifo").stdout)["notes"]
    assert isinstance(ask("--slurm", str(tmp_path / "jobs.txt")).exception, InputError)


def test_without_slurm_the_defaults_are_used(ask):
    found = json.loads(ask("-p", "slurm-backfill").stdout)
    assert found["notes"]["simulated_slurm"]["source"] == simulated_slurm.DEFAULTS


def test_the_jobs_of_one_partition_keep_their_dates(ask, tmp_path):
    lines = (TITLES, row(1).replace("|gpu|", "|other|"), row(2, submit=5000))
    (tmp_path / "jobs.txt").write_text("\n".join(lines))
    found = json.loads(ask("-p", "fifo", "--partition", "gpu").stdout)
    assert (found["notes"]["jobs"], found["notes"]["first_at"]) == (1, 5000.0)
