"""The clock of a lab, and whether a machine bears its pace."""

import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from slurm_asrpt.errors import InputError, MachineError
from slurm_asrpt.lab import clock, conf, pace
from slurm_asrpt.lab.clock import Clock
from slurm_asrpt.lab.cluster import Lab
from slurm_asrpt.lab.pace import Pace
from slurm_asrpt.lab.spec import DEFAULT_SCHEDULER_PARAMETERS, SITE_SCHEDULER_PARAMETERS, LabPaths, LabSpec

VARIABLES = {"LD_PRELOAD": "/usr/lib/x.so", "FAKETIME": "+0 x60", "FAKETIME_SHARED": "/faketime_sem_7 /faketime_shm_7"}
CLOCK = Clock(speed=60, began=1000.0, shown=5000.0, variables=VARIABLES)


@pytest.fixture
def paths():
    """Not in tmp_path: paths of labs are short."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        found = LabPaths(Path(folder))
        found.etc.mkdir()
        yield found


def test_a_minute_of_the_machine_is_an_hour_of_the_lab():
    assert CLOCK.at(1000.0) == 5000.0
    assert CLOCK.at(1060.0) == 5000.0 + 3600.0


def test_a_lab_with_a_clock_shows_its_time_and_gives_it_to_its_processes(paths):
    lab = Lab(LabSpec(directory=paths.root, speed=60))
    paths.clock.write_text(json.dumps(asdict(Clock(60, time.time() - 10, 0.0, VARIABLES))))
    assert lab.time() == pytest.approx(600, abs=60)
    assert VARIABLES.items() <= lab.env.items()


def test_a_lab_without_a_clock_of_its_own_has_the_machines(paths):
    lab = Lab(LabSpec(directory=paths.root))
    paths.clock.write_text(json.dumps(asdict(CLOCK)))
    assert lab.clock is None
    assert lab.time() == pytest.approx(time.time(), abs=60)
    assert "FAKETIME" not in lab.env


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"speed": 60}'])
def test_a_damaged_clock_is_none(paths, text):
    paths.clock.write_text(text)
    assert clock.load(paths) is None
    clock.remove(paths)
    assert not paths.clock.exists()


def test_removing_a_clock_removes_its_shared_memory_and_nothing_else(paths, tmp_path, monkeypatch):
    shared = tmp_path / "shm"
    shared.mkdir()
    for name in ("sem.faketime_sem_7", "faketime_shm_7", "faketime_shm_8"):
        (shared / name).touch()
    monkeypatch.setattr(clock, "_SHARED_MEMORY", shared)
    paths.clock.write_text(json.dumps(asdict(CLOCK)))
    clock.remove(paths)
    assert [file.name for file in shared.iterdir()] == ["faketime_shm_8"]
    clock.remove(paths)  # safe to repeat


@pytest.mark.parametrize("speed", [0, 0.5, -1, 1001, float("nan")])
def test_a_speed_out_of_range_is_an_error(speed):
    with pytest.raises(InputError, match=r"--speed .*valid: 1 to 1000"):
        LabSpec(speed=speed)


def test_slurms_parameters_are_those_of_a_site_if_the_lab_has_a_clock():
    assert LabSpec().scheduler_parameters == DEFAULT_SCHEDULER_PARAMETERS
    assert LabSpec(speed=60).scheduler_parameters == SITE_SCHEDULER_PARAMETERS
    assert LabSpec(speed=60, scheduler_parameters="defer").scheduler_parameters == "defer"
    assert LabSpec.from_json(LabSpec(speed=60).to_json()) == LabSpec(speed=60)


def test_slurms_timeouts_are_longer_on_a_fast_clock(paths):
    normal, fast, fastest = (
        conf.slurm_conf(LabSpec(speed=speed), paths, "host", {}, lua=False) for speed in (1, 60, 1000)
    )
    assert "MessageTimeout=30\n" in normal
    assert "TcpTimeout" not in normal
    assert "MessageTimeout=600\n" in fast
    assert "TcpTimeout=300\n" in fast
    assert "SlurmdTimeout=60000\n" in fastest


def test_what_a_machine_bears_is_bounded_by_late_ends_and_by_its_cpus():
    assert Pace(speed=60, late_s=6.0, cpu=0.01).bearable == pytest.approx(600)
    assert Pace(speed=60, late_s=6.0, cpu=0.25).bearable == pytest.approx(120)
    assert Pace(speed=60, late_s=120.0, cpu=0.0).bearable == pytest.approx(30)


def test_a_pace_that_the_machine_does_not_bear_is_an_error_with_one_that_it_does(monkeypatch):
    monkeypatch.setattr(pace, "measure", lambda lab: Pace(speed=600, late_s=73.5, cpu=0.1))
    with pytest.raises(MachineError, match=r"x600: jobs end 73.5 s of the lab late.* at most --speed 480"):
        pace.check(None)
    monkeypatch.setattr(pace, "measure", lambda lab: Pace(speed=60, late_s=4.0, cpu=0.1))
    assert pace.check(None).speed == 60
