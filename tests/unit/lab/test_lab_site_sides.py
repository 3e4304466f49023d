"""A side that is played until its last job has started, and one that is played to its end."""

import pytest

from slurm_asrpt.config.settings import DaemonSettings
from slurm_asrpt.errors import InputError, MachineError
from slurm_asrpt.lab.site import sides
from slurm_asrpt.lab.site.jobs import SiteJob, Window
from slurm_asrpt.lab.site.sides import Queue, Record

START = "2026-01-01T00:00:00"
JOB = SiteJob("g", "asrpt1", 1, 1, 60, 50.0, 4.0)


class FakeLab:
    """A lab with one running job, 8."""

    def __init__(self, directory):
        self.directory = directory

    def run(self, command):
        class Done:
            stdout = "8 2026-01-01T00:00:30\n" if "%A %S" in command else "PD\nPD\nR\nCG\n"

        return Done()


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.setattr(sides, "LOOK_S", 0.01)
    monkeypatch.setattr(sides, "RECORDED_S", 0.1)
    (tmp_path / "log").mkdir()
    times = "StartTime=2026-01-01T00:00:10 EndTime=2026-01-01T00:01:00 SubmitTime=2026-01-01T00:00:05"
    (tmp_path / "log" / "jobcomp").write_text(f"JobId=7 JobState=COMPLETED {times}\n")
    return FakeLab(tmp_path)


def test_the_end_of_a_running_job_follows_from_its_run_time(lab):
    start = sides._instant(START)
    found = sides.records(lab, [JOB, JOB], ["7", "8"], start, to_the_end=False)
    assert found == [Record(4.0, 5.0, 10.0, 60.0, "COMPLETED"), Record(4.0, 4.0, 30.0, 80.0, "RUNNING")]


def test_to_the_end_a_running_job_has_no_record(lab):
    with pytest.raises(MachineError, match="end of 1 jobs"):
        sides.records(lab, [JOB, JOB], ["7", "8"], sides._instant(START))


def test_the_queue_is_counted(lab):
    found = sides._queue(lab, 9)
    assert found == Queue(9, 2, 2)
    assert found.ended == 5


@pytest.mark.parametrize(
    ("queue", "to_the_end", "over"),
    [
        (Queue(9, 1, 0), False, False),
        (Queue(9, 0, 1), False, True),
        (Queue(9, 0, 1), True, False),
        (Queue(9, 0, 0), True, True),
    ],
)
def test_a_side_is_over_when_nothing_can_change(queue, to_the_end, over):
    assert sides._over(queue, to_the_end) == over


def test_a_fast_clock_gives_asrptd_seconds_of_the_machine():
    for speed in (20.0, 360.0):
        found = DaemonSettings(**sides.daemon_settings(speed))
        assert found.interval_s >= 30
        assert found.interval_s / speed >= 0.5
        assert found.lease_s == 86400


def test_a_lab_that_cannot_be_leaves_no_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(sides.tempfile, "tempdir", str(tmp_path))
    window = Window("log", 1, (JOB,), (), None, 1.0)
    with pytest.raises(InputError, match=r"path too long|--base-port 1"):
        sides.spec(sides.OURS, window, sides.Setup(60.0, 3600.0, port=1))
    assert list(tmp_path.iterdir()) == []
