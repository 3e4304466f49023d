"""The audit trail: rotation, crashes, full disks, and what is logged."""

import errno
import json
import logging
import resource

from slurm_asrpt.audit.trail import FILE_NAME
from slurm_asrpt.config.settings import AuditSettings
from slurm_asrpt.daemon.record import audit as module
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.history.store import History


def test_a_full_audit_file_is_rotated_and_the_oldest_deleted(tmp_path):
    audit = AuditWriter(tmp_path, AuditSettings(file_mb=1, files=3))
    for number in range(4):
        audit.record(float(number), "wait", "1", turn=number, text="x" * (1 << 20))
        audit.flush()
    turns = {p.name: json.loads(p.read_text())["turn"] for p in tmp_path.glob(f"{FILE_NAME}*")}
    assert turns == {f"{FILE_NAME}.1": 3, f"{FILE_NAME}.2": 2}


def test_starts_are_logged_and_waits_are_not(tmp_path, caplog):
    caplog.set_level(logging.INFO, "asrptd")
    audit = AuditWriter(tmp_path)
    audit.record(1.0, "start", "7", gpus={"n1": 4})
    audit.record(1.0, "wait", "8", reason="gpus")
    audit.record(2.0, "running", "7", gpus={"n1": 4}, as_planned=True)
    audit.record(3.0, "ended", "7", state="COMPLETED")
    assert [record.getMessage() for record in caplog.records] == ['start job 7 {"gpus": {"n1": 4}}']


def test_a_start_on_other_nodes_than_planned_is_logged(tmp_path, caplog):
    caplog.set_level(logging.INFO, "asrptd")
    AuditWriter(tmp_path).record(2.0, "running", "7", as_planned=False)
    assert [record.getMessage() for record in caplog.records] == ['running job 7 {"as_planned": false}']


def test_only_the_daemons_user_can_read_the_audit_trail(tmp_path):
    audit = AuditWriter(tmp_path)
    audit.record(1.0, "start", "7")
    audit.flush()
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


def events(tmp_path):
    found = []
    for line in (tmp_path / FILE_NAME).read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line)["event"])
        except ValueError:
            found.append("torn")
    return found


def test_an_audit_line_cut_off_by_a_crash_damages_no_other_line(tmp_path):
    audit = AuditWriter(tmp_path)
    audit.record(1.0, "start", "7")
    audit.flush()
    with audit.path.open("r+b") as file:
        file.truncate(20)
    audit.record(2.0, "ended", "7")
    audit.flush()
    audit.record(3.0, "left", "8")
    audit.flush()
    assert events(tmp_path) == ["torn", "ended", "left"]


def test_a_full_disk_cuts_off_no_line_and_the_line_is_written_later(tmp_path):
    """EFBIG takes the place of ENOSPC: a part is written, then the rest is refused."""
    audit = AuditWriter(tmp_path)
    audit.record(1.0, "start", "7")
    audit.flush()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    audit.record(2.0, "ended", "7", text="x" * 500)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    try:
        assert not audit.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert events(tmp_path) == ["start"]
    audit.flush()
    assert events(tmp_path) == ["start", "ended"]


def test_on_a_full_disk_lines_wait_and_nothing_fails(tmp_path, monkeypatch, caplog):
    audit = AuditWriter(tmp_path)
    audit.record(1.0, "start", "7")
    audit.flush()

    def full(file, data):
        file.write(data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_write_all", full)
        for number in range(3):
            audit.record(2.0 + number, "wait", "8")
            audit.flush()
    assert [row.getMessage() for row in caplog.records if row.levelno >= logging.ERROR] == [
        f"{tmp_path / FILE_NAME}: No space left on device; saved in {module.SPARE_NAME} until there is room"
    ]
    assert events(tmp_path) == ["start"]
    again = AuditWriter(tmp_path)
    again.record(5.0, "ended", "7")
    again.flush()
    assert events(tmp_path) == ["start", "wait", "wait", "wait", "ended"]
    assert not (tmp_path / module.SPARE_NAME).read_bytes().strip()


def test_lines_that_do_not_fit_into_the_spare_file_wait_in_memory(tmp_path, monkeypatch, caplog):
    audit = AuditWriter(tmp_path)
    audit.record(1.0, "start", "7")
    audit.flush()

    def full(file, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_write_all", full)
        for _ in range(3):
            audit.record(2.0, "wait", "8", text="x" * (1 << 19))
            audit.flush()
    told = [row.getMessage() for row in caplog.records if row.levelno >= logging.ERROR]
    assert [text.split("; ")[1] for text in told] == [
        "saved in audit.spare until there is room",
        "its lines are kept in memory until it can be written",
    ]
    audit.flush()
    assert events(tmp_path) == ["start", "wait", "wait", "wait"]


def test_when_too_many_entries_are_unwritten_the_oldest_are_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_UNWRITTEN", 2)
    audit = AuditWriter(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        for turn in range(4):
            audit.record(float(turn), f"event{turn}")
            assert not audit.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    audit.flush()
    assert events(tmp_path) == ["event2", "event3"]


def test_a_start_is_audited_before_it_is_written_to_slurm(bench):
    job_id = bench.slurm.submit(4)
    update, seen = bench.slurm.update, []

    def write(updates):
        if any("ReqNodeList" in u.fields for u in updates):
            seen.extend(bench.audit("start", job_id))
        return update(updates)

    bench.slurm.update = write
    bench.cycle()
    assert len(seen) == 1


def test_an_end_is_audited_before_it_is_in_the_history(bench, monkeypatch):
    """Otherwise a crash between the two would leave a run that is missing from the trail."""
    job_id = bench.slurm.submit(4)
    bench.cycle(3)
    bench.slurm.end(job_id)
    record, seen = History.record, []

    def write(history, runs):
        seen.extend(bench.audit("ended", job_id))
        record(history, runs)

    monkeypatch.setattr(History, "record", write)
    bench.cycle()
    assert len(seen) == 1
