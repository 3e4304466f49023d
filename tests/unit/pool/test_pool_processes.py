"""Pools of real processes: executors, keepers and drivers are killed, and results stay equal to the bit."""

from __future__ import annotations

import json
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_asrpt.pool.snapshot import Snapshot
from tests.benches.pool import Pool, children, gone, kill, same, wait_for

SWEEP = """
[pool]
checkpoint_s = 0.2

[[training]]
name = "line"
uses = "pool_models:Line"
with = { tasks = 3, rounds = 12, seconds = 0.01, hold = 4 }
grid = { lr = [0.1, 0.2], seed = [0, 1] }
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Snapshot]:
    """The results on one slot, without any disturbance."""
    pool = Pool(tmp_path_factory.mktemp("alone"), SWEEP.replace(", hold = 4", ""))
    assert pool.run(slots=1)[0] == 0
    return pool.results()


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    made = Pool(tmp_path, SWEEP)
    yield made
    if made.process:
        for pid in (*made.executors(), *made.keepers(), made.process.pid):
            kill(pid)


@pytest.mark.parametrize(("seed", "how"), [(0, ""), (1, 'switch = "ahead"\npolicy = "2d-las"\nkeep = 2')])
def test_weights_are_equal_after_executors_are_killed(
    pool: Pool, undisturbed: dict[str, Snapshot], seed: int, how: str
) -> None:
    """The slots in turn, so that no piece of work is hit as often as one that kills its executor by itself."""
    chance, killed = random.Random(seed), 0
    pool.sweep.write_text(SWEEP.replace("[pool]", f"[pool]\n{how}"))
    pool.start(slots=3)
    wait_for(lambda: pool.tasks_done() > 0, "tasks are done")
    while killed < 9:
        executors = children(pool.keepers()[killed % 3])
        killed += bool(executors) and kill(executors[0])
        time.sleep(chance.random() * 0.4)
    pool.go()
    code, out, _ = pool.end()
    assert (code, out.splitlines()[-1]) == (0, "done: 4 trainings done")
    assert pool.status().lost > 0
    assert same(pool.results(), undisturbed)


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_signal_leaves_checkpoints_and_no_process(
    pool: Pool, undisturbed: dict[str, Snapshot], number: int, code: int, word: str
) -> None:
    pool.start()
    wait_for(lambda: pool.tasks_done() > 0, "tasks are done")
    processes = [*pool.executors(), *pool.keepers()]
    ended, out, err = pool.end(number)
    assert (ended, "Traceback" in err) == (code, False)
    assert out.splitlines()[-1].startswith(f"{word}: ")
    wait_for(lambda: all(map(gone, processes)), "no process is left")
    before = pool.results()
    assert before
    assert not same(before, undisturbed)
    pool.go()
    assert pool.run(slots=3)[0] == 0
    assert same(pool.results(), undisturbed)


def test_a_checkpoint_is_written_when_asrptd_asks_for_one(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before a preemption: the pool goes on, in case that no requeue follows."""
    (tmp_path / "progress").mkdir()
    pool.sweep.write_text(SWEEP.replace("checkpoint_s = 0.2", "checkpoint_s = 1000"))
    pool.start(slots=1, progress=tmp_path / "progress")
    wait_for(lambda: pool.tasks_done() == 12, "the first training holds")
    assert not pool.results()
    assert pool.process is not None
    pool.process.send_signal(signal.SIGUSR1)
    wait_for((tmp_path / "progress" / "checkpoint").exists, "the checkpoint is reported")
    assert [snapshot.rounds for snapshot in pool.results().values()] == [4]
    assert (tmp_path / "progress" / "checkpoint").read_text() == "12\n"
    pool.go()
    assert pool.end()[0] == 0
    assert (tmp_path / "progress" / "iterations").read_text() == "144 144 - 0\n"


def test_a_killed_driver_leaves_no_process_and_the_next_continues(pool: Pool, undisturbed: dict[str, Snapshot]) -> None:
    pool.start()
    wait_for(lambda: pool.tasks_done() > 0 and pool.results(), "there is a checkpoint")
    processes = [*pool.executors(), *pool.keepers()]
    assert pool.end(signal.SIGKILL)[0] == -signal.SIGKILL
    wait_for(lambda: all(map(gone, processes)), "no process is left")
    pool.go()
    assert pool.run()[0] == 0
    assert same(pool.results(), undisturbed)


def test_a_killed_keeper_takes_its_executor_along(pool: Pool, undisturbed: dict[str, Snapshot]) -> None:
    pool.start()
    wait_for(lambda: pool.tasks_done() > 0, "tasks are done")
    keeper = pool.keepers()[0]
    kill(keeper)
    pool.go()
    assert pool.end()[0] == 0
    assert same(pool.results(), undisturbed)


def test_a_pool_without_keepers_ends_with_its_checkpoints(pool: Pool, undisturbed: dict[str, Snapshot]) -> None:
    pool.start(slots=1)
    wait_for(lambda: pool.tasks_done() > 0, "tasks are done")
    kill(pool.keepers()[0])
    code, out, _ = pool.end()
    assert (code, out.splitlines()[-1].split(":")[0]) == (1, "no slots left")
    pool.go()
    assert pool.run()[0] == 0
    assert same(pool.results(), undisturbed)


def test_a_new_process_for_each_switch_changes_nothing_else(tmp_path: Path) -> None:
    sweep = SWEEP.replace("rounds = 12, seconds = 0.01, hold = 4", "rounds = 2").replace("seed = [0, 1]", "seed = [0]")
    warm, renewed = Pool(tmp_path / "warm", sweep), Pool(tmp_path / "new", "")
    renewed.sweep.write_text(sweep.replace("[pool]", '[pool]\nswitch = "process"'))
    assert [warm.run()[0], renewed.run()[0]] == [0, 0]
    assert same(warm.results(), renewed.results())
    assert renewed.status().switches > 0
    assert renewed.status().lost == 0


@pytest.mark.parametrize("policy", ["hlas", "2d-las", "hare-offline"])
def test_a_recorded_run_is_decided_the_same_in_the_simulator(
    tmp_path: Path, undisturbed: dict[str, Snapshot], policy: str
) -> None:
    pool = Pool(tmp_path, SWEEP.replace(", hold = 4", ""))
    for _ in range(2):  # the second run has nothing to do
        ran = pool.call("run", str(pool.sweep), "--slots", "2", "--policy", policy)
        assert ran.returncode == 0, ran.stderr
    assert same(pool.results(), undisturbed)
    told = pool.call("replay", str(pool.sweep))
    assert (told.returncode, len(told.stdout.splitlines())) == (0, 2), told.stdout
    for line in told.stdout.splitlines():
        assert re.fullmatch(rf"\S+: {policy}, 2 slots, \d+ decisions?: the simulator decides the same", line)
    _forge(pool.folder.decisions)
    told = pool.call("replay", str(pool.sweep))
    assert told.returncode == 1
    assert re.search(r"s after the start, line-\S+ round 0 on [01].* instead of nothing$", told.stdout.splitlines()[0])


def _forge(record: Path) -> None:
    """Take an assignment out of a record, and let it end as if its driver had been killed."""
    lines = record.read_text().splitlines()
    number = next(number for number, line in enumerate(lines) if "assigned" in line)
    lines[number] = json.dumps({**json.loads(lines[number]), "assigned": []})
    record.write_text("\n".join([*lines, '{"time": 1']))


def test_a_record_may_be_switched_off(tmp_path: Path) -> None:
    pool = Pool(tmp_path, "[pool]\nrecord = false\n" + SWEEP.replace("rounds = 12", "rounds = 1"))
    pool.sweep.write_text(pool.sweep.read_text().replace("\n[pool]\ncheckpoint_s = 0.2\n", ""))
    assert pool.run()[0] == 0
    told = pool.call("replay", str(pool.sweep))
    assert (told.returncode, told.stdout) == (1, "")
    assert "no record; a pool makes it unless its sweep file has record = false" in told.stderr


WRONG = """
[[training]]
name = "wrong"
uses = "pool_models:Wrong"
grid = { how = ["raise", "exit", "kill", "write"] }
[[training]]
name = "none"
uses = "pool_models:Nothing"
[[training]]
name = "right"
uses = "pool_models:Line"
"""


def test_a_training_that_fails_is_told_in_its_own_log_and_the_others_go_on(tmp_path: Path) -> None:
    pool = Pool(tmp_path, WRONG)
    code, out, err = pool.run()
    assert (code, "Traceback" in err) == (1, False)
    found = {each.name: (each.state, re.sub("task [12]", "task 0", each.why)) for each in pool.status().trainings}
    assert found == {
        "wrong-how=raise": ("failed", "ValueError: no such layer in this model"),
        "wrong-how=exit": ("failed", "SystemExit: 3"),
        "wrong-how=kill": ("failed", "its process ended 5 times during task 0 of round 1"),
        "wrong-how=write": ("failed", "ValueError: assignment destination is read-only"),
        "none": ("failed", "AttributeError: module 'pool_models' has no attribute 'Nothing'"),
        "right": ("done", ""),
    }
    log = (pool.folder.trainings / "wrong-how=raise" / "log").read_text()
    assert "about to fail\n" in log
    assert 'raise ValueError("no such layer' in log
    assert (pool.folder.trainings / "right" / "log").read_text() == ""
    assert "wrong-how=raise: failed: ValueError: no such layer in this model (see its log)" in out.splitlines()
    assert out.splitlines()[-1] == "done: 1 training done, 5 failed"


def test_trainings_are_added_and_the_pool_stopped_from_outside(tmp_path: Path) -> None:
    long = "tasks = 1, rounds = 100000, seconds = 0.1"
    pool = Pool(tmp_path, SWEEP.replace("tasks = 3, rounds = 12, seconds = 0.01, hold = 4", long))
    more = pool.sweep.with_name("more.toml")
    more.write_text(WRONG.replace("pool_models:Nothing", "pool_models:Line"))
    pool.start(slots=6)
    wait_for(lambda: pool.tasks_done() > 0, "tasks are done")
    refused = pool.call("run", str(pool.sweep))
    assert (refused.returncode, "another asrpt-pool runs this pool" in refused.stderr) == (2, True)
    assert pool.call("add", str(pool.sweep), str(more)).stdout == "6 trainings added\n"
    wait_for(lambda: pool.status().count("done") == 2, "two of them are done")
    wait_for(lambda: pool.status().count("failed") == 4, "four of them have failed")
    assert pool.call("stop", str(pool.sweep)).returncode == 0
    code, out, _ = pool.end()
    assert (code, out.splitlines()[-1]) == (1, "stopped: 2 trainings done, 4 failed, 4 left")
    again = pool.call("add", str(pool.sweep), str(more))
    assert (again.returncode, "two trainings are called 'wrong-how=raise'" in again.stderr) == (2, True)
    assert pool.call("stop", str(pool.sweep)).stderr.endswith("this pool is not running\n")
