"""Waiting jobs that had no prediction when they were submitted get one when a table has it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurm_asrpt.daemon import late_predictions
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.hook.group import keys_of
from slurm_asrpt.hook.table import FILE_NAME, Entry, render_table
from slurm_asrpt.hook.tag import Tag
from tests.benches.daemon import Bench

UID = 1001
GROUPS = [f"{number:016x}" for number in range(1, 9)]


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    """All GPUs are in use, so jobs wait."""
    made = make_bench((4,), policy="asrpt-gated")
    made.slurm.submit(4, 10**6)
    made.cycle(2)
    return made


def submit(bench: Bench, group: str, iterations: int = 0) -> str:
    return bench.slurm.submit(4, admin_comment=Tag(group, iterations).format())


def write_table(bench: Bench, seconds: dict[str, float], level: str = "group") -> None:
    """A table with these predictions, by group."""
    found = {dict(keys_of(group, "", UID, 4, {}))[level]: Entry.plain(value) for group, value in seconds.items()}
    path = bench.settings.paths.hook / FILE_NAME
    path.parent.mkdir(exist_ok=True)
    new = path.with_suffix(".new")
    new.write_bytes(render_table(found))
    new.rename(path)


def predicted(bench: Bench, job_id: str) -> int:
    tag = bench.job(job_id).prediction
    return tag.order if tag is not None else 0


def order(bench: Bench) -> list[str]:
    rows = bench.status(bench.slurm.now).jobs
    return [row.job_id for row in rows if row.rank is not None]


@pytest.mark.parametrize("level", ["exact", "group"])
def test_a_job_gets_the_prediction_of_runs_that_have_ended_since(bench: Bench, level: str) -> None:
    known, unseen = submit(bench, GROUPS[0], 300), submit(bench, GROUPS[1])
    bench.cycle(2)
    assert predicted(bench, unseen) == 0
    assert order(bench) == [known, unseen]
    write_table(bench, {GROUPS[1]: 100.0, GROUPS[0]: 5000.0}, level)
    bench.cycle(2)
    assert (predicted(bench, unseen), predicted(bench, known)) == (100, 300)  # who has one keeps it
    assert order(bench) == [unseen, known]
    (row,) = (row for row in bench.status(bench.slurm.now).jobs if row.job_id == unseen)
    assert (row.predicted_by, row.predicted_run_s) == (level, 100.0)
    assert [(event["job"], event["figure"]) for event in bench.audit("predicted-late")] == [(unseen, 100)]


def test_a_restart_looks_again(bench: Bench) -> None:
    unseen = submit(bench, GROUPS[1])
    bench.cycle(2)
    write_table(bench, {GROUPS[1]: 100.0})
    bench.restart()
    bench.cycle(1)
    assert predicted(bench, unseen) == 100
    assert bench.job_state(unseen) is JobState.QUEUED


def test_groups_share_lookups_of_which_a_cycle_makes_a_few(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [submit(bench, group) for group in GROUPS for _ in range(3)]
    bench.cycle(2)
    monkeypatch.setattr(late_predictions, "MOST_LOOKUPS", 3)
    write_table(bench, dict.fromkeys(GROUPS, 50.0))
    counts = []
    for _ in range(4):
        bench.cycle(1)
        counts.append(sum(predicted(bench, job_id) == 50 for job_id in jobs))
    assert counts[0] >= 7
    assert counts == sorted(counts)
    assert counts[-1] == len(jobs)


def test_a_table_without_it_and_a_broken_one_change_nothing(bench: Bench) -> None:
    unseen = submit(bench, GROUPS[1])
    bench.cycle(2)
    write_table(bench, {GROUPS[2]: 100.0})
    bench.cycle(1)
    (bench.settings.paths.hook / FILE_NAME).write_text("asrpt-table 9 nonsense\n")
    bench.cycle(1)
    assert predicted(bench, unseen) == 0
    (bench.settings.paths.hook / FILE_NAME).unlink()
    bench.cycle(1)
    assert bench.job_state(unseen) is JobState.QUEUED


def test_without_the_hooks_lua_jobs_wait_without_a_prediction(bench: Bench, monkeypatch, caplog) -> None:
    """Others could have written the file, say."""
    unseen = [submit(bench, group) for group in GROUPS[:3]]
    bench.cycle(2)

    def refused(*_: object) -> None:
        raise PermissionError(1, "others could have written it", "job_submit_asrpt.lua")

    with monkeypatch.context() as patched:
        patched.setattr(late_predictions.table, "lookup", refused)
        write_table(bench, {GROUPS[0]: 100.0})
        bench.cycle(2)
    assert [predicted(bench, job_id) for job_id in unseen] == [0, 0, 0]
    assert caplog.text.count("waiting jobs without a prediction get none") == 1
    write_table(bench, {GROUPS[0]: 120.0})
    bench.cycle(2)
    assert predicted(bench, unseen[0]) == 120
    monkeypatch.setattr(late_predictions.table, "lookup", refused)
    write_table(bench, {GROUPS[1]: 100.0})
    bench.cycle(2)
    assert caplog.text.count("waiting jobs without a prediction get none") == 2
