"""benchmarks.site.interrupts: its jobs, which continue from their checkpoints, and its figures."""

import os
import signal
import subprocess
import time

import numpy as np
import pytest

from benchmarks.site import interrupts
from benchmarks.site.interrupts import Line, Side, Watch, is_exact, lost_runs, parse
from slurm_asrpt.errors import MachineError
from slurm_asrpt.lab.pace import Pace
from slurm_asrpt.lab.site.jobs import SiteJob, Window
from slurm_asrpt.lab.site.sides import Queue, Record

JOBS = (SiteJob("g", "ann", 8, 1, 60, 1000.0, 0.0), SiteJob("h", "bob", 2, 1, 60, 100.0, 0.0))
WINDOW = Window("log", 1, JOBS, (), None, 1.0)


def lines(*words: str) -> list[Line]:
    """From "start 0 0": event, time, work."""
    return [Line(event, int(at), int(work)) for event, at, work in map(str.split, words)]


WHOLE = lines("start 0 0", "end 100 100")
RESUMED = lines("start 0 0", "saved 60 50", "start 200 50", "end 310 100")


@pytest.mark.parametrize(
    ("found", "exact", "lost"),
    [
        (WHOLE, True, 0),
        (RESUMED, True, 0),
        (lines("start 0 0", "saved 60 50", "saved 80 70", "end 100 100"), True, 0),
        ([], False, 0),
        (WHOLE[:1], False, 0),
        (lines("start 0 0", "end 50 100"), False, 0),
        (lines("start 0 0", "start 60 0", "end 160 100"), True, 1),
        (lines("start 0 0", "saved 60 50", "start 200 0", "end 300 100"), False, 0),
        (lines("start 0 0", "end 100 100", "start 200 100", "end 210 100"), False, 0),
    ],
)
def test_whether_a_job_did_exactly_its_work(found, exact, lost):
    assert is_exact(found, 100.0) == exact
    assert lost_runs(found) == lost


def test_a_job_that_was_killed_continues_from_its_checkpoint(tmp_path):
    own = {"SITE_RUN_S": "3", "SITE_SAVE_S": "0", "SITE_RESTART_S": "0"}
    slurm = {"SLURM_JOB_ID": "7", "ASRPT_PROGRESS_DIR": str(tmp_path)}
    command = ["bash", "-c", interrupts.SCRIPT]

    def begin() -> subprocess.Popen:
        return subprocess.Popen(command, cwd=tmp_path, env=os.environ | own | slurm, start_new_session=True)

    first = begin()
    time.sleep(1.5)
    first.send_signal(signal.SIGUSR1)
    deadline = time.monotonic() + 5.0
    while not (tmp_path / "checkpoint").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert int((tmp_path / "checkpoint").read_text()) in (1, 2)
    assert begin().wait(timeout=10) == 0
    found = lines(*(tmp_path / "7.work").read_text().splitlines())
    assert [line.event for line in found] == ["start", "saved", "start", "end"]
    assert is_exact(found, 3.0)


def side(share: float, ends: tuple[float, float], found: list[list[Line]], trail: list[dict]) -> Side:
    records = [Record(at, at, at, end + at, "COMPLETED") for at, end in enumerate(ends)]
    return Side(share, records, found, [1100.0, 100.0], trail, Pace(90.0, 3.0, 0.1), 60.0)


def test_the_figures_of_a_side():
    first = lines("start 0 0", "saved 500 500", "start 700 500", "end 1300 1000")
    trail = [
        {"event": "interrupt", "job": "1", "time": 480.0},
        {"event": "signalled", "job": "1", "time": 480.0},
        {"event": "requeued", "job": "1", "time": 525.0, "reported": True},
    ]
    before = side(0.0, (1000.0, 1100.0), [lines("start 0 0", "end 1000 1000"), WHOLE], [])
    with_one = side(0.5, (1300.0, 100.0), [first, WHOLE], trail)
    found = interrupts.row(with_one, before, WINDOW, np.array([True, False]))
    assert (found["interrupted"], found["most"], found["checkpoint_s"]) == (1, 1, 45.0)
    assert (found["unreported"], found["lost_runs"], found["wrong"], found["incomplete"]) == (0, 0, 0, 0)
    assert found["mean_ratio"] == pytest.approx(1400 / 2100, abs=1e-4)
    assert found["consenting_gain"] == pytest.approx(1000 / 1300, abs=1e-4)
    assert found["others_worse"] == pytest.approx(100 / 1100, abs=1e-4)
    assert found["lost_share"] == pytest.approx(8 * 100 / (8 * 1100 + 2 * 100), abs=1e-4)
    assert interrupts.row(before, before, WINDOW, np.array([False, False]))["consenting_gain"] is None


def test_the_window_has_jobs_on_several_gpus_of_whom_a_share_consents():
    options = parse(["--hours", "6", "--servers", "4"])
    window = interrupts.draw(options)
    assert min(job.gpus for job in window.jobs) > 1
    among = interrupts.consents(window, 0.5, options.seed)
    assert 0 < among.sum() < len(among)
    assert not (among & ~interrupts.consents(window, 1.0, options.seed)).any()
    jobs = interrupts.with_consent(window, among).jobs
    said = [any("asrpt:interrupt=B:USR1" in word for word in job.command(fewest=True)) for job in jobs]
    assert said == among.tolist()
    assert all("--requeue" in job.command(fewest=True) for job in jobs)


def test_jobs_are_interrupted_only_where_some_consent_and_have_seconds_of_the_machine_for_a_checkpoint():
    options = parse(["--speed", "100", "--min-run-s", "120"])
    without, half = (interrupts.site(share, options).settings for share in (0.0, 0.5))
    assert (without["policy"]["interrupts"], half["policy"]["interrupts"]) == (False, True)
    assert half["policy"]["min_run_s"] == 120.0
    assert "max_interruptions" not in half["policy"]
    assert half["interrupt"]["grace_s"] == 400.0


def test_the_same_cell_in_the_simulator():
    options = parse(["--hours", "6", "--servers", "4"])
    found = interrupts.simulate(interrupts.draw(options), options.seed, [0.0, 1.0], interrupts.tuned(options))
    assert [each["consent"] for each in found] == [0.0, 1.0]
    assert found[0]["interrupted"] == 0 < found[1]["interrupted"]
    assert found[0]["mean_ratio"] == found[0]["p99_ratio"] == 1.0


def test_a_side_in_which_nothing_moves_ends(monkeypatch):
    watch = Watch("consent 1", 9)
    monkeypatch.setattr(interrupts, "STUCK_S", 0.0)
    watch.look(Queue(9, 1, 1))
    with pytest.raises(MachineError, match="1 jobs wait, but none runs"):
        watch.look(Queue(9, 1, 0))
