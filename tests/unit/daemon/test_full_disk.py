"""The disk of the state directory is full: jobs start, and a restart knows what was written to Slurm.

If it is read-only, nothing can be saved, so the waiting jobs are handed back.
"""

import contextlib
import errno
import json
import logging
import os

import pytest

from slurm_asrpt.daemon import spare_file
from slurm_asrpt.daemon import state as module
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.leader import LeaderLock
from slurm_asrpt.daemon.record import audit
from slurm_asrpt.daemon.spare_file import SPARE_BYTES, SpareFile
from slurm_asrpt.daemon.state import SCHEMA, SPARE_NAME, UNSAVED_S, NotSavedError, StateStore
from slurm_asrpt.files import replace_file


@pytest.fixture
def disk(monkeypatch):
    """Call it with True, and no file gets another block; with an error number, that is the answer to every write, also
    into the spare files; with False, and all is well again."""
    append, overwrite = audit._write_all, SpareFile._overwrite

    def switch(full):
        number = errno.ENOSPC if full is True else full

        def fails(*_):
            raise OSError(number, os.strerror(number))

        for each in (module, spare_file):
            monkeypatch.setattr(each, "replace_file", fails if full else replace_file)
        monkeypatch.setattr(audit, "_write_all", fails if full else append)
        monkeypatch.setattr(SpareFile, "_overwrite", fails if number != errno.ENOSPC and full else overwrite)

    return switch


@pytest.fixture
def lead(tmp_path):
    lock = LeaderLock(tmp_path)
    assert lock.take()
    yield lock
    lock.close()


def errors(caplog):
    return [row.getMessage() for row in caplog.records if row.levelno >= logging.ERROR]


def test_jobs_start_and_a_restart_knows_them(bench, disk):
    bench.slurm.starts_jobs = False
    bench.cycle()
    disk(True)
    jobs = [bench.slurm.submit(4) for _ in range(2)]
    bench.cycle()
    assert [bench.job_state(job) for job in jobs] == [JobState.PINNED] * 2
    bench.restart()
    bench.cycle()
    assert [bench.job_state(job) for job in jobs] == [JobState.PINNED] * 2
    bench.slurm.starts_jobs = True
    bench.cycle(3)
    assert [bench.job_state(job) for job in jobs] == [JobState.RUNNING] * 2
    assert not bench.audit("job-state-lost")
    disk(False)
    bench.slurm.submit(4)
    bench.cycle(2)
    assert [entry["job"] for entry in bench.audit("start")] == ["1", "2", "3"]
    for name in (SPARE_NAME, audit.SPARE_NAME):
        assert not (bench.settings.paths.state / name).read_bytes().strip()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO, errno.EACCES])
def test_while_nothing_can_be_saved_the_waiting_jobs_are_slurms(bench, disk, caplog, number):
    bench.slurm.starts_jobs = False
    first = bench.slurm.submit(4)
    bench.cycle()
    disk(number)
    jobs = [first, bench.slurm.submit(4)]
    began = bench.slurm.now
    while bench.slurm.now < began + UNSAVED_S:
        with pytest.raises(NotSavedError, match=os.strerror(number)):
            bench.cycle()
        bench.slurm.tick(1.0)
    assert bench.mode.label == "enforce"
    assert not bench.writes(jobs[1]), "nothing that a restart would not know"
    bench.cycle(2)
    assert bench.mode.label == bench.status(bench.slurm.now).mode == "unsaved"
    assert not any(bench.slurm.records[job].required_nodes for job in jobs)
    assert all(bench.slurm.records[job].eligible_time <= bench.slurm.now for job in jobs)

    disk(False)
    bench.cycle(2)
    assert bench.mode.label == "enforce"
    bench.slurm.starts_jobs = True
    bench.cycle(4)
    assert {bench.state(job) for job in jobs} == {"RUNNING"}
    assert [row.getMessage()[:30] for row in caplog.records if row.levelno == logging.WARNING] == [
        "the state cannot be saved: wai",
        "the state is saved again: mode",
    ]
    assert {entry["job"] for entry in bench.audit("handed-back")} >= {first}


def test_a_job_that_ended_while_nothing_could_be_saved_is_recorded_after_a_kill(bench, disk):
    first = bench.slurm.submit(4)
    bench.cycle()
    disk(errno.EROFS)
    bench.slurm.end(first)
    with contextlib.suppress(NotSavedError):
        bench.cycle()
    bench.restart()
    disk(False)
    bench.cycle(2)
    assert [entry["state"] for entry in bench.audit("ended", first)] == ["COMPLETED"]
    assert bench.runs()[first].state == "COMPLETED"


def test_the_state_is_saved_where_there_is_room(lead, disk, caplog):
    store = StateStore(lead)
    store.save({}, {"1": "{}"}, 1.0)
    disk(True)
    store.save({}, {"2": "{}"}, 2.0)
    store.save({}, {"3": "{}"}, 3.0)
    assert errors(caplog) == [f"{store.path}: No space left on device; saved in {SPARE_NAME} until there is room"]
    assert StateStore(lead).load()["jobs"] == {"3": {}}
    disk(False)
    store.save({}, {"4": "{}"}, 4.0)
    assert StateStore(lead).load()["jobs"] == {"4": {}}
    assert not (lead.folder / SPARE_NAME).read_bytes().strip()
    assert (lead.folder / SPARE_NAME).stat().st_mode & 0o777 == 0o600


def test_the_spare_file_grows_with_the_state(lead, disk):
    store, job = StateStore(lead), json.dumps({"x": "y" * SPARE_BYTES})
    store.save({}, {"1": job}, 1.0)
    disk(True)
    store.save({}, {"1": job, "2": "{}"}, 2.0)
    assert set(StateStore(lead).load()["jobs"]) == {"1", "2"}
    with pytest.raises(OSError, match="No space left"):
        store.save({}, {str(number): job for number in range(3)}, 3.0)


@pytest.mark.parametrize("damage", [b"", b" " * 20, b'{"schema": 1, "time": 9.0, "jo'])
def test_a_spare_file_without_a_state_does_not_count(lead, damage):
    store = StateStore(lead)
    store.save({}, {"1": "{}"}, 1.0)
    (lead.folder / SPARE_NAME).write_bytes(damage)
    assert StateStore(lead).load()["jobs"] == {"1": {}}


@pytest.mark.parametrize("main", [None, b"{", b'{"schema": 1, "time": 1.0, "jobs": {}}'])
def test_the_newer_state_counts(lead, main):
    state = {"schema": SCHEMA, "time": 2.0, "jobs": {"7": {}}}
    (lead.folder / SPARE_NAME).write_text(json.dumps(state).ljust(100))
    if main is not None:
        (lead.folder / module.FILE_NAME).write_bytes(main)
    assert StateStore(lead).load() == state


def test_a_disk_without_room_for_the_spare_file_is_told_once(lead, monkeypatch, caplog):
    def small(path, *told):
        if path.name == SPARE_NAME:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace_file(path, *told)

    monkeypatch.setattr(spare_file, "replace_file", small)
    store = StateStore(lead)
    for number in range(3):
        store.save({}, {str(number): "{}"}, 1.0)
    assert errors(caplog) == [
        f"{lead.folder / SPARE_NAME} cannot be written (No space left on device): nothing can be saved "
        "if the disk is full"
    ]
