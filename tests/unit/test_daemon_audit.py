"""The audit trail: rotation, and what the log tells."""

import json
import logging

from slurm_asrpt.daemon import audit as module
from slurm_asrpt.daemon.audit import FILE_NAME, Audit


def test_a_full_file_is_put_aside_and_the_oldest_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    monkeypatch.setattr(module, "KEEP", 2)
    audit = Audit(tmp_path)
    for number in range(4):
        audit.record(float(number), "wait", "1", turn=number)
        audit.flush()
    turns = {p.name: json.loads(p.read_text())["turn"] for p in tmp_path.iterdir()}
    assert turns == {f"{FILE_NAME}.1": 3, f"{FILE_NAME}.2": 2}


def test_starts_are_in_the_log_waits_are_not(tmp_path, caplog):
    caplog.set_level(logging.INFO, "asrptd")
    audit = Audit(tmp_path)
    audit.record(1.0, "start", "7", gpus={"n1": 4})
    audit.record(1.0, "wait", "8", reason="gpus")
    assert [record.getMessage() for record in caplog.records] == ['start job 7 {"gpus": {"n1": 4}}']


def test_it_is_the_daemons_alone(tmp_path):
    audit = Audit(tmp_path)
    audit.record(1.0, "start", "7")
    audit.flush()
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
