"""The demo: figures from made-up records, and bad input, which is one line, exit code 2, and no output."""

from contextlib import contextmanager
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from slurm_asrpt.config.settings import PolicySettings
from slurm_asrpt.errors import MachineError
from slurm_asrpt.lab import demo
from slurm_asrpt.lab.demo import Round, measure, summary
from slurm_asrpt.lab.workload import DemoJob
from slurm_asrpt.slurm.records import JobRecord


def job(name, gpus=4, iterations=100, ideal_s=10.0):
    return DemoJob(name, "asrpt1", gpus, "vgg19-dp4", iterations, 0.0, ideal_s)


def record(name, submit, start, end, state="COMPLETED", predicted=0):
    tag = f"asrpt1:g={'0' * 16};n={predicted}"
    return JobRecord(
        "1", name, "asrpt1", 1, "gpu", state, "None", submit, start_time=start, end_time=end, admin_comment=tag
    )


def records(*found):
    return {r.name: r for r in found}


def test_the_figures_of_a_round_are_computed_from_its_records():
    found = measure(
        [job("a"), job("b")],
        records(record("a", 0, 5, 15, predicted=110), record("b", 10, 10, 40, predicted=50)),
        predicted=True,
    )
    assert found == Round(
        completed=2,
        avg_jct_s=22.5,
        total_jct_s=45,
        makespan_s=40,
        lost_gpu_hours=4 * 20 / 3600,
        prediction_error=pytest.approx(0.3),
    )


def test_the_learning_round_has_no_prediction_error():
    assert measure([job("a")], records(record("a", 0, 1, 2)), predicted=False).prediction_error is None


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED", "RUNNING", "PENDING", "TIMEOUT", "NODE_FAIL"])
def test_jobs_that_did_not_complete_do_not_count(state):
    found = measure([job("a"), job("b")], records(record("a", 0, 0, 10), record("b", 0, 0, 99, state)), predicted=False)
    assert (found.completed, found.avg_jct_s, found.makespan_s) == (1, 10, 10)


def test_a_job_that_was_never_submitted_does_not_count():
    assert measure([job("a"), job("b")], records(record("b", 0, 0, 9)), predicted=False).completed == 1


def test_a_job_without_a_prediction_has_an_error_of_one():
    found = record("a", 0, 0, 9)
    assert measure([job("a")], records(found), predicted=True).prediction_error == 1.0


def test_a_run_faster_than_ideal_loses_no_gpu_hours():
    assert measure([job("a")], records(record("a", 0, 0, 9)), predicted=False).lost_gpu_hours == 0


def test_a_round_without_completed_jobs_is_an_error():
    with pytest.raises(MachineError, match="no job completed"):
        measure([job("a")], records(record("a", 0, 0, 9, "FAILED")), predicted=False)


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (5.0, "asrpt-gated: the average completion time is 50% shorter than under backfill (ratio 0.50;"),
        (15.0, "50% longer than under backfill"),
        (10.0, "the same as under backfill"),
    ],
)
def test_the_summary_states_the_ratio(after, says):
    before = Round(1, 10.0, 10.0, 10.0, 0.0, None)
    assert says in summary(before, Round(1, after, after, after, 0.0, 0.1), "asrpt-gated")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_table_is_readable_in_a_narrow_terminal(width):
    rounds = {
        "backfill": Round(80, 24.2, 1936.0, 112.4, 1.234, None),
        "asrpt": Round(80, 13.0, 1040.0, 98.0, 0.1, 0.051),
        "asrpt-gated": Round(80, 12.1, 968.0, 97.0, 0.05, 0.052),
    }
    out = StringIO()
    Console(file=out, width=width).print(demo.table(rounds))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    words = out.getvalue()
    for shown in ("24.2", "13.0", "(0.54)", "12.1", "(0.50)", "5.1%", "1.234"):
        assert shown in words
    if width >= 80:
        assert any(all(w in line for w in ("average", "24.2 ", "13.0 (0.54)", "12.1 (0.50)")) for line in lines)


def test_the_table_works_when_backfill_lost_no_gpu_hours():
    nothing = Round(1, 10.0, 10.0, 10.0, 0.0, None)
    assert demo.table({"backfill": nothing, "asrpt": nothing}).row_count == 6


def run_demo(monkeypatch, options, lost=()):
    """Run the demo on made-up rounds. Returns the figures and the daemons that it started."""
    jobs, daemons, ends = [job("a"), job("b")], [], iter([30.0, 15.0, 12.0])

    @contextmanager
    def asrptd(lab, mode, policy="asrpt"):
        daemons.append((mode, policy))
        yield

    def play(lab, jobs, progress, title):
        end = next(ends)
        return records(*(record(j.name, 0, 0, end, predicted=100) for j in jobs if (title[0], j.name) not in lost))

    for name, stand_in in (("asrptd", asrptd), ("play", play), ("_provenance", lambda *_: {})):
        monkeypatch.setattr(demo, name, stand_in)
    lab = SimpleNamespace(run=lambda command, **_: daemons.append(command[1]))
    return demo.run(lab, demo.parse_options(options), jobs), daemons


def test_the_demo_runs_three_rounds_and_compares_them(monkeypatch, capsys):
    found, daemons = run_demo(monkeypatch, ["--default-policy", "wcs-workload"])
    assert daemons == [("shadow", "asrpt"), "retrain", ("enforce", "asrpt"), ("enforce", "wcs-workload")]
    assert (found["avg_jct_backfill_s"], found["avg_jct_asrpt_s"], found["avg_jct_default_s"]) == (30, 15, 12)
    assert (found["ratio"], found["ratio_default"], found["policy_default"]) == (0.5, 0.4, "wcs-workload")
    assert found["default"]["prediction_error"] == 0
    out = capsys.readouterr().out
    assert out.count("ratio 0.") == 2
    assert "wcs-workload: the average completion time is" in out


def test_the_default_policy_runs_even_if_it_is_the_papers_policy(monkeypatch, capsys):
    found, daemons = run_demo(monkeypatch, ["--default-policy", "asrpt"], lost={("3", "b")})
    assert daemons[-1] == ("enforce", "asrpt")
    assert (found["ratio"], found["ratio_default"]) == (0.5, 0.4)
    assert found["completed_default"] == 1
    shown = capsys.readouterr()
    assert "asrpt again" in shown.out
    assert "1 of 2 jobs did not complete under asrpt again" in shown.err


def test_the_demo_and_the_settings_have_the_same_default_policy():
    assert demo.parse_options([]).default_policy == PolicySettings().name


def test_the_plan_fits_a_terminal(tmp_path):
    lines = demo.plan(demo.parse_options([])).splitlines()
    assert len(lines) <= 2
    assert max(map(len, lines)) <= 80
    assert "80 jobs on a real Slurm" in lines[0]
    assert "About 5 min" in lines[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--jobs", "100000"], "only 400 jobs"),
        (["--jobs", "0"], "--jobs 0"),
        (["--jobs", "many"], "--jobs"),
        (["--load", "-1"], "--load -1"),
        (["--load", "nan"], "--load nan"),
        (["--span", "0"], "--span 0"),
        (["--span", "1e9"], "--span 1e+09"),
        (["--base-port", "1"], "--base-port 1"),
        (["--default-policy", "best"], "--default-policy best: unknown policy; valid: asrpt"),
        (["--nonsense"], "--nonsense"),
        (["--output", "/proc/nowhere/demo.json"], "/proc/nowhere/demo.json: cannot be written"),
        (["--output", "/"], "a directory"),
    ],
)
def test_bad_input(arguments, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "up", lambda spec: pytest.fail("brought a cluster up"))
    assert demo.main(arguments) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith("demo: ")
    assert says in captured.err
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_failure_keeps_the_previous_figures(capsys, tmp_path, monkeypatch):
    def fails(spec):
        raise MachineError("port taken")

    old = tmp_path / "demo.json"
    old.write_text("{}")
    monkeypatch.setattr(demo, "up", fails)
    assert demo.main(["--output", str(old)]) == 1
    assert capsys.readouterr().err.endswith("demo: port taken\n")
    assert [path.name for path in tmp_path.iterdir()] == ["demo.json"]
    assert old.read_text() == "{}"
