"""The record of a pool's decisions, the slots of a job, and what a policy is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.rounds.arrival import Arrival
from slurm_asrpt.core.rounds.feed import Decision, Feed
from slurm_asrpt.core.rounds.jobs import Fleet, Progress, RoundJob
from slurm_asrpt.errors import AsrptError
from slurm_asrpt.pool import decisions
from slurm_asrpt.pool.decisions import DecisionLog, RecordedRun, read_runs
from slurm_asrpt.pool.slurm_job import SlurmJob
from slurm_asrpt.pool.task_times import TaskTimes

FLEET = Fleet(("a", "b"), (0, 0, 1))


def write(path: Path, *found: Decision) -> None:
    log = DecisionLog(path, RecordedRun("hlas", FLEET, 5.0))
    for decision in found:
        log.add(decision)
    log.close()


def test_runs_are_appended_also_after_a_line_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    write(path, Decision(1.0, (0,)), Decision(2.0, (1, 2)))
    path.write_text(path.read_text() + '{"time": 3.0, "fre')
    write(path, Decision(1.5, (2,)))
    first, second = read_runs(path)
    assert first == RecordedRun("hlas", FLEET, 5.0, [Decision(1.0, (0,)), Decision(2.0, (1, 2))])
    assert second.decisions == [Decision(1.5, (2,))]


@pytest.mark.parametrize("line", ['{"time": ', "[]", '{"freed": [0]}', '{"format": 9}'])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "decisions.jsonl"
    write(path, Decision(1.0, (0,)))
    path.write_text(path.read_text() + line + '\n{"time": 4.0, "freed": [1]}\n')
    with pytest.raises(AsrptError, match="line 3: damaged; remove the file"):
        read_runs(path)


def test_a_record_that_is_too_long_ends_quietly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "MAX_BYTES", 200)
    path = tmp_path / "decisions.jsonl"
    write(path, *(Decision(float(number), (0,)) for number in range(50)))
    assert 200 < path.stat().st_size < 300


def test_a_full_disk_ends_the_record_and_nothing_else(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "decisions.jsonl", RecordedRun("hlas", FLEET, 5.0))
    log._file = Path("/dev/full").open("w")  # noqa: SIM115 the log closes it
    for number in range(2000):
        log.add(Decision(float(number), (0,)))
    assert log._file is None
    log.close()


@pytest.mark.parametrize(
    ("told", "tasks", "kind"),
    [
        ("2(x2)", 4, (0, 0, 1, 1)),
        ("3,1", 4, (0, 0, 0, 1)),
        ("1(x2),2", 4, (0, 1, 2, 2)),
        ("", 2, (0, 0)),
        ("4", 3, (0, 0, 0)),
        ("2(y2)", 4, (0, 0, 0, 0)),
    ],
)
def test_slots_of_a_node_are_of_one_type(told: str, tasks: int, kind: tuple[int, ...]) -> None:
    fleet = SlurmJob("7", tasks, tasks_per_node=told).fleet
    assert (fleet.kind, len(fleet.types)) == (kind, max(kind) + 1)


def test_a_policy_is_asked_only_with_news_and_never_at_the_same_time_twice() -> None:
    kept: list[Decision] = []
    feed = Feed(Arrival(FLEET, ()), kept.append)
    job = Progress(RoundJob(JobId("j"), 0.0, 2, (1.0, 1.0), (0.0, 0.0)), left=2)
    assert feed.decide(3.0) == []
    feed.arrived(job)
    assert feed.decide(3.0) == []
    feed.freed(1)
    feed.freed(0)
    (part,) = feed.decide(2.0)  # the clock has gone back
    assert (list(part.gpus), part.last) == ([0, 1], True)
    assert [each.freed for each in kept] == [(), (0, 1)]
    assert kept[0].time == 3.0 < kept[1].time < 3.0 + 1e-9
    assert kept[0].arrived[0].job.arrival_s == 3.0


def test_times_are_means_by_type_and_those_of_others_where_none_is_known() -> None:
    times = TaskTimes(2)
    assert times.of("a") == (1.0, 1.0)
    times.add("a", 0, 2.0)
    times.add("a", 0, 4.0)
    assert times.of("a") == (3.0, 3.0)
    times.add("a", 1, 6.0)
    assert times.of("a") == (3.0, 6.0)
    assert times.of("b") == (4.0, 4.0)
    times.add("b", 0, 0.0)
    assert times.of("b") == (1e-6, 1e-6)
