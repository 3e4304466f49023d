"""Result directories: results are read back unchanged for any user names, and no other files are overwritten."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import Node, Placement
from slurm_asrpt.errors import InputError
from slurm_asrpt.sim import results
from slurm_asrpt.sim.engine import Result
from slurm_asrpt.sim.metrics import bounds, over_bounds, summary
from slurm_asrpt.sim.recorder import Recorder, simulate_recorded
from slurm_asrpt.sim.results import find_results, load, record_of, run_scenario, save
from slurm_asrpt.sim.scenario import Scenario, make_scenario, parse_policies, parse_policy, scenario_of
from slurm_asrpt.sim.workload import Workload

TRACE = "pai-like:800:6"


def scenario(policy: str = "asrpt", **options: object) -> Scenario:
    made = {"jobs": 150, "load": 0.8, "models": "none", **options}
    return make_scenario(TRACE, parse_policy(policy), {"servers": 8}, made)


def test_a_result_is_read_back_unchanged(tmp_path: Path) -> None:
    record = run_scenario(scenario())
    save(record, tmp_path / "out")
    again = load(tmp_path / "out")
    assert again.meta == record.meta
    assert again.scenario == scenario()
    for name in record.jobs:
        assert again.jobs[name].astype(str).tolist() == record.jobs[name].astype(str).tolist(), name
    for name, column in record.placements.columns.items():
        np.testing.assert_array_equal(again.placements.columns[name], column)


def test_placements_are_those_of_the_jobs() -> None:
    record = run_scenario(scenario(models="table1"))
    given_gpus = np.bincount(record.placements.job, record.placements.gpus, len(record.jobs))
    assert given_gpus.tolist() == record.jobs["gpus"].tolist()
    assert np.diff(record.placements.first).tolist() == record.jobs["nodes"].tolist()


def test_the_same_scenario_writes_the_same_jobs(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(run_scenario(scenario()), tmp_path / name)
    assert (tmp_path / "a" / results.JOBS).read_bytes() == (tmp_path / "b" / results.JOBS).read_bytes()


def test_a_recorder_does_not_change_the_schedule() -> None:
    from slurm_asrpt.sim.engine import simulate_named

    made = scenario("asrpt:tau=0")
    workload = made.workload()
    plain = simulate_named("asrpt", workload.cluster.nodes, workload.table, workload.cluster.fabric, {"tau": 0})
    watched = simulate_recorded(made.spec, workload, Recorder(workload.cluster.nodes))
    np.testing.assert_array_equal(plain.end, watched.end)


@pytest.fixture(scope="module")
def played() -> tuple[Scenario, Workload, Recorder, Result]:
    made = scenario()
    workload = made.workload()
    recorder = Recorder(workload.cluster.nodes)
    return made, workload, recorder, simulate_recorded(made.spec, workload, recorder)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.one_of(st.sampled_from(["NA", "nan", "null", "", '"', ",", "a\r\nb", "\n", "=1+1"]), st.text()))
def test_any_user_name_is_read_back_unchanged(
    tmp_path: Path, played: tuple[Scenario, Workload, Recorder, Result], name: str
) -> None:
    made, workload, recorder, result = played
    named = replace(result, table=replace(result.table, users=[name] * len(result.table)))
    save(record_of(made, workload, named, recorder), tmp_path / "out")
    written = name.encode(errors="backslashreplace").decode()
    assert set(load(tmp_path / "out").jobs["user"]) == {written}


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    record = run_scenario(scenario())
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(InputError, match=r"other files \(mine.txt\)"):
        save(record, tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "precious"
    with pytest.raises(InputError, match="not a directory"):
        save(record, tmp_path / "mine.txt")


def test_a_result_with_a_foreign_file_is_not_replaced(tmp_path: Path) -> None:
    record = run_scenario(scenario())
    save(record, tmp_path / "out")
    (tmp_path / "out" / "notes.txt").write_text("x")
    with pytest.raises(InputError, match=r"notes\.txt"):
        save(record, tmp_path / "out")


def test_a_result_is_replaced_and_no_draft_remains(tmp_path: Path) -> None:
    save(run_scenario(scenario("fifo")), tmp_path / "out")
    save(run_scenario(scenario("asrpt")), tmp_path / "out")
    assert load(tmp_path / "out").scenario.policy == "asrpt"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_failed_write_leaves_the_old_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(run_scenario(scenario("fifo")), tmp_path / "out")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results, "_write_jobs", full)
    with pytest.raises(OSError, match="No space"):
        save(run_scenario(scenario("asrpt")), tmp_path / "out")
    assert load(tmp_path / "out").scenario.policy == "fifo"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("damage", [results.RESULT, results.JOBS, results.PLACEMENTS])
def test_a_damaged_result_is_a_one_line_error(tmp_path: Path, damage: str) -> None:
    save(run_scenario(scenario()), tmp_path / "out")
    (tmp_path / "out" / damage).write_bytes(b"\x1f\x8bnonsense")
    with pytest.raises(InputError, match=damage):
        load(tmp_path / "out")


def test_a_result_of_another_schema_is_refused(tmp_path: Path) -> None:
    save(run_scenario(scenario()), tmp_path / "out")
    path = tmp_path / "out" / results.RESULT
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))
    with pytest.raises(InputError, match="schema 99"):
        load(tmp_path / "out")


def test_results_in_subdirectories_are_found_but_no_drafts(tmp_path: Path) -> None:
    save(run_scenario(scenario()), tmp_path / "a" / "cells" / "x")
    save(run_scenario(scenario()), tmp_path / "a" / "cells" / ".x.draft")
    assert find_results(tmp_path / "a") == [tmp_path / "a" / "cells" / "x"]
    with pytest.raises(InputError, match="no results"):
        find_results(tmp_path / "b")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fifo", ["fifo"]),
        ("asrpt:tau=0,delay=aside,fifo", ["asrpt:delay=aside,tau=0", "fifo"]),
        ("asrpt:tau=0,asrpt:tau=1,asrpt-perfect", ["asrpt:tau=0", "asrpt:tau=1", "asrpt-perfect"]),
        ("fifo, fifo", ["fifo"]),
    ],
)
def test_policies_by_text(text: str, expected: list[str]) -> None:
    assert [spec.text for spec in parse_policies(text)] == expected


def test_all_policies_are_all() -> None:
    from slurm_asrpt.core.policies import policy_names

    assert [spec.text for spec in parse_policies("all")] == [*policy_names(), "slurm-backfill:nodes=fewest"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense", "known: asrpt"),
        ("fifo:tau=1", "it has: nodes"),
        ("fifo:nodes=most", "the only value is nodes=fewest"),
        ("fifo:split=even", "the values are paper, slurm"),
        ("asrpt:tau", "it has: comm_heavy, contention, delay, nodes, split, tau"),
        ("asrpt:fabric=1", "no setting"),
        ("asrpt:tau=-1", "greater than or equal to 0"),
        ("asrpt:tau=x", "valid number"),
        ("asrpt:delay=never", "'block' or 'aside'"),
        ("", "no policy"),
    ],
)
def test_invalid_policies_are_a_one_line_error(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_policies(text)


def test_a_scenario_survives_json_and_has_a_name_of_its_own() -> None:
    made = scenario()
    assert scenario_of(json.loads(json.dumps(made.document()))) == made
    names = {made.name, scenario("fifo").name, scenario(seed=1).name, scenario(load=0.9).name}
    assert len(names) == 4
    with pytest.raises(InputError):
        scenario_of({"trace": "x"})


def test_another_trace_file_is_another_scenario(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    names = set()
    for text in ("a", "b"):
        file.write_text(text)
        names.add(make_scenario(str(file), parse_policy("fifo")).name)
    assert len(names) == 2
    with pytest.raises(InputError, match="no such trace"):
        make_scenario(str(tmp_path / "none.csv"))


def test_jobs_that_the_cluster_cannot_hold_are_excluded_from_the_bounds() -> None:
    made = make_scenario(TRACE, parse_policy("wcs-subtime"), {"servers": 1}, {"jobs": 200, "models": "none"})
    workload = made.workload()
    result = simulate_recorded(made.spec, workload, Recorder(workload.cluster.nodes))
    assert len(result.never_started) > 0
    lower = bounds(result.table, workload.cluster)
    assert 0 < lower["sound"] <= (summary(result, workload.cluster)["mean_jct_s"] or 0)
    assert (over_bounds(result, lower, workload.cluster)["over_sound"] or 0) >= 1


def test_an_interrupted_run_has_no_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Recorder.started

    def cut(self: Recorder, row: int, now: float, placement: Placement) -> None:
        if row >= 100:
            raise KeyboardInterrupt
        begin(self, row, now, placement)

    monkeypatch.setattr(Recorder, "started", cut)
    record = run_scenario(scenario("fifo"))
    assert record.interrupted
    assert record.meta["summary"]["over_sound"] is None
    assert 0 < record.meta["summary"]["ended"] < 150
    assert pd.isna(record.jobs["start_s"].iloc[-1])


def test_a_recorder_sorts_placements_by_job() -> None:
    recorder = Recorder([Node("a", 2, 0), Node("b", 2, 1)])
    recorder.started(2, 0.0, Placement({"b": 1}, ("b",), 1.0))
    recorder.started(0, 1.0, Placement({"a": 2, "b": 1}, ("a", "a", "b"), 1.0))
    found = recorder.placements(3)
    assert found.first.tolist() == [0, 2, 2, 3]
    assert (found.node.tolist(), found.gpus.tolist()) == ([0, 1, 1], [2, 1, 1])
