"""asrpt-admin shadow-report: the real runs, their predictions, and the comparison."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from slurm_asrpt_cli.admin import app
from typer.testing import CliRunner

from slurm_asrpt.audit.trail import jobs_and_modes
from slurm_asrpt.config.settings import PolicySettings
from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import Job, JobId, JobProfile, Stage, unprofiled
from slurm_asrpt.core.placement.best_alpha import best_alpha
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.errors import InputError
from slurm_asrpt.history.store import History, Origin, Run
from slurm_asrpt.reporting import shadow as shadow_page
from slurm_asrpt.sim import shadow, what_if
from slurm_asrpt.slurm.limits import Association, SiteLimits

NOW, EPOCH = 1_700_000_000, 1_600_000_000
FIFO = PolicySettings(name="fifo")


def run_of(job: int, submit: int, wait: int, ran: int, gpus: int = 2, user: str = "ann", **more: object) -> Run:
    submit += EPOCH
    times = {"submit_time": submit, "start_time": submit + wait, "end_time": submit + wait + ran}
    facts = {"user": user, "group_id": f"{job:016x}", "gpus": gpus, "state": "COMPLETED", "partition": "gpu"}
    return Run(**{"job_id": str(job), **times, **facts, **more})  # type: ignore[arg-type]


def site(*node_gpus: int) -> shadow.Servers:
    def profile_of(name: str, gpus: int) -> JobProfile:
        return SPREAD if (name, gpus) == ("spread", 2) else unprofiled(gpus)

    return shadow.Servers(node_gpus, Fabric(1e9, 1e12), profile_of)


# 2 GPUs: 1 s per iteration and almost no communication on one server, 2 s more on two
SPREAD = JobProfile("spread", (Stage(2, 1.0, 0.0, param_bytes=1e9),))


def test_the_run_time_of_a_profiled_job_depends_on_its_placement() -> None:
    """Slurm ran it on two servers, where its hundred iterations took three seconds each."""
    apart = run_of(1, 0, 0, 300, profile="spread", alpha=3.0, predicted_iterations=90, nodes={"n1": 1, "n2": 1})
    found = shadow.report([apart, run_of(2, 0, 5, 10, gpus=1)], site(2, 2), PolicySettings(name="wcs-subtime"))
    together = best_alpha(Job(JobId("1"), "", 2, SPREAD), [Node("n1", 2, 0)], Fabric(1e9, 1e12))
    assert found.past.table.iterations.tolist() == [100, 10]
    assert found.past.table.predicted.tolist() == [90, 0]
    assert found.past.notes["profiled"] == 1
    done = found.outcomes[1].figures["mean_jct_s"] * 2 - 10
    assert done == pytest.approx(100 * together)
    assert done < 200


@pytest.mark.parametrize("change", [{"alpha": 0.0}, {"profile": "unknown"}, {"gpus": 1}])
def test_without_a_profile_or_placement_a_job_keeps_its_recorded_run_time(change: dict[str, object]) -> None:
    run = replace(run_of(1, 0, 0, 300, profile="spread", alpha=3.0), **change)  # type: ignore[arg-type]
    found = shadow.report([run], site(2), FIFO)
    assert found.past.notes["profiled"] == 0
    assert found.outcomes[1].figures["mean_jct_s"] == 300


def test_an_unnecessary_wait_under_slurm_is_shown() -> None:
    """One server of two GPUs, used only by these jobs."""
    runs = [run_of(1, 0, 0, 1000), run_of(2, 10, 2000, 100, gpus=1, user="bob"), run_of(3, 1500, 0, 500, user="cy")]
    found = shadow.report(runs, site(2), FIFO)
    real, then, simulated = found.outcomes
    assert (real.name, then.name, simulated.name) == (what_if.AS_IT_WAS, "fifo", "slurm-backfill")
    assert found.headline == (
        "Average wait 11.1 min → 5.5 min under first come, first served (fifo), against 5.5 min under Slurm in the "
        "same simulation; 0% of jobs would have started more than a minute later; no user waits more than 5% and a "
        "minute longer on average."
    )
    assert real.figures["mean_wait_s"] == pytest.approx(2000 / 3)
    assert then.figures["mean_wait_s"] == pytest.approx(990 / 3)
    assert [(s.name, s.verdict) for s in found.users] == [("bob", "wins"), ("ann", "same"), ("cy", "same")]
    bob = found.users[0]
    assert (bob.jobs, bob.real_wait_s, bob.wait_s, bob.later) == (1, 2000, 990, 0)
    assert bob.ratio == pytest.approx(1090 / 2100)
    assert bob.gpu_hours == pytest.approx(100 / 3600)
    assert [(s.name, s.jobs) for s in found.sizes] == [("1 GPU", 1), ("2 GPUs", 2)]


def test_a_simulated_slurm_that_is_unlike_the_real_one_is_told() -> None:
    late = [run_of(1, 0, 0, 1000), run_of(2, 10, 2000, 100, gpus=1, user="bob"), run_of(3, 1500, 0, 500, user="cy")]
    remarks = shadow.remarks(shadow.report(late, site(2), FIFO), 0, 0)
    assert remarks[0].startswith("In the simulator Slurm's mean completion time is 0.72 of the real one")
    alike = shadow.report([run_of(1, 0, 0, 1000), run_of(2, 10, 990, 100)], site(2), FIFO)
    assert not any("In the simulator" in each for each in shadow.remarks(alike, 0, 0))


def test_users_that_lose_are_shown() -> None:
    """Slurm started ann's job first, although it was submitted last."""
    runs = [run_of(1, 0, 100, 1000, user="bob"), run_of(2, 10, 0, 90, user="ann")]
    found = shadow.report(runs, site(2), FIFO)
    assert [(s.name, s.verdict, s.later) for s in found.users] == [("bob", "wins", 0), ("ann", "loses", 1)]


def test_predictions_are_those_made_at_submission_in_seconds() -> None:
    """Submitted together, the shorter prediction first: job 2 has 50 iterations of 2 s, not its actual run time."""
    runs = [
        run_of(1, 0, 0, 100, predicted_iterations=150),
        run_of(2, 0, 100, 900, predicted_iterations=50, alpha=2.0, profile="unknown"),
        run_of(3, 0, 1000, 10, predicted_iterations=0),
    ]
    found = shadow.report(runs, site(2), PolicySettings(name="wcs-duration"))
    assert found.past.table.predicted.tolist() == [150, 100, 0]
    assert found.outcomes[1].wait.tolist() == [910, 10, 0]
    assert found.past.notes["predicted_zero"] == pytest.approx(1 / 3)
    assert "as the hook gave them" in shadow.remarks(found, 0, 0)[0]


def test_only_runs_observed_by_asrptd_count() -> None:
    others = [run_of(8, 0, 0, 10, origin=Origin.SACCT), run_of(9, 0, 0, 10, group_id="")]
    assert len(shadow.report([run_of(1, 0, 0, 10), *others], site(2), FIFO).past.table) == 1
    with pytest.raises(InputError, match="--since"):
        shadow.report(others, site(2), FIFO)


def test_this_slurm_is_simulated_beside_the_policy_with_its_limits_and_nodes() -> None:
    """8 GPUs, 6 of them busy until 1000 (limit 1200). Job 2 is planned at 1200, so job 3 (limit 2000) must wait."""
    runs = [
        run_of(1, 0, 0, 1000, gpus=6, time_limit_s=1200, min_nodes=1, max_nodes=1),
        run_of(2, 10, 1190, 100, gpus=8, time_limit_s=200, min_nodes=1, max_nodes=1),
        run_of(3, 20, 1280, 100, gpus=2, time_limit_s=2000, min_nodes=1, max_nodes=1),
        run_of(4, 30, 0, 100, gpus=2, time_limit_s=900, min_nodes=2, max_nodes=2),
    ]
    found = shadow.report(runs, site(8, 8), FIFO)
    assert [request.min_nodes for request in found.past.table.requests] == [1, 1, 1, 2]
    found = shadow.report(runs[:3], site(8), FIFO)
    real, fifo, simulated = found.outcomes
    assert simulated.wait.tolist() == [0, 990, 1080]
    assert fifo.wait.tolist() == [0, 990, 1080]
    short = shadow.report([*runs[:2], replace(runs[2], time_limit_s=900)], site(8), FIFO)
    assert short.outcomes[2].wait.tolist() == [0, 990, 20]  # at the next backfill cycle
    assert simulated.figures["jct_over_simulated"] == 1
    means = [each.figures["mean_jct_s"] for each in (real, fifo)]
    assert [each.figures["jct_over_simulated"] for each in (real, fifo)] == pytest.approx(
        [mean / simulated.figures["mean_jct_s"] for mean in means]
    )
    told = shadow.remarks(found, 0, 0)
    assert any(
        line.startswith("slurm-backfill simulates this Slurm: bf_interval 30 s, bf_window 1 day") for line in told
    )
    assert not any("without a known time limit" in line for line in told)
    old = shadow.report([replace(run, time_limit_s=0) for run in runs], site(8), FIFO)
    assert any(line.startswith("4 jobs without a known time limit") for line in shadow.remarks(old, 0, 0))


def test_sizes_have_names() -> None:
    runs = [run_of(gpus, gpus, 0, 10, gpus=gpus) for gpus in (1, 2, 3, 4, 5, 8, 9)]
    named = [(s.name, s.jobs) for s in shadow.report(runs, site(16), FIFO).sizes]
    assert named == [("1 GPU", 1), ("2 GPUs", 1), ("3-4 GPUs", 2), ("5-8 GPUs", 2), ("9-16 GPUs", 1)]


def test_missing_data_is_reported() -> None:
    found = shadow.report([run_of(1, 0, 0, 10)], site(2), FIFO)
    plain, full = shadow.remarks(found, 0, 0), shadow.remarks(found, 3, 4)
    assert full[: len(plain)] == plain
    assert [line.split()[0] for line in full[len(plain) :]] == ["3", "4"]


def test_the_page_escapes_and_loads_nothing() -> None:
    found = shadow.report([run_of(1, 0, 0, 10, user="<script>x</script>\x1b[2J")], site(2), FIFO)
    html = shadow_page.page(found, ["<b>bold</b>"])
    assert not re.search(r"<script|<b>|\x1b|https?:|url\(", html)
    assert "&lt;script&gt;" in html
    assert all(line.split(",")[0] in html for line in shadow.limitations(found.past))
    assert html.rstrip().endswith("</html>")


def test_events_of_the_audit_trail(tmp_path: Path) -> None:
    audit = AuditWriter(tmp_path)
    for at, event, job in ((NOW - 99, "left", "1"), (NOW, "left", "2"), (NOW, "start", "3"), (NOW, "vanished", "4")):
        audit.record(at, event, job)
    audit.record(NOW, "left", "5", why="component")  # the first component is managed, and this one with it
    audit.record(NOW, "cycle", mode="enforce")
    audit.flush()
    with audit.path.open("a") as file:
        file.write('{"time": 1700000001.0, "event": "left", "jo')
    assert jobs_and_modes(tmp_path, ("left", "vanished"), NOW - 1) == ({"left": {"2"}, "vanished": {"4"}}, {"enforce"})
    audit.path.rename(tmp_path / "audit.jsonl.1")
    assert jobs_and_modes(tmp_path, ("left",), 0)[0]["left"] == {"1", "2"}


def test_the_jobs_count_against_the_limits_of_their_accounts() -> None:
    """At most two GPUs of the account: the second job waits for the first, under the policy as under Slurm."""
    known = {"account": "lab", "qos": "normal", "tres": "cpu=2,gres/gpu=2,node=1"}
    runs = [run_of(1, 0, 0, 100, **known), run_of(2, 0, 100, 100, **known), run_of(3, 0, 0, 50)]
    association = Association("lab", "ann", job={}, group={"GrpTRES=gres/gpu": 2.0})
    limits = SiteLimits({}, {("lab", "ann", ""): association})
    free, held = (shadow.report(runs, site(8), FIFO, limits=each) for each in (None, limits))
    assert (free.outcomes[1].figures["max_wait_s"], held.outcomes[1].figures["max_wait_s"]) == (0, 100)
    told = " ".join(shadow.remarks(held, 0, 0))
    assert "2 of 3 jobs counted against limits of today" in told
    assert "GrpTRES=gres/gpu of users in account lab (2)" in told
    assert "1 job without a known account and QOS" in told
    assert "Limits per user" in shadow.limitations(free.past)[1]
    assert "Limits per user" not in shadow.limitations(held.past)[1]


# the command


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Settings, a fake Slurm with recorded nodes, and two jobs of today."""
    nodes = Path(__file__).parents[2] / "recorded" / "22.05" / "nodes.txt"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "scontrol").write_text(f"#!/bin/sh\ncat {nodes}\n")
    (tmp_path / "bin" / "scontrol").chmod(0o755)
    (tmp_path / "state").mkdir()
    ago = int(time.time()) - EPOCH
    with History(tmp_path / "state" / "history.sqlite") as history:
        history.record(
            [run_of(1, ago - 5000, 600, 100), run_of(2, ago - 4000, 0, 50), run_of(3, ago - 10**6, 0, 10**6)]
        )
    path = tmp_path / "asrpt.toml"
    tables = {"slurm": {"bin_dir": str(tmp_path / "bin")}, "paths": {"state": str(tmp_path / "state")}}
    lines = [
        f"[{name}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in each.items()) for name, each in tables.items()
    ]
    path.write_text("".join(lines))
    return path


def test_the_shadow_report_command(config: Path, tmp_path: Path) -> None:
    words = ["shadow-report", "--config", str(config)]
    done = CliRunner().invoke(app, [*words, "--html", str(tmp_path / "r.html")])
    assert done.exit_code == 0, done.output
    assert re.search(r"^ann +2 ", done.stdout, re.MULTILINE)
    assert "not simulated" in done.stdout
    assert "By user" in (tmp_path / "r.html").read_text()
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert [row["policy"] for row in found["rows"]] == [what_if.AS_IT_WAS, PolicySettings().name, "slurm-backfill"]
    assert found["notes"]["jobs"] == 2  # the third job is older
    assert found["notes"]["gpus"] == 28  # of the recorded partition gpu
    assert found["users"][0]["verdict"] == "wins"
    assert any("Neither the limits of QOS and accounts nor" in line for line in found["remarks"])  # a poor scontrol
    limits = Path(__file__).parents[2] / "recorded" / "22.05" / "assoc_mgr.txt"
    found = json.loads(CliRunner().invoke(app, [*words, "--json", "--limits", str(limits)]).stdout)
    assert found["notes"]["site_limits"]["unknown"] == 2
    none = CliRunner().invoke(app, [*words, "--since", "1hours"])
    assert isinstance(none.exception, InputError)
