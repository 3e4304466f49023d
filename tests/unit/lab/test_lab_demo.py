"""The demo: what it plays at which speed, and bad input, which is one line, exit code 2, and no output."""

import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from slurm_asrpt.config.settings import PolicySettings
from slurm_asrpt.errors import MachineError
from slurm_asrpt.lab import demo
from slurm_asrpt.lab.pace import Pace
from slurm_asrpt.lab.site.sides import NO_WEIGHTS, Played, Record
from slurm_asrpt.lab.spec import LabSpec


def parse(*arguments):
    return demo.parse_options(arguments)


def test_the_demo_compares_plain_slurm_with_the_default_policy():
    assert [(site.name, site.policy) for site in parse().sites] == [
        ("plain Slurm", ""),
        (PolicySettings().name, PolicySettings().name),
    ]


def test_each_policy_is_a_side_once_and_without_slurms_weights():
    sites = parse("--policies", "asrpt,fifo,asrpt").sites
    assert [site.policy for site in sites] == ["", "asrpt", "fifo"]
    assert [site.weights == NO_WEIGHTS for site in sites] == [False, True, True]
    assert all(site.fewest for site in sites)


def test_a_day_takes_four_minutes_unless_its_jobs_are_too_many(monkeypatch):
    monkeypatch.setattr(demo.pace.os, "cpu_count", lambda: 2)
    assert parse().first_speed(100) == 360.0
    assert parse().first_speed(4000) == 72.0
    assert parse("--policies", "asrpt,fifo,spjf").first_speed(4000) == 36.0
    assert parse("--speed", "17").first_speed(2000) == 17.0
    assert parse("--hours", "0.5").first_speed(1) == demo.SLOWEST


def test_the_plan_fits_a_terminal_and_tells_speed_and_load():
    found = parse()
    lines = demo.plan(found, found.window(), Pace(360.0, 16.5, 0.03)).splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(lines)
    for words in (
        "253 jobs of philly-sample in 24 hours, 1.26 times",
        "load 1.01",
        "120 before",
        "x360",
        "About 5 min",
    ):
        assert words in text


# labs and sides in memory


class FakeLab:
    """up and down are written down."""

    def __init__(self, spec):
        self.spec = spec


@pytest.fixture
def events(monkeypatch):
    """What happens to the labs, which end jobs 90 s late at x360, the later the faster their clock goes."""
    found = []
    monkeypatch.setattr(demo, "Lab", FakeLab)
    monkeypatch.setattr(demo, "spec", lambda site, window, setup: LabSpec(Path("/nowhere"), speed=setup.speed))
    monkeypatch.setattr(demo, "up", lambda spec: found.append(f"up x{spec.speed:g}"))
    monkeypatch.setattr(demo, "down", lambda lab, site, setup: found.append(f"down x{lab.spec.speed:g}"))
    monkeypatch.setattr(demo.pace, "measure", lambda lab: Pace(lab.spec.speed, 90.0 * lab.spec.speed / 360, 0.0))
    monkeypatch.setattr(demo, "provenance", lambda running, cost: {"speed": cost.speed})
    return found


def play_on(lab, site, window, setup, listener, cost):
    wait = 0.0 if site.policy else 3600.0
    made = [
        Record(j.submit_s, j.submit_s, j.submit_s + wait, j.submit_s + wait + j.run_s, "RUNNING") for j in window.jobs
    ]
    return Played(site, made, cost, 1.0)


def test_a_machine_that_is_too_slow_gets_a_slower_clock(events, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(demo, "play_on", play_on)
    assert demo.main(["--output", str(tmp_path / "demo.json")]) == 0
    assert events == ["up x360"] * 2 + ["down x360"] * 2 + ["up x240"] * 2 + ["down x240"] * 2
    assert "x240" in capsys.readouterr().err


def test_a_speed_that_was_asked_for_is_not_changed(events, tmp_path, capsys):
    assert demo.main(["--speed", "300", "--output", str(tmp_path / "demo.json")]) == 1
    assert events == ["up x300"] * 2 + ["down x300"] * 2
    assert "bears at most --speed 240" in capsys.readouterr().err


def test_the_figures_and_what_they_were_made_from(events, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(demo, "play_on", play_on)
    output = tmp_path / "new" / "demo.json"
    assert demo.main(["--policies", "asrpt-gated,fifo", "--servers", "16", "--output", str(output)]) == 0
    found = json.loads(output.read_text())
    plain, ours = found["sides"]["plain Slurm"], found["sides"]["asrpt-gated"]
    assert (plain["wait_s"]["mean"], ours["wait_s"]["mean"]) == (pytest.approx(3600.0), pytest.approx(0.0))
    assert found["ratio"]["asrpt-gated"] == ours["completion_s"]["mean"] / plain["completion_s"]["mean"]
    assert {"plain Slurm", "asrpt-gated"} <= found["simulated"].keys()
    assert (found["made"]["trace"], found["made"]["servers"], found["made"]["speed"]) == ("philly", 16, 240.0)
    assert found["made"]["load"] == pytest.approx(1.0, abs=0.05)
    assert (tmp_path / "new" / "demo.png").stat().st_size > 1000
    out = capsys.readouterr().out
    assert "Jobs waiting" in out
    assert "asrpt-gated: mean completion is" in out
    assert "fifo: mean completion is" in out


def test_jobs_that_failed_are_told(events, monkeypatch, tmp_path, capsys):
    def one_fails(*arguments):
        played = play_on(*arguments)
        return Played(played.site, [*played.records[:-1], replace(played.records[-1], state="FAILED")], None, 1.0)

    monkeypatch.setattr(demo, "play_on", one_fails)
    assert demo.main(["--output", str(tmp_path / "demo.json")]) == 0
    assert "demo: 1 job did not complete under plain Slurm\n" in capsys.readouterr().err


def test_if_one_side_fails_the_others_are_stopped_and_nothing_is_written(events, monkeypatch, tmp_path, capsys):
    stopped, started = [], Event()

    def fails(lab, site, window, setup, listener, cost):
        if not site.policy:
            assert started.wait(timeout=30)
            raise MachineError("no answer")
        started.set()
        stopped.append(setup.stop.wait(timeout=30))
        setup.check()

    monkeypatch.setattr(demo, "play_on", fails)
    assert demo.main(["--output", str(tmp_path / "demo.json")]) == 1
    assert stopped == [True]
    assert events[-2:] == ["down x240"] * 2
    assert capsys.readouterr().err.endswith("demo: plain Slurm: no answer\n")
    assert list(tmp_path.iterdir()) == []


def test_a_lab_that_does_not_start_is_ended_as_well(events, monkeypatch, tmp_path):
    def fails(spec):
        events.append("fails")
        raise MachineError("port taken")

    monkeypatch.setattr(demo, "up", fails)
    assert demo.main(["--output", str(tmp_path / "demo.json")]) == 1
    assert events == ["fails", "down x360"]


def test_simulate_starts_no_lab(events, tmp_path, capsys):
    output = tmp_path / "demo.json"
    assert demo.main(["--simulate", "--output", str(output)]) == 0
    assert events == []
    found = json.loads(output.read_text())
    assert found["sides"] == found["simulated"]
    assert "speed" not in found["made"]
    assert found["sides"]["plain Slurm"]["completed"] == found["jobs"]


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit):
        parse("--help")
    out = capsys.readouterr().out
    assert "python -m slurm_asrpt.lab.demo --servers 0" in out
    for line in demo.EXAMPLES.splitlines()[2:]:
        words = line.partition("#")[0].split()
        assert parse(*words[3:])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--hours", "0"], "--hours 0: valid: 0.1 to 744"),
        (["--hours", "many"], "--hours"),
        (["--hours", "700"], "philly-sample: too few jobs for 700 hours"),
        (["--load", "-1"], "--load -1"),
        (["--load", "nan"], "--load nan"),
        (["--longest", "0"], "--longest 0"),
        (["--servers", "-1"], "--servers -1"),
        (["--speed", "1"], "--speed 1: valid: 2 to 1000"),
        (["--base-port", "1"], "--base-port 1"),
        (["--policies", "best"], "--policies best: unknown policy; valid: asrpt"),
        (["--policies", ""], "--policies : unknown policy"),
        (["--trace", "/nowhere"], "/nowhere"),
        (["--nonsense"], "--nonsense"),
        (["--output", "/proc/nowhere/demo.json"], "/proc/nowhere/demo.json: cannot be written"),
        (["--output", "/"], "a directory"),
        (["--output", "a.png"], "such as a.json"),
    ],
)
def test_bad_input(arguments, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "up", lambda spec: pytest.fail("brought a cluster up"))
    assert demo.main(arguments) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert (captured.out, len(lines)) == ("", 1)
    assert lines[0].startswith("demo: ")
    assert says in lines[0]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_failure_keeps_the_previous_figures(events, capsys, tmp_path, monkeypatch):
    def fails(spec):
        raise MachineError("port taken")

    old = tmp_path / "demo.json"
    old.write_text("{}")
    monkeypatch.setattr(demo, "up", fails)
    assert demo.main(["--output", str(old)]) == 1
    assert capsys.readouterr().err.endswith("demo: port taken\n")
    assert [path.name for path in tmp_path.iterdir()] == ["demo.json"]
    assert old.read_text() == "{}"


def test_an_interrupt_ends_all_labs(events, monkeypatch, tmp_path, capsys):
    @contextmanager
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(demo, "Progress", interrupted)
    assert demo.main(["--output", str(tmp_path / "demo.json")]) == 130
    assert events[-2:] == ["down x240"] * 2
    assert capsys.readouterr().err.endswith("demo: interrupted; all clusters have been stopped\n")
    assert not Path(tmp_path / "demo.json").exists()
