"""The commands of asrpt-sim."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from slurm_asrpt_cli._app.errors import run_app
from slurm_asrpt_cli.sim import app

BODY = "from slurm_asrpt_cli._app.start import sim as main; import sys; sys.argv[0] = 'asrpt-sim'; main()"
SMALL = ["pai-like:600:5", "--servers", "8", "--jobs", "120", "--load", "0.8"]


@dataclass
class Done:
    stdout: str
    stderr: str


Sim = Callable[..., Done]


@pytest.fixture
def sim(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Sim:
    """The command in this process (a new one takes seconds to start); fails unless it ends with ``code``."""

    def call(*arguments: object, code: int = 0) -> Done:
        monkeypatch.setattr(sys, "argv", ["asrpt-sim", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            run_app(app)
        done = Done(*capsys.readouterr())
        assert leaving.value.code == code, done.stderr
        return done

    return call


def on_terminal(columns: int, *arguments: object) -> str:
    """The output on a terminal of this width."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "xterm"}
    command = [sys.executable, "-c", BODY, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    found = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        found += part
    os.close(ours)
    assert process.wait(timeout=60) == 0
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", found.decode()).replace("\r", "")


def test_run_compare_and_report(sim: Sim, tmp_path: Path) -> None:
    run = json.loads(sim("run", *SMALL, "-p", "asrpt", "--set", "tau=2", "-o", tmp_path / "run", "--json").stdout)
    assert run["scenario"]["policy"] == "asrpt:tau=2"
    assert run["summary"]["ended"] == 120
    done = sim("compare", *SMALL, "-p", "fifo,asrpt:tau=0,delay=aside,asrpt-perfect", "-o", tmp_path / "cmp")
    lines, facts = (part.splitlines() for part in done.stdout.split("\n\n"))
    assert lines[0].split()[:4] == ["POLICY", "MEAN_JCT", "/SOUND", "/DESIGN"]
    assert [line.split()[0] for line in facts] == ["Trace", "Models", "Network", "Predictor", "Load", "Split", "Bounds"]
    assert {line.split()[0] for line in lines[1:]} == {"fifo", "asrpt:delay=aside,tau=0", "asrpt-perfect"}
    ratios = [float(line.split()[2]) for line in lines[1:]]
    assert ratios == sorted(ratios)
    assert ratios[0] >= 1
    found = json.loads(sim("report", tmp_path / "cmp", tmp_path / "run", "-o", tmp_path / "r.html", "--json").stdout)
    assert found["results"] == 4
    assert all(Path(path).exists() for path in [found["report"], *found["pictures"]])


def test_one_job_has_no_load(sim: Sim) -> None:
    done = sim("run", "pai-like:600", "--jobs", "1", "-p", "fifo")
    assert re.search(r"Load +all jobs arrive at once", done.stdout)
    assert re.search(r"GPUs used +- while jobs arrive", done.stdout)


def test_logs_name_no_models_so_they_have_none(sim: Sim) -> None:
    """A generated trace, and who asks for it, gets the paper's models."""
    told = {}
    for arguments in (["philly"], ["philly", "--models", "table1"], ["pai-like:600:5"]):
        found = json.loads(sim("run", *arguments, "-p", "fifo", "--servers", "20", "--jobs", "40", "--json").stdout)
        told[tuple(arguments)] = found["scenario"]["options"]["models"]
    assert list(told.values()) == ["none", "table1", "table1"]


def test_every_table_says_what_was_assumed(sim: Sim, tmp_path: Path) -> None:
    found = sim("compare", "philly", "--servers", "4", "--load", "1.5", "-p", "fifo,spjf").stdout
    assert re.search(r"Models +none: every placement", found)
    assert re.search(r"Network +10 Gbit/s per server, 300 GB/s inside, not used without models", found)
    assert re.search(r"Predictor +forest, from 200 earlier jobs, retrained every 60 min; \d+% of the jobs", found)
    assert re.search(r"Load +1\.5: the trace's is [\d.]+, so times between submissions are [\d.]+ times as long", found)
    perfect = sim("run", *SMALL, "--predictor", "perfect", "--contention", "0.5").stdout
    assert re.search(r"Predictor +perfect: policies know", perfect)
    assert re.search(r"Network .*, shared by jobs, contention 0\.5", perfect)
    swept = sim("sweep", *SMALL, "-p", "fifo", "--grid", "load=0.5,1", "-j", "1", "-o", tmp_path / "s").stdout
    assert "Models" in swept
    assert "\nLoad" not in swept  # it has a column


def test_jobs_that_are_larger_than_the_cluster_are_counted(sim: Sim) -> None:
    for command in (["run"], ["compare", "-p", "fifo"]):
        done = sim(*command, "philly", "--servers", "1", "--gpus-per-server", "4")
        assert re.search(r"warning: \d+ of 200 jobs never start: they are larger than the cluster", done.stderr)


def test_jobs_that_arrive_at_once_have_no_load(sim: Sim, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    rows = "".join(f"{number},5,1,60\n" for number in range(20))
    log.write_text(f"job_id,submit_s,gpus,duration_s\n{rows}", encoding="utf-8")
    done = sim("run", log, "--load", "1", code=2)
    assert "submitted at the same time" in done.stderr
    assert done.stderr.count("\n") <= 2


def test_a_warning_where_nobody_waits(sim: Sim, tmp_path: Path) -> None:
    for command in (["run"], ["compare", "-p", "fifo"], ["sweep", "-j", "1", "-o", tmp_path / "s"]):
        assert "warning: hardly a job waits" in sim(*command, "philly").stderr
    assert sim("run", "philly", "--servers", "4").stderr == ""


EXAMPLE = re.compile(r"asrpt-sim ((?:run|compare|sweep) (?:philly|pai-like)\S* .*)")


@pytest.mark.parametrize("command", ["", "run", "compare", "sweep"])
def test_the_examples_of_the_help_compare_something(
    command: str, sim: Sim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = EXAMPLE.findall(sim(*filter(None, [command]), "--help").stdout)
    assert len(found) == 1
    assert "hardly a job waits" not in sim(*found[0].split()).stderr


def test_a_note_on_policies_that_scatter_jobs(sim: Sim, tmp_path: Path) -> None:
    policies = ("-p", "slurm-backfill,slurm-backfill:nodes=fewest,asrpt-gated")
    arguments = ("pai-like:300", "--servers", "8", "--load", "0.9", "--single-gpu", "0")
    done = sim("compare", *arguments, *policies, "-o", tmp_path / "c")
    assert "note: jobs request no number of nodes" in done.stderr
    assert "(LOST): slurm-backfill. POLICY:nodes=fewest is what sbatch -N does" in done.stderr
    assert json.loads(sim("compare", *arguments, *policies, "--json").stdout)["scattering"] == ["slurm-backfill"]
    assert "note: " in sim("run", *arguments, "-p", "slurm-backfill").stderr
    assert sim("run", *arguments, "-p", "slurm-backfill:nodes=fewest").stderr == ""
    assert "(LOST): slurm-backfill." in sim("sweep", *arguments, *policies, "-o", tmp_path / "s", "-j", "1").stderr
    sim("report", tmp_path / "c", "-o", tmp_path / "page.html")
    assert "slurm-backfill. POLICY:nodes=fewest is what sbatch -N does." in (tmp_path / "page.html").read_text()


def test_compare_has_slurm_with_the_fewest_nodes_among_its_policies(sim: Sim) -> None:
    found = json.loads(sim("compare", *SMALL, "--json").stdout)["policies"]
    assert "slurm-backfill:nodes=fewest" in [row["policy"] for row in found]


def test_the_share_in_use_while_jobs_arrive_is_near_the_load(sim: Sim) -> None:
    """The share up to the last end is small where one long job outlasts all others."""
    found = json.loads(sim("run", "pai-like:4000", "--load", "0.9", "--servers", "40", "--json").stdout)["summary"]
    assert found["utilisation"] < 0.3 < found["utilisation_arriving"] <= 1


def test_compare_as_json_has_the_bounds_and_the_percentiles(sim: Sim) -> None:
    found = json.loads(sim("compare", *SMALL, "-p", "fifo,spjf", "--json").stdout)
    assert set(found["bounds"]) == {"design", "sound"}
    first, second = found["policies"]
    assert first["mean_jct_s"] <= second["mean_jct_s"]
    assert first["over_sound"] == pytest.approx(first["mean_jct_s"] / found["bounds"]["sound"])
    assert first["median_wait_s"] <= first["p90_wait_s"] <= first["p99_wait_s"]


def test_a_sweep_resumes_and_is_collected(sim: Sim, tmp_path: Path) -> None:
    arguments = ["sweep", *SMALL, "-p", "fifo,asrpt", "-o", tmp_path / "s", "-j", "1", "--json", "--grid"]
    first = json.loads(sim(*arguments, "seed=0..1").stdout)
    assert len(first["cells"]) == 4
    again = sim(*arguments, "seed=0..2")
    assert "4 of 6 cells already have results" in again.stderr
    gathered = json.loads(sim("sweep", "--collect", tmp_path / "s", "--json").stdout)
    assert gathered["cells"] == json.loads(again.stdout)["cells"]
    with (tmp_path / "s" / "sweep.csv").open() as file:
        assert [row["seed"] for row in csv.DictReader(file)] == ["0", "0", "1", "1", "2", "2"]


def test_collect_reports_missing_cells(sim: Sim, tmp_path: Path) -> None:
    from slurm_asrpt.sim.scenario import make_scenario, parse_policies
    from slurm_asrpt.sim.sweep import make_sweep, write_sweep

    write_sweep(tmp_path / "s", make_sweep(make_scenario("pai-like:500"), parse_policies("fifo"), {"seed": [0, 1]}))
    assert "no results yet for 2 of 2 cells" in sim("sweep", "--collect", tmp_path / "s", code=1).stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "no-such-file"], "no such trace"),
        (["run", ""], "is empty"),
        (["describe", ""], "is empty"),
        (["describe", "no-such-file"], "or a sample (philly, itp, helios)"),
        (["describe", "pai-like:x"], "pai-like[:jobs[:days]]"),
        (["run", "/dev/zero"], "not a regular file"),
        (["run", "/etc"], "a directory without the tables"),
        (["run", "philly", "--format", "nope"], "unknown format 'nope'"),
        (["run", "pai-like", "--format", "nope"], "unknown format 'nope'"),
        (["run", "philly", "--column", "gpus"], "write NAME=TITLE"),
        (["run", "philly", "--format", "swf"], "--processors-as-gpus"),
        (["run", *SMALL, "--retrain", "soon"], "e.g. 1h"),
        (["run", *SMALL, "--retrain", "-1"], "e.g. 1h"),
        (["run", *SMALL, "--retrain", "0 parsecs"], "e.g. 1h"),
        (["run", *SMALL, "--nic", "inf"], "finite"),
        (["run", "pai-like:x"], "pai-like[:jobs[:days]]"),
        (["run", *SMALL, "-p", "nonsense"], "known: asrpt"),
        (["run", *SMALL, "-p", "asrpt", "--set", "tau=-1"], "greater than or equal"),
        (["run", *SMALL, "-p", "asrpt", "--set", "nonsense=1"], "it has: comm_heavy"),
        (["run", *SMALL, "--predictor", "oracle"], "perfect, expected"),
        (["run", *SMALL, "--nic", "0"], "bandwidths"),
        (["run", *SMALL, "--switches", "2", "--beyond", "-1"], "bandwidths"),
        (["run", *SMALL, "--switches", "2", "--beyond", "inf"], "finite"),
        (["run", *SMALL, "--switches", "2.5"], "numbers separated by commas"),
        (["run", *SMALL, "--beyond", "5"], "number of servers under each"),
        (["run", *SMALL, "--servers", "0"], "at least one server"),
        (["run", *SMALL, "-o", "/etc"], "contains other files"),
        (["compare", *SMALL, "-p", ","], "no policy"),
        (["sweep"], "--collect"),
        (["sweep", *SMALL, "-o", "x", "--grid", "x=1"], "keys: servers"),
        (["sweep", *SMALL, "-o", "x", "--grid", "retrain=1x"], "a value of retrain"),
        (["sweep", "", "-o", "x"], "is empty"),
        (["sweep", *SMALL, "-o", "x", "--backend", "cloud"], "local, slurm"),
        (["sweep", *SMALL, "-o", "x", "--backend", "dask"], "--scheduler"),
        (["sweep", "--collect", "/etc"], "no sweep there"),
        (["report", "/etc"], "no results there"),
    ],
)
def test_bad_input_is_one_line(sim: Sim, arguments: list[str], says: str) -> None:
    done = sim(*arguments, code=2)
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


def test_what_no_policy_can_simulate_is_said_once(sim: Sim, tmp_path: Path) -> None:
    trace = tmp_path / "titles.csv"
    trace.write_text("job_id,submit_s,gpus,duration_s\n")
    done = sim("compare", str(trace), "-p", "fifo,asrpt", code=1)
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("the file has no rows\n")


COMMANDS = ("run", "compare", "sweep", "report", "import", "describe", "generate", "formats", "what-if")


class Terminal(io.StringIO):
    """A stream that claims to be a terminal; a real one needs a process, which takes seconds to start."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The output on a terminal of the given width."""

    def call(columns: int, *arguments: object) -> str:
        stream = Terminal()
        monkeypatch.setattr(sys, "argv", ["asrpt-sim", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdout", stream)
        for name, value in {"COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "xterm"}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as leaving:
            run_app(app)
        assert leaving.value.code == 0
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())

    return call


@pytest.mark.parametrize("sub", COMMANDS)
def test_help_has_examples_and_fits_60_columns(shown: Callable[..., str], sub: str) -> None:
    text = shown(60, sub, "--help")
    assert f"asrpt-sim {sub} " in text.partition("Examples:")[2] or sub == "formats"
    assert max(map(len, text.splitlines())) <= 60


def test_the_list_of_commands_is_not_truncated(shown: Callable[..., str]) -> None:
    text = shown(80, "--help")
    assert "..." not in text.partition("Commands:")[2]
    assert all(re.search(rf"^  {name} +\S", text, flags=re.MULTILINE) for name in COMMANDS)


POLICIES = "asrpt:tau=0,delay=aside,comm_heavy=1.25,fifo,spjf"


def test_a_table_on_a_real_terminal() -> None:
    fits(on_terminal(80, "compare", *SMALL, "-p", POLICIES), 80)


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_tables_fit_the_terminal(shown: Callable[..., str], columns: int) -> None:
    fits(shown(columns, "compare", *SMALL, "-p", POLICIES), columns)


def fits(text: str, columns: int) -> None:
    lines, assumed = text.splitlines()[:4], text.splitlines()[4:]
    assert assumed[0] == ""
    assert assumed[1].startswith("Trace ")
    assert max(map(len, (*lines, *assumed))) <= columns
    assert "MEAN_JCT" in lines[0]
    assert "/SOUND" in lines[0]


@pytest.mark.parametrize("name", ["philly", "itp", "helios"])
def test_samples_have_names(sim: Sim, name: str) -> None:
    run = json.loads(sim("run", name, "--servers", 20, "--jobs", 20, "--json").stdout)
    assert run["notes"]["trace"] == f"{name}-sample"
    assert json.loads(sim("describe", name, "--json").stdout)["name"] == f"{name}-sample"


def test_a_file_has_precedence_over_a_sample_of_its_name(
    sim: Sim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("philly").write_text("job_id,submit_s,gpus,duration_s\n1,1,1,10\n")
    assert json.loads(sim("describe", "philly", "--json").stdout)["jobs"] == 1


def test_a_trace_is_read_with_the_given_options(sim: Sim, tmp_path: Path) -> None:
    """run, describe and the processes of a sweep read the same trace."""
    path = tmp_path / "x.csv"
    rows = "".join(f"{job},{60 * job},{1 + job % 4},100\n" for job in range(40))
    path.write_text(f"job_id,Submitted,Cards,duration_s\n{rows}")
    titles = ["--column", "submit_s=Submitted", "--column", "gpus=Cards"]
    assert json.loads(sim("describe", path, *titles, "--json").stdout)["jobs"] == 40
    run = json.loads(sim("run", path, *titles, "--servers", 2, "--json").stdout)
    assert run["summary"]["ended"] == 20
    arguments = ["sweep", path, *titles, "--servers", 2, "-o", tmp_path / "s", "-j", 1, "--json"]
    found = json.loads(sim(*arguments, "--grid", "retrain=0,1h").stdout)
    assert [cell["retrain"] for cell in found["cells"]] == [0, 3600]
    assert json.loads(sim("sweep", "--collect", tmp_path / "s", "--json").stdout)["cells"] == found["cells"]


def test_a_log_of_cpu_jobs_is_accepted_with_its_option(sim: Sim, tmp_path: Path) -> None:
    path = tmp_path / "x.swf"
    path.write_text("".join(f"{j} {60 * j} 5 100 4 -1 -1 4 200 -1 1 1 1 1 1 -1 -1 -1\n" for j in range(1, 21)))
    assert "--processors-as-gpus" in sim("run", path, code=2).stderr
    run = json.loads(sim("run", path, "--processors-as-gpus", "--servers", 4, "--json").stdout)
    assert run["summary"]["jobs"] == 10


def test_the_retraining_interval_is_in_seconds(sim: Sim) -> None:
    for text, seconds in (("0", 0), ("90", 90), ("30min", 1800), ("1h", 3600), ("1d", 86400), ("2weeks", 1209600)):
        run = json.loads(sim("run", *SMALL, "-p", "fifo", "--retrain", text, "--json").stdout)
        assert run["scenario"]["options"]["retrain_s"] == seconds


def test_startup_imports_nothing_slow() -> None:
    code = (
        "import sys, slurm_asrpt_cli.sim; print(*{'sklearn', 'matplotlib', 'joblib', 'distributed'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


def test_a_pipe_gets_full_output_without_a_progress_bar(sim: Sim) -> None:
    done = sim("compare", *SMALL, "-p", "fifo,spjf", "--models", "none")
    assert done.stderr == ""
    assert "ENDED" in done.stdout


LARGE = ["pai-like:8000:5", "--servers", "60", "--load", "1", "--models", "none", "--predictor", "mean"]


def interrupt(arguments: list[Any], when: Any) -> tuple[int, str, str]:
    """Send Ctrl-C to the whole group, as a terminal does, once ``when`` holds."""
    command = [sys.executable, "-c", BODY, *map(str, arguments)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not when() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    out, error = process.communicate(timeout=60)
    return process.returncode, out, error


def test_ctrl_c_in_a_sweep_keeps_completed_cells_and_leaves_no_process(tmp_path: Path) -> None:
    cells = tmp_path / "s" / "cells"
    arguments = ["sweep", *LARGE, "-p", "fifo", "--grid", "seed=0..59", "-j", "2", "-o", tmp_path / "s"]
    code, out, error = interrupt(arguments, lambda: any(cells.glob("*/result.json")))
    assert code == 130, error
    assert "Traceback" not in error
    assert "interrupted" in error
    done = len(list(cells.glob("[!.]*/result.json")))
    assert 1 <= done < 60
    assert len(out.partition("\n\n")[0].splitlines()) == 1 + done


def test_ctrl_c_in_a_run_writes_the_completed_jobs(tmp_path: Path) -> None:
    """The interrupt is raised inside the simulation, not during startup."""
    code = f"""
import os, signal
from slurm_asrpt.sim.recorder import Recorder
begin = Recorder.started
def started(self, row, now, placement):
    begin(self, row, now, placement)
    if row == 60:
        os.kill(os.getpid(), signal.SIGINT)
Recorder.started = started
{BODY}
"""
    command = [sys.executable, "-c", code, "run", *SMALL, "-p", "fifo", "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 130, done.stderr
    assert "interrupted" in done.stderr
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    assert found["interrupted"]
    assert 0 < found["summary"]["ended"] < 120
    assert "Over bound         -" in done.stdout
