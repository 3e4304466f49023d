"""Runs from sacct and from traces: which rows count, how they are converted, and repeated imports."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from slurm_asrpt.config.settings import SlurmSettings
from slurm_asrpt.errors import InputError
from slurm_asrpt.history import importing
from slurm_asrpt.history.csv_json import (
    BACKWARDS,
    NO_TIME,
    Skipped,
    fallback_group,
    read_csv,
    read_json_lines,
    write_json_lines,
)
from slurm_asrpt.history.importing import (
    FIELDS,
    FIRST_S,
    FUTURE,
    OVERLAP_S,
    TOLERATED_S,
    TOO_OLD,
    WINDOW_S,
    Counts,
    Importer,
    import_rows,
    import_sacct,
    sacct_file_rows,
    sacct_rows,
    trace_file_rows,
    trace_rows,
)
from slurm_asrpt.history.maintenance import DAY_S
from slurm_asrpt.history.store import History, Origin, Run, Source
from slurm_asrpt.hook.group import keys_of
from slurm_asrpt.predict.predictors.fitting import examples_of
from slurm_asrpt.traces.sacct import COMPONENT, NEVER_STARTED, NOT_ENDED, STEP

RECORDED = Path(__file__).parents[2] / "recorded"
RELEASES = sorted(path.parent.name for path in RECORDED.glob("*/sacct-epoch.txt"))
NOW = 1_800_000_000
TAG = "asrpt1:g=0123456789abcdef;n=40"


@pytest.fixture
def history(tmp_path: Path) -> History:
    with History(tmp_path / "history.sqlite") as opened:
        yield opened  # type: ignore[misc]


def line(**changes: str) -> str:
    cells = {
        "JobID": "7",
        "UID": "1001",
        "ExitCode": "0:0",
        "User": "ann",
        "Partition": "gpu",
        "Submit": str(NOW - 200),
        "Start": str(NOW - 100),
        "End": str(NOW),
        "ElapsedRaw": "90",
        "State": "COMPLETED",
        "AllocTRES": "cpu=2,gres/gpu=2",
        "JobName": "train-3",
    }
    return "|".join((cells | changes).get(title, "") for title in FIELDS)


def rows(*lines: str) -> list[Run | Skipped]:
    return list(sacct_rows(["|".join(FIELDS), *lines]))


def test_a_job_without_a_tag_gets_a_substitute_group() -> None:
    (run,) = rows(line())
    assert run == Run(
        job_id="7", start_time=NOW - 100, submit_time=NOW - 200, end_time=NOW, state="COMPLETED", user="ann", uid=1001,
        group_id=fallback_group(1001, "train-9", 2), job_name="train-3", partition="gpu", gpus=2, iterations=90,
        iterations_source=Source.ELAPSED, origin=Origin.SACCT, tres="cpu=2,gres/gpu=2",
    )  # fmt: skip


def test_a_tagged_job_is_recorded_under_its_group() -> None:
    (run,) = rows(line(AdminComment=TAG + ";i=30-60;k=fedcba9876543210;v=g;f=epochs:90"))
    assert isinstance(run, Run)
    assert (run.group_id, run.predicted_iterations, run.iterations) == ("0123456789abcdef", 40, 90)
    assert (run.program, run.features) == ("fedcba9876543210", {"epochs": 90})
    assert (run.predicted_low, run.predicted_high, run.predicted_by) == (30, 60, "group")


def test_iterations_of_a_profiled_job_are_unknown() -> None:
    (run,) = rows(line(AdminComment=TAG + ";p=gpt2"))
    assert isinstance(run, Run)
    assert (run.profile, run.iterations, run.iterations_source) == ("gpt2", 0, Source.NONE)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"JobID": "7.batch"}, STEP),
        ({"JobID": "7+0"}, COMPONENT),
        ({"JobID": "x"}, "no job id"),
        ({"Start": "Unknown", "State": "CANCELLED by 0", "AllocTRES": "", "ElapsedRaw": "0"}, NEVER_STARTED),
        ({"End": "Unknown", "State": "RUNNING"}, NOT_ENDED),
        ({"AllocTRES": "cpu=2"}, "no GPUs"),
        ({"AllocTRES": "gres/gpu=x"}, "no GPUs"),
        ({"Submit": "?"}, "no start or end"),
    ],
)
def test_rows_that_are_no_run_are_skipped(changes: dict[str, str], reason: str) -> None:
    assert rows(line(**changes)) == [Skipped(reason)]


@pytest.mark.parametrize("state", ["FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "REQUEUED"])
def test_states_are_imported_unchanged(state: str) -> None:
    (run,) = rows(line(State=state, ExitCode="3:9"))
    assert isinstance(run, Run)
    assert (run.state, run.exit_code) == (state, 3)
    (run,) = rows(line(State="CANCELLED by 1001", ExitCode="9" * 30))
    assert isinstance(run, Run)
    assert (run.state, run.exit_code) == ("CANCELLED", 0)


def test_a_job_name_may_contain_any_text() -> None:
    skipped, run = rows(line(JobName="a|b\x1b[2J=c\0d"), "forged|line")
    assert skipped == Skipped("wrong number of fields")
    assert isinstance(run, Run)
    assert run.job_name == "a|b\x1b[2J=c\0d"


@pytest.mark.parametrize("release", RELEASES)
def test_importing_a_recorded_dump_twice_adds_nothing(release: str, history: History) -> None:
    path = RECORDED / release / "sacct-epoch.txt"
    for number in range(2):
        into = Importer(history)
        import_rows(sacct_file_rows(path), into)
        assert (into.counts.added, into.counts.there) == ((13, 0) if number == 0 else (0, 13))
    runs = {run.key: run for run in history.all_runs()}
    states = {key: run.state for key, run in runs.items() if key[0] in ("4", "11", "14")}
    assert sorted(states.values()) == ["CANCELLED", "CANCELLED", "FAILED", "REQUEUED"]
    assert len([key for key in states if key[0] == "14"]) == 2  # both runs of a requeued job
    assert into.counts.read == 13 + into.counts.skipped.total() == 37
    assert into.counts.skipped[COMPONENT] == 2


def test_changed_runs_are_updated_except_those_of_asrptd(history: History) -> None:
    (run,) = rows(line())
    assert isinstance(run, Run)
    mine = replace(run, job_id="8", origin=Origin.ASRPTD, iterations=1)
    history.record([mine])
    for changed in (run, replace(run, state="FAILED")):
        into = Importer(history)
        into.add_batch([changed, replace(mine, origin=Origin.SACCT, iterations=90)])
    assert (into.counts.added, into.counts.updated, into.counts.there) == (0, 1, 1)
    assert history.find([run.key, mine.key]) == {run.key: replace(run, state="FAILED"), mine.key: mine}


def test_a_dry_run_counts_the_same_and_writes_nothing(history: History) -> None:
    (run,) = rows(line())
    assert isinstance(run, Run)
    batch = [run, run, replace(run, job_id="8"), Skipped("x")]
    dry, wet, nowhere = Importer(history, write=False), Importer(history), Importer(None, write=False)
    for into in (dry, nowhere):
        into.add_batch(batch[:1])
        into.add_batch(batch[1:])
    assert history.runs() == []
    wet.add_batch(batch[:1])
    wet.add_batch(batch[1:])
    assert dry.counts == wet.counts == nowhere.counts
    assert (wet.counts.added, wet.counts.there, len(history.runs())) == (2, 1, 2)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_times_without_a_zone_are_local_ones(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dump has these unless SLURM_TIME_FORMAT=%s; asrptd's own record of the run has the same key."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        submit, start, end = (datetime(2026, 6, 1, hour, 30).timestamp() for hour in (9, 10, 12))
        times = {"Submit": submit, "Start": start, "End": end}
        local = {name: datetime.fromtimestamp(at).isoformat() for name, at in times.items()}
        seconds = {name: f"{at:.0f}" for name, at in times.items()}
        for shown in (local, seconds):
            (run,) = rows(line(**shown, ElapsedRaw="7200"))
            assert isinstance(run, Run)
            assert (run.submit_time, run.start_time, run.end_time) == (submit, start, end)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_runs_in_the_future_are_skipped(history: History) -> None:
    """From any source: a run of next year would be the latest one for a year."""
    (run,) = rows(line())
    assert isinstance(run, Run)
    into = Importer(history, now=run.end_time - TOLERATED_S)
    into.add_batch([run, replace(run, job_id="8", end_time=run.end_time + 1), Skipped("no job id")])
    assert into.counts.skipped == {FUTURE: 1, "no job id": 1}
    assert [kept.job_id for kept in history.runs()] == [run.job_id]


def test_runs_older_than_the_retention_are_not_imported(history: History) -> None:
    (run,) = rows(line())
    into = Importer(history, oldest=NOW + 1)
    into.add_batch([run])
    assert (into.counts.skipped, history.runs()) == ({TOO_OLD: 1}, [])


class Sacct:
    """A fake sacct that returns the given lines and records the windows of its queries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Callable[[str, str], list[str]]) -> None:
        self.windows: list[tuple[float, float]] = []
        self.answer = answer
        monkeypatch.setattr(importing.accounting, "ask_sacct", self.ask)

    def ask(self, settings, fields, since, partitions, separator, until, every_run):  # type: ignore[no-untyped-def]
        assert (fields, partitions, every_run) == (FIELDS, "gpu", True)
        times = [datetime.fromisoformat(text).timestamp() for text in (since, until)]
        self.windows.append((times[0], times[1]))
        lines = ["|".join(FIELDS), *self.answer(since, until)]
        return "".join(line.replace("|", separator) + "\n" for line in lines)


def test_windows_have_no_gaps_and_later_start_at_the_mark(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    sacct = Sacct(monkeypatch, lambda since, until: [line()])
    told: list[tuple[int, int]] = []
    into = Importer(history)
    import_sacct(into, SlurmSettings(), "gpu", None, NOW, lambda done, of: told.append((done, of)))
    assert sacct.windows[0][0] == NOW - FIRST_S
    assert sacct.windows[-1][1] == NOW
    assert all(one[1] == two[0] for one, two in zip(sacct.windows, sacct.windows[1:], strict=False))
    assert max(end - begin for begin, end in sacct.windows) == WINDOW_S
    assert told == [(i, len(sacct.windows)) for i in range(len(sacct.windows) + 1)]
    assert (into.counts.added, into.counts.there) == (1, len(sacct.windows) - 1)

    sacct.windows.clear()
    import_sacct(Importer(history), SlurmSettings(), "gpu", None, NOW + 60)
    assert sacct.windows == [(NOW - OVERLAP_S, NOW + 60)]
    import_sacct(Importer(history), SlurmSettings(), "gpu", NOW - 2 * DAY_S, NOW + 60)
    assert sacct.windows[-1] == (NOW - 2 * DAY_S, NOW + 60)


def test_an_interrupted_import_resumes(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(since: str, until: str) -> list[str]:
        if len(sacct.windows) == 3:
            raise KeyboardInterrupt
        return [line(JobID=str(len(sacct.windows)))]

    sacct = Sacct(monkeypatch, interrupted)
    begin = NOW - 10 * WINDOW_S
    with pytest.raises(KeyboardInterrupt):
        import_sacct(Importer(history), SlurmSettings(), "gpu", begin, NOW)
    assert sorted(run.job_id for run in history.runs()) == ["1", "2"]
    assert history.mark("sacct gpu") == begin + 2 * WINDOW_S


def test_a_dry_run_leaves_no_mark(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    Sacct(monkeypatch, lambda since, until: [line()])
    import_sacct(Importer(history, write=False), SlurmSettings(), "gpu", NOW - DAY_S, NOW)
    assert history.mark("sacct gpu") == 0


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text(
        "job_id,submit_s,gpus,duration_s,user,group,status,wait_s\n"
        "1,100,2,60,ann,g,COMPLETED,5\n2,200,1,30,bob,g,Killed,\n3,300,1,0,ann,g,,0\n4,400,4,20,ann,,Failed,1\n"
        "5,500,4,20,ann,,Running,1\n"
    )
    return path


def test_a_trace(history: History, trace: Path) -> None:
    for _ in range(2):
        into = Importer(history)
        import_rows(trace_file_rows(trace, "auto", False, NOW), into)
    assert (into.counts.there, into.counts.skipped) == (3, {"zero run time": 1, NOT_ENDED: 1})
    one, two, four = sorted(history.all_runs(), key=lambda run: run.job_id)
    assert (one.job_id, one.start_time, one.end_time, one.iterations) == ("mine:1", NOW + 5, NOW + 65, 60)
    assert [run.state for run in (one, two, four)] == ["COMPLETED", "CANCELLED", "FAILED"]
    assert one.uid == four.uid != two.uid
    assert max(run.uid for run in (one, two, four)) < -1
    assert one.group_id == two.group_id
    assert four.group_id == fallback_group(four.uid, "", 4)
    assert [sample.iterations for sample in history.samples()] == [60, 30, 20]


def test_runs_without_a_group_count_for_user_and_cluster(history: History, tmp_path: Path) -> None:
    trace, table, runs = (tmp_path / name for name in ("bare.csv", "jobs.csv", "runs.jsonl"))
    trace.write_text("job_id,submit_s,gpus,duration_s,user,group\n1,0,1,60,ann,\n2,9,1,30,ann,\n3,9,2,40,,\n")
    table.write_text("id,start,end,user,group\n1,5,15,no-such-user-x,\n2,5,25,,\n")
    runs.write_text('{"job_id": "4", "start_time": 5, "elapsed": 7, "uid": 3, "group_id": ""}\n')
    into = Importer(history)
    for rows in (trace_file_rows(trace, "auto", False, NOW), read_csv(table, {}), read_json_lines(runs)):
        import_rows(rows, into)
    samples = history.samples()
    assert into.counts.added == len(samples) == 6
    assert len({sample.group for sample in samples}) == 5  # ann's runs on one GPU share a group
    keys = {key for example in examples_of(samples) for key in example.chain}
    *_, cluster = keys_of("0" * 16, "", 0, 0, {})
    users = {("user", dict(keys_of("0" * 16, "", sample.user, 0, {}))["user"]) for sample in samples}
    assert keys >= {*users, cluster}


def test_a_run_of_asrptd_without_a_group_is_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    run = Run("1", 5, 5, 9, "COMPLETED", job_name="x", origin=Origin.ASRPTD)
    with path.open("w") as file:
        write_json_lines(file, [run])
    assert list(read_json_lines(path)) == [run]


def test_an_interrupted_batch_is_neither_kept_nor_counted(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(runs: object) -> None:
        raise KeyboardInterrupt

    (run,) = rows(line())
    assert isinstance(run, Run)
    into = Importer(history)
    into.add_batch([run])
    monkeypatch.setattr(history, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        into.add_batch([replace(run, job_id="8"), replace(run, state="FAILED"), run, Skipped("x")])
    assert into.counts == Counts(read=1, added=1)
    assert history.runs() == [run]


def test_a_foreign_csv_with_its_own_and_with_our_column_names(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(
        b"Id,User,Begun,Seconds,gpus,JobName,state\r\n"
        b'1,no-such-user-x,2024-05-01T10:00:00+00:00,90.4,2,"a\nb-1",COMPLETED\r\n'
        b"2,no-such-user-x,1714557600,0-00:10:00,2,a\xffb,FAILED\r\n"
        b"3,x,,5,1,n,FAILED\r\n4,x,100,-50,1,n,FAILED\r\n5,x,1\r\n"
    )
    found = list(read_csv(path, {"start_time": "begun", "elapsed": "SECONDS"}))
    one, two = found[:2]
    assert isinstance(one, Run)
    assert isinstance(two, Run)
    assert (one.start_time, one.end_time, one.iterations) == (1714557600, 1714557690, 90)
    assert (one.job_name, one.group_id) == ("a\nb-1", fallback_group(one.uid, "a\nb", 2))
    assert (two.job_name, two.end_time - two.start_time, two.state) == ("a\ufffdb", 600, "FAILED")
    assert one.uid == two.uid < -1
    assert found[2:] == [Skipped(NO_TIME), Skipped(BACKWARDS), Skipped("wrong number of fields")]


def test_json_lines_of_other_tools(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text('{"job_id": "1", "start_time": 5, "elapsed": 7, "uid": 3, "job_name": "x"}\n[]\n{"job": 1}\n{\n\n')
    one, *others = read_json_lines(path)
    assert isinstance(one, Run)
    assert (one.end_time, one.iterations, one.group_id, one.origin) == (12, 7, fallback_group(3, "x", 0), Origin.CSV)
    assert [type(other) for other in others] == [Skipped] * 3


@pytest.mark.parametrize("text", ["job_id,start\n1,5\n", "[]\n7\n", '{"job": 1}\n\n{"\n', "\0\n"])
def test_a_file_without_any_run_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match="no line is a JSON object"):
        list(read_json_lines(path))
    path.write_text(text + '{"job_id": ""}\n')  # an incomplete run, but a run
    assert {type(row) for row in read_json_lines(path)} == {Skipped}
    path.write_text("\n")  # the export of an empty history
    assert list(read_json_lines(path)) == []


def test_all_rows_of_a_trace_are_accounted_for(trace: Path) -> None:
    from slurm_asrpt.traces import read_trace

    found = read_trace(trace)
    assert len(list(trace_rows(found))) == found.rows


def test_a_name_with_line_breaks_is_imported_whole(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users choose names. The separator is secret, so no line of a name can pass for a row."""
    forged = line(JobID="9", JobName="theirs")
    names = {"7": f"first\n{forged.replace('|', '/')}\n\nlast", "8": "a\x1b[31m\rb\u2028c\x85"}

    def answer(settings, fields, since, partitions, separator, until, every_run):  # type: ignore[no-untyped-def]
        rows = [
            line(JobID=job).replace("|", separator).rpartition(separator)[0] + separator + names[job] for job in names
        ]
        return "\n".join(["|".join(FIELDS).replace("|", separator), *rows, ""])

    monkeypatch.setattr(importing.accounting, "ask_sacct", answer)
    into = Importer(history)
    import_sacct(into, SlurmSettings(), "gpu", NOW - 1000, NOW)
    assert {run.job_id: run.job_name for run in history.all_runs()} == names
    assert (into.counts.read, into.counts.skipped.total()) == (2, 0)
