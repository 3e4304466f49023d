"""Reading the audit trail: times, truncated lines, rotated files, and the runs of jobs."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.audit.timeline import JobRun, Timeline, gpu_rows
from slurm_asrpt.audit.trail import FILE_NAME, entries
from slurm_asrpt.config.settings import AuditSettings
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.errors import AsrptError, InputError
from slurm_asrpt.slurm.notation import read_time
from tests.benches.daemon import Bench


def turns(state: Path, since: float = 0.0, until: float = 1e12) -> list[int]:
    return [entry["turn"] for entry in entries(state, since, until)]


def test_rotated_files_are_read_first_and_each_once(tmp_path: Path) -> None:
    audit = AuditWriter(tmp_path, AuditSettings(file_mb=1, files=3))
    for turn in range(4):
        audit.record(float(turn), "wait", "1", turn=turn, text="x" * (600 << 10))
        audit.flush()
    audit.record(4.0, "wait", "1", turn=4)
    audit.flush()
    assert sorted(path.name for path in tmp_path.glob(f"{FILE_NAME}*")) == [
        FILE_NAME,
        f"{FILE_NAME}.1",
        f"{FILE_NAME}.2",
    ]
    assert turns(tmp_path) == [0, 1, 2, 3, 4]
    assert turns(tmp_path, 1.0, 3.0) == [1, 2, 3]
    os.link(tmp_path / f"{FILE_NAME}.1", tmp_path / f"{FILE_NAME}.3")  # as if it were rotated during the read
    assert turns(tmp_path) == [0, 1, 2, 3, 4]


def test_entries_of_other_jobs_are_skipped_if_jobs_are_named(tmp_path: Path) -> None:
    audit = AuditWriter(tmp_path)
    for turn, job in enumerate(("4711", "4711_3", "47", "47110", "", "14711")):
        audit.record(float(turn), "not-started", job, turn=turn, other={"job": "4711"})
    audit.flush()
    found = [entry["turn"] for entry in entries(tmp_path, jobs={"4711"})]
    assert found == [0, 1, 4]  # and entries without a job


def test_a_lower_number_of_files_applies_from_the_next_rotation(tmp_path: Path) -> None:
    for number in (1, 2, 7):
        (tmp_path / f"{FILE_NAME}.{number}").write_text("{}\n")
    audit = AuditWriter(tmp_path, AuditSettings(file_mb=1, files=2))
    audit.record(1.0, "wait", text="x" * (1 << 20))
    audit.flush()
    assert [path.name for path in tmp_path.glob(f"{FILE_NAME}*")] == [f"{FILE_NAME}.1"]


def test_truncated_and_foreign_lines_are_skipped(tmp_path: Path) -> None:
    lines = ['{"time": 1.0, "event": "wait", "turn": 1}', '{"time": 2.0, "event": "wa', '{"time": 3.0, "event": 5}',
             '{"event": "wait", "time": "x"}', "[]", "null", "", "[" * 100_000, "\udcff",
             '{"time": 4.0, "event": "wait", "turn": 4}', '{"time": 5.0, "eve']  # fmt: skip
    (tmp_path / FILE_NAME).write_text("\n".join(lines), encoding="utf-8", errors="surrogateescape")
    assert turns(tmp_path) == [1, 4]


def test_a_missing_or_foreign_trail_is_a_one_line_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AsrptError, match=r"does not exist: asrptd has decided nothing yet"):
        list(entries(tmp_path))
    (tmp_path / FILE_NAME).touch()

    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(AsrptError, match="use sudo"):
        list(entries(tmp_path))


NOW = datetime(2026, 11, 21, 15, 30).timestamp()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("now", "2026-11-21T15:30"),
        ("now-2hours", "2026-11-21T13:30"),
        ("now-90minutes", "2026-11-21T14:00"),
        ("NOW+1day", "2026-11-22T15:30"),
        ("3days", "2026-11-18T15:30"),
        ("3d", "2026-11-18T15:30"),
        ("2 weeks", "2026-11-07T15:30"),
        ("90min", "2026-11-21T14:00"),
        ("now-2h", "2026-11-21T13:30"),
        ("today", "2026-11-21"),
        ("midnight", "2026-11-21"),
        ("noon", "2026-11-21T12:00"),
        ("yesterday", "2026-11-20"),
        ("14:30", "2026-11-21T14:30"),
        ("2:30pm", "2026-11-21T14:30"),
        ("2026-11-20", "2026-11-20"),
        ("2026-11-20T14:30:15", "2026-11-20T14:30:15"),
        ("2026-11-20 14:30", "2026-11-20T14:30"),
        ("1120", "2026-11-20"),
        ("11/20", "2026-11-20"),
        ("11/20/25", "2025-11-20"),
        ("11/20-14:30", None),
        ("", None),
        ("now-2foo", None),
        ("30", None),
        ("days", None),
        ("3 fortnights", None),
        ("now; rm", None),
        ("-1days", None),
        ("٣days", None),
        ("25:00", None),
        ("2026-13-01", None),
        ("99999999days", None),
        ("x" * 10_000, None),
    ],
)
def test_times_are_parsed_as_in_slurm(text: str, meant: str | None) -> None:
    if meant is None:
        with pytest.raises(InputError, match="is not a time; write 7d"):
            read_time(text, NOW)
    else:
        assert read_time(text, NOW) == datetime.fromisoformat(meant).timestamp()


def runs_of(bench: Bench) -> dict[str, JobRun]:
    found = Timeline(entries(bench.settings.paths.state)).runs
    return {run.job: run for run in found}


def test_a_job_waits_runs_and_ends(make_bench: Any) -> None:
    bench = make_bench((4, 4, 4), policy="asrpt-gated")
    job_id, other = bench.slurm.submit(4, 30, "flat", name="a train"), bench.slurm.submit(40)
    bench.cycle(3)
    bench.slurm.tick(17.0)
    bench.slurm.end(job_id)
    bench.slurm.end(other, "CANCELLED")
    bench.cycle()
    found, gone = runs_of(bench)[job_id], runs_of(bench)[other]
    assert (found.name, found.size, found.gpus, found.state) == ("a train", 4, {"n1": 4}, "COMPLETED")
    assert found.wait_s is not None
    assert found.queued == 1_000_000.0
    assert found.end == 1_000_020.0
    assert found.ran_s == found.end - (found.start or 0.0) > 17.0
    assert found.predicted_s == pytest.approx(60.0)  # 30 iterations of two seconds
    assert found.error == pytest.approx(found.ran_s / 60.0)
    assert (gone.state, gone.start, gone.gpus) == ("CANCELLED", None, {})
    assert gone.end is not None


def test_a_requeued_job_has_two_runs(bench: Bench) -> None:
    job_id = bench.slurm.submit(4)
    bench.cycle(4)
    bench.slurm.requeue(job_id)
    bench.slurm.change(job_id, eligible_time=0.0, reason="None")
    bench.cycle(6)
    found = [run for run in Timeline(entries(bench.settings.paths.state)).runs if run.job == job_id]
    assert [run.state for run in found] == ["REQUEUED", ""]
    assert found[0].end is not None
    assert found[1].start is not None
    assert found[0].end <= found[1].start


def test_a_wait_begins_with_the_submission_the_last_end_or_the_first_entry() -> None:
    facts = {"gpus": {"n1": 1}, "began": 50.0, "ended": 60.0, "iterations": 0, "predicted": 0}
    told: list[dict[str, Any]] = [
        {"time": 20.0, "event": "queued", "job": "1", "gpus": 1, "submitted": 10.0},
        {"time": 30.0, "event": "queued", "job": "1", "gpus": 1, "submitted": 10.0},  # a start was withdrawn
        {"time": 50.0, "event": "running", "job": "1", "submitted": 10.0, **facts},
        {"time": 60.0, "event": "ended", "job": "1", "submitted": 10.0, **facts},
        {"time": 70.0, "event": "queued", "job": "1", "gpus": 1, "submitted": 10.0},
        {"time": 70.0, "event": "running", "job": "2", "submitted": 40.0, **facts},  # asrptd did not run before
        {"time": 80.0, "event": "queued", "job": "3", "gpus": 1},
        {"time": 90.0, "event": "running", "job": "4", **facts},
    ]
    assert [run.queued for run in Timeline(told).runs] == [10.0, 60.0, 40.0, 80.0, None]


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just({"n1": 4})
FACTS = ("gpus", "began", "ended", "submitted", "reason", "state", "iterations", "predicted", "free", "queued", "user")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["queued", "wait", "running", "ended", "cut", "gone", "vanished", "cycle"]),
            st.sampled_from(["1", "2"]),
            st.dictionaries(st.sampled_from(FACTS), ANYTHING),
        )
    )
)
def test_any_entries_form_lives_or_are_skipped(events: list[tuple[str, str, dict[str, Any]]]) -> None:
    told = [{"time": float(at), "event": event, "job": job, **facts} for at, (event, job, facts) in enumerate(events)]
    for run in Timeline(told).runs:
        assert run.job in ("1", "2")
        assert run.wait_s is None or run.wait_s >= 0 or run.wait_s != run.wait_s


runs = st.lists(st.tuples(st.integers(0, 50), st.none() | st.integers(1, 50), st.integers(1, 4)), max_size=12)


@given(runs)
def test_no_two_runs_overlap_in_a_row(drawn: list[tuple[int, int | None, int]]) -> None:
    begun = [
        JobRun(str(at), start=float(start), end=None if ran is None else float(start + ran), gpus={"n1": gpus, "n2": 1})
        for at, (start, ran, gpus) in enumerate(drawn)
    ]
    placed = gpu_rows(begun, "n1", 100.0)
    assert {id(run): len(rows) for run, rows in placed} == {id(run): run.gpus["n1"] for run in begun}
    for at, (run, rows) in enumerate(placed):
        for other, others in placed[:at]:
            together = (run.start or 0) < (other.end or 100.0) and (other.start or 0) < (run.end or 100.0)
            assert not (together and set(rows) & set(others))


def test_a_run_is_drawn_as_one_bar_where_rows_side_by_side_are_free() -> None:
    times = {"a": (0, 10, 1), "b": (0, 90, 1), "c": (0, 90, 2), "d": (0, 20, 4), "e": (30, 90, 2), "f": (40, 90, 1)}
    begun = [JobRun(job, start=float(at), end=float(end), gpus={"n1": n}) for job, (at, end, n) in times.items()]
    rows = {run.job: rows for run, rows in gpu_rows(begun, "n1", 100.0)}
    assert (rows["a"], rows["b"], rows["c"], rows["d"]) == ([0], [1], [2, 3], [4, 5, 6, 7])
    assert (rows["e"], rows["f"]) == ([4, 5], [0])  # and not [0, 4]


def test_an_idle_cycle_writes_nothing(bench: Bench) -> None:
    bench.slurm.submit(40)
    bench.slurm.submit(4)
    bench.cycle(5)
    before = (bench.settings.paths.state / FILE_NAME).stat().st_size
    bench.cycle(20)
    assert (bench.settings.paths.state / FILE_NAME).stat().st_size == before


def test_a_start_records_its_key_and_runner_up_and_a_cycle_its_inputs(make_bench: Any) -> None:
    bench = make_bench((4, 4, 2), policy="asrpt-gated")
    for _ in range(3):
        bench.slurm.submit(4, 30, "flat")
    bench.cycle()
    starts, (cycle,) = bench.audit("start"), bench.audit("cycle")
    assert [start["gpus"] for start in starts] == [{"n1": 4}, {"n2": 4}]
    assert starts[0]["key"] == {"rank": 0, "gpu_seconds": 240.0, "submitted": bench.slurm.records["1"].submit_time}
    assert starts[0]["runner_up"]["gpus"] == {"n2": 4}
    assert starts[1]["runner_up"] is None
    assert starts[0]["alpha"] == starts[0]["alpha_min"] == 2.0
    assert cycle["inputs"] == bench.scheduler.decider.decided.digest
    assert cycle["free"] == {"2": 1, "4": 2}
    assert set(cycle["phases"]) >= {"read", "decide", "write"}
    assert json.dumps(cycle).isascii()
