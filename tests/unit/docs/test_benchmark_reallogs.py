"""The windows, cache, ratios and goals of benchmarks.reallogs; the simulations are small."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import real_windows, reallogs
from benchmarks.real_windows import BLIND, PARTS, PERFECT, SHUFFLED, Cell, Log, code, logs, sizes, windows, workload
from slurm_asrpt.sim.engine import simulate_named
from slurm_asrpt.traces.trace import Trace, clean


def trace(jobs: int, seed: int = 0) -> Trace:
    """Jobs of a few groups that wait on one server of 8 GPUs."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 6, jobs)
    frame = pd.DataFrame(
        {
            "job_id": np.arange(jobs).astype(str),
            "submit_s": np.cumsum(rng.integers(1, 100, jobs)),
            "gpus": 2 ** (group % 4),
            "duration_s": 100.0 * (1 + group) * rng.uniform(0.8, 1.2, jobs),
            "user": [f"u{each}" for each in group],
            "group": [f"g{each}" for each in group],
        }
    )
    return clean("made", frame)


def log(jobs: int = 600, held_out: int = 1, path: Path = Path(__file__)) -> Log:
    made = trace(jobs)
    submit = made.jobs["submit_s"].to_numpy()
    edges = (*(float(submit[jobs * part // PARTS]) for part in range(PARTS)), float("inf"))
    return Log("made", path, made, (1, 2), edges, held_out)


def cell(**changes: Any) -> Cell:
    given = {"log": "made", "first": 200, "history": 100, "jobs": 100, "servers": 2, "load": 1.2, "models": "none"}
    more = {"seed": 0, "held_out": False, "predictors": ("expected", PERFECT, SHUFFLED)}
    return Cell(**{**given, **more, **changes})


@given(st.integers(0, 2), st.integers(0, 1000), st.integers(1, 5), st.integers(20, 400))
def test_no_window_has_a_job_that_is_held_out(held_out: int, seed: int, count: int, most: int) -> None:
    made = log(held_out=held_out)
    third = range(600 * held_out // 3, 600 * (held_out + 1) // 3)
    for first, history, jobs in windows(made, count, most, seed, held_out=False):
        assert history <= first
        assert jobs <= most
        assert not set(third) & set(range(first, first + jobs))
    for first, _, jobs in windows(made, count, most, seed, held_out=True):
        assert set(range(first, first + jobs)) <= set(third)


def test_windows_depend_on_the_seed_only() -> None:
    made = log()
    assert windows(made, 3, 120, 1, False) == windows(made, 3, 120, 1, False)
    assert windows(made, 3, 120, 1, False) != windows(made, 3, 120, 2, False)


def test_without_published_traces_the_samples_are_the_logs(tmp_path: Path) -> None:
    assert [each.name for each in logs(tmp_path)] == ["philly", "itp", "helios"]


def test_a_cluster_holds_the_largest_job_and_the_load() -> None:
    few = trace(50)
    assert sizes(few)[1] == 2 * sizes(few)[0]
    assert sizes(few)[0] * 8 >= int(few.jobs["gpus"].max())


def test_a_cell_has_its_load_and_its_jobs() -> None:
    made = workload(log(), cell(), PERFECT)
    assert len(made.table) == 100
    assert made.notes["history_jobs"] == 100
    assert made.notes["load"] == pytest.approx(1.2)
    assert (made.table.predicted == made.table.iterations).all()


def test_shuffled_predictions_are_the_run_times_of_other_jobs() -> None:
    table = workload(log(), cell(), SHUFFLED).table
    assert sorted(table.predicted) == pytest.approx(sorted(table.iterations))
    assert (table.predicted != table.iterations).mean() > 0.8
    assert table.learning is None


@pytest.mark.parametrize("name", [*BLIND, "wcs-workload"])
def test_policies_that_use_no_predictions(name: str) -> None:
    """Their results are shared by all kinds of predictions."""
    starts = []
    for kind in (PERFECT, SHUFFLED):
        made = workload(log(), cell(), kind)
        starts.append(simulate_named(name, made.cluster.nodes, made.table, made.cluster.fabric).start.tolist())
    assert (starts[0] == starts[1]) == (name in BLIND)


def test_results_depend_on_the_sources_of_their_policy_only() -> None:
    assert code("asrpt-gated", PERFECT, "none") != code("fifo", PERFECT, "none")
    assert code("spjf", PERFECT, "none") == code("fifo", PERFECT, "none")  # one module
    assert code("fifo", "expected", "none") != code("fifo", PERFECT, "none")


def test_a_variant_costs_only_its_own_simulations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def counting(name: str, *rest: Any, **more: Any) -> Any:
        ran.append(name)
        return simulate_named(name, *rest, **more)

    monkeypatch.setattr(real_windows, "STORE", tmp_path)
    monkeypatch.setattr(real_windows, "simulate_named", counting)
    monkeypatch.setattr(reallogs, "log_table", lambda folder: {"made": log()})
    rows = reallogs.play(tmp_path, cell(), ["asrpt-gated"], fresh=False)
    others = 2 * len(reallogs.OTHERS)
    assert len(ran) == 3 * (1 + others - 2 * len(BLIND)) + 2 * len(BLIND)
    ran.clear()
    again = reallogs.play(tmp_path, cell(), ["asrpt-gated"], fresh=False)
    assert (again, ran) == (rows, [])
    reallogs.play(tmp_path, cell(), ["asrpt-gated:patience_s=1000.0"], fresh=False)
    assert ran == ["asrpt-gated"] * 3


def test_ratios_of_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_windows, "STORE", tmp_path)
    monkeypatch.setattr(reallogs, "log_table", lambda folder: {"made": log()})
    (row,) = reallogs.play(tmp_path, cell(predictors=(PERFECT,)), ["wcs-workload:nodes=fewest"], fresh=False)
    assert row["mean_ratio"] == pytest.approx(row["mean_s"] / row["best_s"], abs=1e-4)
    assert row["mean_ratio"] >= 1  # it is one of the others
    assert row["mean_ratio_all"] >= row["mean_ratio"]
    backfill = row["policies"]["easy-backfill:nodes=fewest"]["sizes"]
    ours = row["policies"]["wcs-workload:nodes=fewest"]["sizes"]
    ratios = {name: ours[name]["mean_s"] / backfill[name]["mean_s"] for name in ours}
    assert row["size_ratios"] == pytest.approx(ratios, abs=1e-4)
    assert min(ours.values(), key=lambda each: each["jobs"]) is ours["8"]
    assert ours["8"]["jobs"] < reallogs.LEAST_CLASS  # too few jobs for a goal
    assert row["size_ratio"] == pytest.approx(max(ratios["1"], ratios["2-7"]), abs=1e-4)
    assert 0.3 < row["bound_ratio"] <= 1
    assert row["bound_ratio"] == pytest.approx(row["bound_s"] / row["best_s"], abs=1e-4)
    assert row["bound_s"] <= min(each["mean_s"] for each in row["policies"].values())


def test_the_bound_is_the_larger_of_two_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_windows, "STORE", tmp_path)
    jobs = real_windows.Jobs(log(), cell(), PERFECT)
    found = real_windows.least_mean(jobs, 1e4, fresh=False)
    (file,) = tmp_path.iterdir()
    assert found == max(json.loads(file.read_text()).values())
    file.write_text(json.dumps({"priced_s": 3.0, "sound_s": 4.0}))
    assert real_windows.least_mean(jobs, 1e4, fresh=False) == 4
    assert real_windows.least_mean(jobs, 1e4, fresh=True) == found


def test_a_fair_comparison_leaves_out_policies_that_miss_other_goals() -> None:
    def figures(mean_s: float, p99_wait_s: float, single_s: float) -> dict[str, Any]:
        sizes = {"1": {"jobs": 50, "mean_s": single_s}}
        same = {"bounded_slowdown": 1.0, "worst_slowdown": 1.0, "waited": 0.5, "notes": {"load_of_trace": 1.0}}
        return {"mean_s": mean_s, "p99_wait_s": p99_wait_s, "sizes": sizes, **same}

    found = dict.fromkeys(
        (name + end for name in reallogs.OTHERS for end in ("", reallogs.FEWEST)), figures(200, 1000, 100)
    )
    found["spjf" + reallogs.FEWEST] = figures(
        80, 1000, 111
    )  # a size class is slow; its waits are those to compare with
    found["asrpt" + reallogs.FEWEST] = figures(90, 1201, 100)  # waits are long
    found["spwf" + reallogs.FEWEST] = figures(110, 1200, 110)
    found["asrpt-gated"] = figures(99, 1000, 100)
    row = reallogs.row(cell(), PERFECT, "asrpt-gated", found, 60.0)
    assert (row["best"], row["best_fair"]) == ("spjf", "spwf")
    assert row["best_keeps"] == {"size": False, "p99_wait": True}
    assert (row["mean_ratio"], row["mean_ratio_fair"], row["bound_ratio"]) == (1.2375, 0.9, 0.75)
    slow = {name: figures(each["mean_s"], each["p99_wait_s"], 200) for name, each in found.items()}
    slow[reallogs.BACKFILL] = figures(200, 1e6, 100)
    alone = reallogs.row(cell(), PERFECT, "asrpt-gated", slow, 60.0)
    assert (alone["best_fair"], alone["mean_ratio_fair"]) == ("", None)


def test_goals_count_the_cells_that_keep_them() -> None:
    def row(predictor: str, ratio: float, held_out: bool = False) -> dict[str, Any]:
        keys = ("mean_ratio", "mean_ratio_all", "p99_wait_ratio", "size_ratio", "blind_ratio")
        about = {"log": "x", "first": 0, "servers": 1, "load": 1.0, "models": "none", "policy": "asrpt-gated"}
        policies = {"fifo:nodes=fewest": {"mean_s": 100.0}, "fifo": {"mean_s": 1.0}}
        figures = {"mean_s": 100.0 * ratio, "policies": policies, **dict.fromkeys(keys, ratio)}
        fair = "spwf" if ratio < 1.1 else ""
        figures |= {"best": "spjf", "best_keeps": {"size": False, "p99_wait": True}, "best_fair": fair}
        figures |= {"mean_ratio_fair": ratio if fair else None, "bound_ratio": ratio}
        return {**about, "predictor": predictor, "held_out": held_out, **figures}

    rows = [row("expected", 0.9), row("expected", 1.1), row(PERFECT, 0.8), row(SHUFFLED, 1.04), row(PERFECT, 3, True)]
    found = reallogs.summary(rows)
    kept = found["asrpt-gated"]
    assert (kept["mean"]["kept"], kept["mean"]["of"], kept["mean"]["worst"]) == (2, 3, 1.1)
    assert kept["mean_of_learned"] == {"goal": 0.95, "average": 1.0, "geometric": 0.995, "met": False}
    assert kept["mean_of_perfect"]["met"]
    assert kept["shuffled"]["kept"] == 1
    assert kept["over_each"] == {"fifo": {"expected": 0.995, "perfect": 0.8, "shuffled": 1.04}}
    assert kept["same_measure"]["fifo"][PERFECT] == {"kept": 0, "average": 1.25}  # 100 s over 80 s
    assert kept["same_measure"]["asrpt-gated"]["expected"] == {"kept": 1, "average": 1.0}
    assert (kept["mean_fair"]["kept"], kept["mean_fair"]["of"]) == (2, 2)
    assert [kept["least_of_perfect"][key] for key in ("average", "above_goal", "of")] == [0.8, 0, 1]
    assert [(each["mean_ratio"], each["best_misses"]) for each in kept["conflicts"]] == [(1.1, ["size"])]
    assert found["asrpt-gated (held out)"]["least_of_perfect"]["above_goal"] == 1
    assert found["asrpt-gated (held out)"]["mean"]["worst"] == 3


def test_the_command_on_the_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(real_windows, "STORE", tmp_path / "store")
    monkeypatch.setattr(real_windows, "LEAST_JOBS", 20)
    given = ["--quick", "--logs", "helios", "--loads", "1.0", "--jobs", "40", "--traces", str(tmp_path), "-j", "1"]
    documents = []
    for arguments in (["--json"], ["--json", "--held-out"], []):
        monkeypatch.setattr(sys, "argv", ["reallogs", *given, *arguments])
        assert reallogs.main() == 0
        documents.append(capsys.readouterr().out)
    ours, held_out = (json.loads(text) for text in documents[:2])
    assert ours["traces"] == "samples"
    assert {each["held_out"] for each in ours["cells"]} == {False}
    assert {each["held_out"] for each in held_out["cells"]} == {True}
    assert {each["predictor"] for each in ours["cells"]} == {"expected", PERFECT, SHUFFLED}
    assert "asrpt-gated: " in documents[2]
