"""Fig. 5 of the A-SRPT paper on a lab: its jobs, its recorded runs, and its part of the page. No lab is played here."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from papers.asrpt import fig5_lab
from papers.asrpt.claims import claims
from papers.asrpt.evidence import Evidence
from papers.asrpt.fig5_lab import FIGURE, POLICIES, SCALE, LabJob, LabRun, by_policy, jobs_of, load, play_missing, runs
from papers.asrpt.page import asrpt_page
from papers.asrpt.simulations import ASRPT, GATED, IDEAL
from papers.asrpt.workload import TESTBED_JOBS, Jobs, make
from papers.seeded import Seeds
from slurm_asrpt.errors import AsrptError, MachineError
from slurm_asrpt.lab.site.sides import Record, Setup


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of a small trace, and a user that need not exist."""
    monkeypatch.setattr(fig5_lab, "DIVIDE", 2000)
    monkeypatch.setattr(fig5_lab, "identity", lambda user: (1001, 1001))


def test_the_jobs_are_those_of_the_simulation_at_a_tenth() -> None:
    workload = make(Jobs(divide=2000, testbed=1), 0)
    table, cluster = workload.table, workload.cluster
    run_s = table.iterations * table.best_alphas(cluster.nodes, cluster.fabric)
    found, perfect = jobs_of(LabRun(ASRPT, 0, 1)), jobs_of(LabRun(IDEAL, 0, 1))
    assert [each.job.gpus for each in found] == table.gpus.tolist()
    assert [each.job.run_s for each in found] == pytest.approx(SCALE * run_s, rel=0.01, abs=1.0)
    assert [each.job.submit_s for each in found] == pytest.approx(SCALE * table.submit)
    assert [each.predicted_s == 0 for each in found] == (table.predicted == 0).tolist()
    assert [each.predicted_s for each in perfect] == [each.job.run_s for each in found]
    assert min(each.job.run_s for each in found) >= 1


def test_each_job_is_a_group_of_its_own_with_its_prediction() -> None:
    jobs = jobs_of(LabRun(ASRPT, 0, 0))
    entries = fig5_lab.predictions(jobs)
    assert len(entries) == sum(each.predicted_s > 0 for each in jobs)
    assert sorted(entry.iterations for entry in entries.values()) == sorted(
        e.predicted_s for e in jobs if e.predicted_s
    )
    with pytest.raises(AsrptError, match="2 jobs are of 1 groups"):
        fig5_lab.predictions([jobs[0], jobs[0]])


def records(jobs: list[LabJob], late_s: float) -> list[Record]:
    """One job after the other, each submitted when it was due and ``late_s``."""
    ends = np.cumsum([each.job.run_s for each in jobs]) + 1e6
    return [
        Record(each.job.submit_s, each.job.submit_s + late_s, end - each.job.run_s, end, "COMPLETED")
        for each, end in zip(jobs, ends.tolist(), strict=True)
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_has_its_figures_and_those_of_the_simulator(policy: str) -> None:
    run = LabRun(policy, 0, 0)
    jobs = jobs_of(run)
    rows = records(jobs, 3.0)
    found = fig5_lab.result_of(run, jobs, rows, 20.0)
    assert found["mean_jct_s"] == pytest.approx(fmean(each.end - each.submit for each in rows), abs=0.1)
    assert found["makespan_s"] == rows[-1].end - rows[0].submit
    assert (found["late_s"], found["longer_s"], found["completed"]) == (3.0, 0.0, TESTBED_JOBS)
    assert max(each.job.run_s for each in jobs) <= found["simulated_makespan_s"] < found["makespan_s"]
    assert fmean(each.job.run_s for each in jobs) <= found["simulated_s"] < found["mean_jct_s"]
    assert json.loads(json.dumps(found)) == found


def result(run: LabRun, hours: float = 1.0) -> dict[str, object]:
    figures = {
        "mean_jct_s": 3600 * hours,
        "makespan_s": 7200.0,
        "simulated_s": 3000.0,
        "simulated_makespan_s": 3600.0,
        "late_s": 2.0,
        "longer_s": 9.0,
    }
    return {
        **figures,
        "policy": run.policy,
        "seed": run.seed,
        "set": run.number,
        "jobs": run.jobs,
        "speed": 20.0,
        "completed": 75,
    }


def test_recorded_runs_are_not_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[str] = []

    def play(run: LabRun, setup: Setup) -> dict[str, object]:
        if len(played) == 5:
            raise AsrptError("no more")
        played.append(run.name)
        return result(run)

    monkeypatch.setattr(fig5_lab, "play", play)
    file, wanted, told = tmp_path / "new" / "runs.json", runs(0, 1, 1), []
    with pytest.raises(AsrptError, match="no more"):
        play_missing(file, wanted, 20.0, 27000, 1, lambda *_: None)
    assert load(file).keys() == set(played)
    first, played[:] = list(played), []
    play_missing(file, wanted, 20.0, 27000, 1, lambda done, total, name: told.append((done, total)))
    assert sorted([*first, *played]) == sorted(run.name for run in wanted)
    assert told == [(6, 8), (7, 8), (8, 8)]


@pytest.mark.parametrize("slow", [{"late_s": 11.0}, {"longer_s": 41.0}])
def test_a_run_on_a_machine_that_was_too_slow_is_played_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slow: dict[str, float]
) -> None:
    run = LabRun(ASRPT, 0, 0)
    results = [{**result(run), **slow}, result(run, 2.0), *[{**result(run), **slow}] * 3]
    monkeypatch.setattr(fig5_lab, "play", lambda *_: results.pop(0))
    found = play_missing(tmp_path / "a.json", [run], 20.0, 27000, 1, lambda *_: None)
    assert found[run.name]["mean_jct_s"] == 7200.0
    with pytest.raises(MachineError, match="the machine is too busy; use a lower --speed"):
        play_missing(tmp_path / "b.json", [run], 20.0, 27000, 1, lambda *_: None)


def test_only_sets_that_all_policies_have_played_count() -> None:
    assert by_policy({}) == {}
    recorded = {run.name: result(run) for run in runs(0, 1, 2)}
    del recorded[LabRun(GATED, 0, 0).name]
    recorded |= {run.name: result(run) for run in runs(0, 1, 3, 25)}
    sets = {name: [each["set"] for each in found] for name, found in by_policy(recorded).items()}
    assert sets == {name: [1] for name in POLICIES}


def page(lab: dict[str, list[fig5_lab.Result]]) -> tuple[str, Evidence]:
    evidence = Evidence(Jobs(), Seeds(0, 2), {}, {}, lab)
    return asrpt_page([FIGURE], evidence), evidence


def test_the_page_compares_the_policies_of_the_lab() -> None:
    hours = {IDEAL: 1.0, ASRPT: 1.05, GATED: 0.9}
    recorded = {run.name: result(run, hours.get(run.policy, 2.0)) for run in runs(0, 1, 3)}
    text, evidence = page(by_policy(recorded))
    assert "| spjf | 120 ± 0 min | 2.00 ± 0.00 times | 120 ± 0 min | 50.0 ± 0.0 min | 60.0 ± 0.0 min |" in text
    assert "3 sets of 75 jobs under 8 policies on clocks 20 times as fast" in text
    assert "1800 of 1800 jobs completed" in text
    verdicts = {claim.claim: (claim.verdict, claim.seeds) for claim in claims([FIGURE], evidence)}
    assert verdicts["A-SRPT is within 7% of A-SRPT-Perfect"] == ("holds", 3)
    assert verdicts["A-SRPT outperforms all baselines"] == ("holds", 3)
    assert {claim.command for claim in claims([FIGURE], evidence)} == {"python -m papers.asrpt fig5-lab"}


def test_without_a_run_the_page_says_so() -> None:
    text, evidence = page({})
    assert "**Cannot be tested:** no run is recorded." in text
    (claim,) = claims([FIGURE], evidence)
    assert (claim.verdict, claim.region) == ("cannot be tested", "no run is recorded")


def test_the_first_jobs_of_a_set_are_a_smaller_set() -> None:
    assert jobs_of(LabRun(ASRPT, 0, 0, 25)) == jobs_of(LabRun(ASRPT, 0, 0))[:25]
    assert LabRun(ASRPT, 0, 0, 25).name == "seed 0, set 1, 25 jobs, asrpt"


def test_the_reproduction_page_has_the_recorded_runs() -> None:
    docs = Path(__file__).parents[3] / "docs" / "reproduction.md"
    text, _ = page(by_policy(load(fig5_lab.FILE)))
    section = text[text.index("## Fig. 5") :]
    assert section.strip() in docs.read_text(encoding="utf-8")
