"""asrpt-sim with a share of jobs that may be preempted."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from slurm_asrpt_cli.sim import app
from typer.testing import CliRunner

from slurm_asrpt.errors import InputError
from slurm_asrpt.reporting.simulation.result_digest import occupancy
from slurm_asrpt.sim.results import load, run_scenario, save
from slurm_asrpt.sim.scenario import make_scenario, parse_policy, scenario_of

TRACE = ["pai-like:600:2", "--servers", "4", "--single-gpu", "0", "--load", "1.5", "--predictor", "median"]
INTERRUPTS = "asrpt-gated:interrupts=true"


def ask(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def compared(*more: str) -> list[dict[str, Any]]:
    done = ask("compare", *TRACE, "-p", f"{INTERRUPTS},asrpt-gated", "--json", *more)
    assert done.exit_code == 0, done.output
    rows: list[dict[str, Any]] = json.loads(done.stdout)["policies"]
    return sorted(rows, key=lambda row: row["policy"])


def test_only_a_policy_that_preempts_does_so_and_only_those_who_agree() -> None:
    gated, interrupting = compared("--consent", "0.5")
    assert "preempted" not in gated
    assert interrupting["preempted"] > 0
    assert 0 < interrupting["lost_to_preemption"] < 0.05
    assert interrupting["consenting_mean_jct_s"] > 0
    assert interrupting["others_mean_jct_s"] > 0
    assert max(gated["utilisation_arriving"], interrupting["utilisation_arriving"]) <= 1
    assert compared()[1]["mean_jct_s"] == pytest.approx(gated["mean_jct_s"])


@pytest.mark.parametrize("command", [["run", "-p"], ["compare", "-p"]])
@pytest.mark.parametrize(
    ("policy", "consent", "warned"),
    [("hlas", "0", True), (INTERRUPTS, "0", True), ("hlas", "0.5", False), ("asrpt-gated", "0", False)],
)
def test_a_policy_that_cannot_preempt_any_job_is_named(
    command: list[str], policy: str, consent: str, warned: bool
) -> None:
    done = ask(command[0], *TRACE, "--jobs", "40", command[1], policy, "--consent", consent)
    assert done.exit_code == 0, done.output
    assert ("cannot preempt any" in done.output) == warned


@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize(("policy", "told"), [("hlas:predict=loss", True), ("hlas", False)])
def test_a_policy_that_predicts_by_losses_is_told_that_there_are_none(command: str, policy: str, told: bool) -> None:
    done = ask(command, *TRACE, "--jobs", "40", "-p", policy, "--consent", "0.5")
    assert done.exit_code == 0, done.output
    assert ("simulated jobs report no loss" in done.output) == told


def test_hlas_preempts_as_in_the_daemon() -> None:
    (hlas,) = json.loads(ask("compare", *TRACE, "-p", "hlas:first_gpu_s=600", "--consent", "1", "--json").stdout)[
        "policies"
    ]
    assert hlas["preempted"] > 0


def test_what_a_preemption_costs_may_be_set() -> None:
    cheap, dear = (
        compared("--consent", "1", "--preemption-costs", costs)[1]["lost_to_preemption"]
        for costs in ("1,1,1", "300,121,600")
    )
    assert cheap < dear


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--consent", "2"], "between 0 and 1"),
        (["--consent", "0.5", "--preemption-costs", "1,2"], "three numbers of seconds"),
        (["--consent", "0.5", "--preemption-costs", "1,2,x"], "three numbers of seconds"),
        (["--consent", "0.5", "--preemption-costs", "1,2,nan"], "seconds, at least 0"),
    ],
)
def test_bad_input_is_refused(words: list[str], text: str) -> None:
    done = ask("compare", *TRACE, *words)
    assert isinstance(done.exception, InputError)
    assert text in str(done.exception)


def test_contention_and_preemption_are_not_simulated_together() -> None:
    scenario = made(consent=0.5, cluster={"servers": 4, "contention": 0.2})
    with pytest.raises(InputError, match="--consent and --contention cannot be simulated together"):
        run_scenario(scenario)


def made(consent: float, cluster: dict[str, Any] | None = None) -> Any:
    options = {"consent": consent, "single_gpu": 0.0, "load": 1.5, "predictor": "median"}
    return make_scenario("pai-like:600:2", parse_policy(INTERRUPTS), cluster or {"servers": 4}, options)


def test_a_sweep_varies_the_share(tmp_path: Any) -> None:
    done = ask("sweep", *TRACE, "-p", INTERRUPTS, "--grid", "consent=0,0.5,1", "-o", str(tmp_path / "out"), "--json")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["cells"]
    assert [row["consent"] for row in rows] == [0, 0.5, 1]
    assert "preempted" not in rows[0]
    assert 0 < rows[1]["preempted"] < rows[2]["preempted"]


def test_the_facts_of_a_run_say_what_preemption_gave() -> None:
    text = ask("run", *TRACE, "-p", INTERRUPTS, "--consent", "0.5").stdout
    assert "of 50% of the jobs" in text
    assert "per job" in text


def test_the_placement_of_a_preempted_job_is_its_last_one() -> None:
    record = run_scenario(made(consent=1.0))
    counts = np.bincount(record.placements.job, record.placements.gpus, minlength=len(record.jobs))
    started = record.jobs["start_s"].notna()
    assert counts.tolist() == (record.jobs["gpus"] * started).tolist()
    assert record.meta["summary"]["preempted"] > 0


def test_a_report_counts_the_gpus_of_every_run_of_a_preempted_job(tmp_path: Any) -> None:
    save(run_scenario(made(consent=1.0)), tmp_path / "out")
    record = load(tmp_path / "out")
    used = occupancy(record.jobs, record.placements, [8] * 4, record.meta["clock_s"])
    assert used.values["used"].max() <= 32
    assert used.values["part"].min() >= 0
    whole = np.array([0.0, record.jobs["end_s"].max()])
    assert used.means(whole)["used"][0] / 32 == pytest.approx(record.meta["summary"]["utilisation"])


def test_what_preemption_lost_is_what_jobs_held_without_progress() -> None:
    """Also where a restart is cut short by the next preemption."""
    options = {"consent": 0.6, "load": 1.2, "models": "none", "checkpoint_s": 30.0, "restart_s": 900.0}
    record = run_scenario(make_scenario("pai-like:600:2", parse_policy("hlas:min_run_s=0"), {"servers": 3}, options))
    every, jobs = record.placements.every, record.jobs[record.jobs["end_s"].notna()]
    assert every is not None
    held = float((every.gpus * (every.end - every.begin)).sum())
    useful = float((jobs["gpus"] * jobs["iterations"]).sum())
    assert record.meta["summary"]["lost_to_preemption"] == pytest.approx((held - useful) / held)


def test_without_consent_scenarios_are_as_in_earlier_releases() -> None:
    plain, some = made(consent=0.0), made(consent=0.25)
    assert not {"consent", "checkpoint_s", "requeue_s", "restart_s"} & plain.document()["options"].keys()
    assert some.document()["options"]["consent"] == 0.25
    assert scenario_of(json.loads(json.dumps(some.document()))) == some
    assert scenario_of(plain.document()) == plain
