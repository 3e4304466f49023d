"""Every command prints text of users as text: it cannot control a terminal, nor forge a line or markup."""

from __future__ import annotations

import csv
import importlib
import json
import logging
import os
import sys
import time
import unicodedata
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import typer.main
from slurm_asrpt_cli import asrptd, report
from slurm_asrpt_cli.asrptd import OneLine

from slurm_asrpt.audit.snapshot import to_bytes
from slurm_asrpt.config.settings import Settings, load_settings
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.history.store import FILE_NAME, History, Run, Source
from slurm_asrpt.pool.folder import PoolFolder
from slurm_asrpt.pool.status import PoolStatus, TrainingStatus
from slurm_asrpt.predict.model_store import ModelInfo, check_sum, list_models
from slurm_asrpt.predict.retrain import models_folder, retrain
from slurm_asrpt.status.document import JobStatus, Status, write_status
from tests.benches.commands import commands

NAME = "-rf;[red]x[bold]\x1b[31m\x1b]0;t\x07\r\n$(touch pwned)`touch pwned`<script>\u202e\u2066\u200b\u2028|%s{0}\x9bé"
"""A valid name of a file."""
HOSTILE = f"{NAME}[/red][/]</script>"
FLAT = HOSTILE.replace("\r\n", "")
"""The same text within one line."""
TAME = f"x{HOSTILE}"
"""The same text as an argument that does not look like an option."""
MAINS = {
    "asrpt-status": "status.command",
    "asrpt-admin": "admin",
    "asrpt-lab": "lab",
    "asrpt-sim": "sim",
    "asrptd": "asrptd",
    "asrpt-pool": "pool",
}

LINES = [
    ("asrptd", "--once", "--config", "@missing"),
    ("asrptd", "--once", "--config", "@config", "--policy", TAME),
    ("asrptd", "--once", "--config", "@config", "--log-level", TAME),
    ("asrptd", HOSTILE),
    ("asrptd", "--once", "--config", "@hostile.toml"),
    ("asrpt-status",),
    ("asrpt-status", "--long"),
    ("asrpt-status", "--parsable"),
    ("asrpt-status", "--json"),
    ("asrpt-status", "--html", "@out"),
    ("asrpt-status", "--html", "@missing/x"),
    ("asrpt-status", "--explain", "@hostile"),
    ("asrpt-status", "--explain", "7", "--json"),
    ("asrpt-status", "--job", TAME),
    ("asrpt-status", TAME, "12_[" + TAME),
    ("asrpt-status", "--partition", TAME, "--sort", TAME),
    ("asrpt-status", "--what-if", "@script"),
    ("asrpt-status", "--json", "--what-if", "@script", "--", "--job-name", TAME, HOSTILE),
    ("asrpt-status", "--what-if", "@missing"),
    ("asrpt-status", "--what-if", "@script", "--", "--nodes", TAME),
    ("asrpt-status", "--user", TAME, "--state", TAME),
    ("asrpt-status", "--config", "@hostile.toml"),
    ("asrpt-admin", "retrain"),
    ("asrpt-admin", "retrain", "--config", "@missing"),
    ("asrpt-admin", "group", "@script"),
    ("asrpt-admin", "group", "@script", "--json", "--job-name", TAME),
    ("asrpt-admin", "group", "@script", "@other", "--diff"),
    ("asrpt-admin", "group", "@missing"),
    ("asrpt-admin", "predict", "@script"),
    ("asrpt-admin", "predict", "--json", "@script", HOSTILE),
    ("asrpt-admin", "predict", "--comment", f"asrpt:profile={HOSTILE} asrpt:{TAME}", "--job-name", TAME, "@script"),
    ("asrpt-admin", "predict", "--user", TAME, "@script"),
    ("asrpt-admin", "explain-prediction", "4711"),
    ("asrpt-admin", "explain-prediction", "--json", "4711"),
    ("asrpt-admin", "explain-prediction", "@script"),
    ("asrpt-admin", "evaluate", "--jobs", "0", "--predictor", "last"),
    ("asrpt-admin", "evaluate", "--predictor", TAME),
    ("asrpt-admin", "evaluate", "--learn-from", TAME),
    ("asrpt-admin", "evaluate", "--data", TAME),
    ("asrpt-admin", "evaluate", "--data", "@trace", "--jobs", "0", "--learn-from", "nothing"),
    ("asrpt-admin", "doctor"),
    ("asrpt-admin", "doctor", "--json"),
    ("asrpt-admin", "models", "list"),
    ("asrpt-admin", "models", "list", "--json"),
    ("asrpt-admin", "models", "activate", TAME),
    ("asrpt-admin", "models", "activate", "@model"),
    ("asrpt-admin", "models", "rollback"),
    ("asrpt-admin", "history", "import", "--csv", "@runs"),
    ("asrpt-admin", "history", "import", "--csv", "@runs", "--column", f"job_id={TAME}"),
    ("asrpt-admin", "history", "import", "--trace", "@trace", "--dry-run", "--json"),
    ("asrpt-admin", "history", "import", "--jsonl", "@script"),
    ("asrpt-admin", "history", "import", "--dump", "@missing"),
    ("asrpt-admin", "history", "export", "--format", "jsonl"),
    ("asrpt-admin", "history", "export", "--output", "@missing"),
    ("asrpt-admin", "history", "stats"),
    ("asrpt-admin", "history", "stats", "--json"),
    ("asrpt-admin", "history", "forget", "--yes", TAME),
    ("asrpt-admin", "history", "forget", "--yes", "@hostile"),
    ("asrpt-admin", "history", "check"),
    ("asrpt-admin", "calibrate"),
    ("asrpt-admin", "calibrate", "--json"),
    ("asrpt-admin", "calibration"),
    ("asrpt-admin", "calibration", "--json"),
    ("asrpt-admin", "audit"),
    ("asrpt-admin", "audit", "--since", "yesterday", "--cycles"),
    ("asrpt-admin", "audit", "--since", "1970-01-02", "--json"),
    ("asrpt-admin", "audit", "--since", "1970-01-02", "--html", "@out"),
    ("asrpt-admin", "audit", "--since", TAME),
    ("asrpt-admin", "audit", "--job", TAME, "--user", TAME, "--html", "@missing/x"),
    ("asrpt-admin", "snapshot", "-o", "@out"),
    ("asrpt-admin", "replay", "@missing"),
    ("asrpt-admin", "replay", "@script"),
    ("asrpt-admin", "replay", "--json", "@snapshot"),
    ("asrpt-admin", "replay", "@snapshot"),
    ("asrpt-admin", "shadow-report", "--since", TAME),
    ("asrpt-admin", "shadow-report", "--html", "@missing"),
    ("asrpt-admin", "install"),
    ("asrpt-admin", "install", "--check", "--root", "@missing"),
    ("asrpt-admin", "install", "--check", "--user", TAME),
    ("asrpt-admin", "disable", "--config", "@missing"),
    ("asrpt-admin", "release", "--config", "@missing"),
    ("asrpt-admin", "enable", "--config", "@hostile.toml"),
    ("asrpt-admin", "boost", TAME, "--config", "@hostile.toml"),
    ("asrpt-lab", "up", "--nodes", TAME),
    ("asrpt-lab", "up", "--dir", "@missing"),
    ("asrpt-lab", "up", "--nodes", "1x1", "--set", TAME),
    ("asrpt-lab", "down", "--dir", "@missing"),
    ("asrpt-lab", "status", "--dir", "@missing"),
    ("asrpt-lab", "run", "--dir", "@missing", TAME),
    ("asrpt-lab", "shell", "--dir", "@missing"),
    ("asrpt-lab", "train", "--profile", TAME),
    ("asrpt-lab", "debian", TAME, "@missing"),
    ("asrpt-pool", "run", TAME),
    ("asrpt-pool", "run", "@missing"),
    ("asrpt-pool", "run", "@sweep", "--slots", TAME),
    ("asrpt-pool", "run", "@bad sweep"),
    ("asrpt-pool", "status", "@sweep"),
    ("asrpt-pool", "status", "@sweep", "--json"),
    ("asrpt-pool", "status", "@missing"),
    ("asrpt-pool", "add", "@sweep", "@bad sweep"),
    ("asrpt-pool", "add", "@bad sweep", "@sweep"),
    ("asrpt-pool", "replay", "@sweep"),
    ("asrpt-pool", "replay", TAME),
    ("asrpt-pool", "stop", "@sweep"),
    ("asrpt-pool", "stop", "@script"),
    ("asrpt-sim", "formats"),
    ("asrpt-sim", "run", TAME),
    ("asrpt-sim", "run", "@trace", "--servers", "2", "--gpus-per-server", "4", "--policy", "fifo", "-o", "@out"),
    ("asrpt-sim", "run", "@trace", "--policy", TAME),
    ("asrpt-sim", "compare", "@trace", "--policies", TAME),
    ("asrpt-sim", "compare", "@trace", "--policies", "fifo,spjf", "--servers", "2", "--gpus-per-server", "4"),
    ("asrpt-sim", "sweep", "@trace", "--policies", "fifo", "--grid", TAME, "-o", "@out"),
    ("asrpt-sim", "report", "@missing"),
    ("asrpt-sim", "report", "@missing", "-o", "@missing"),
    ("asrpt-sim", "import", "@trace", "-o", "@out"),
    ("asrpt-sim", "import", "@script", "-o", "@out"),
    ("asrpt-sim", "describe", "@trace"),
    ("asrpt-sim", "describe", "@trace", "--json"),
    ("asrpt-sim", "describe", "@trace", "--column", TAME),
    ("asrpt-sim", "generate", "-o", "@out", "--jobs", "5"),
    ("asrpt-sim", "what-if", "--dump", "@dump", "--servers", "2", "--gpus-per-server", "4", "-o", "@out"),
    ("asrpt-sim", "what-if", "--dump", "@script", "--nodes", "@script"),
]


def controls(text: str) -> set[str]:
    """Characters that could control a terminal, hide text or begin a line."""
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c != "\n"}


def hostile_job(job_id: str) -> JobStatus:
    texts = dict.fromkeys(("name", "user", "partition", "group", "profile", "reason", "text"), HOSTILE)
    numbers = {"gpus": 4, "predicted_iterations": 5, "predicted_run_s": 5.0, "submit_time": 0.0, "start_time": None}
    return JobStatus(job_id, **texts, **numbers, state=HOSTILE, facts={HOSTILE: HOSTILE}, rank=1, nodes={HOSTILE: 4})  # type: ignore[arg-type]


def hostile_run(number: int) -> Run:
    texts = dict.fromkeys(("user", "job_name", "partition", "profile", "predicted_by"), HOSTILE)
    run = Run(str(4700 + number), number, end_time=number + 9, state="COMPLETED", uid=os.getuid(), **texts)  # type: ignore[arg-type]
    return replace(
        run, group_id=f"{number % 3:016x}", iterations=9, iterations_source=Source.ELAPSED, nodes={HOSTILE: 4}, gpus=4
    )


def fill_history(settings: Settings) -> None:
    with History(settings.paths.state / FILE_NAME) as history:
        history.record([hostile_run(number) for number in range(30)])
        history.record([replace(hostile_run(40), job_id=HOSTILE, state=HOSTILE, features={HOSTILE: 1.0})])


def hostile_model(settings: Settings) -> Path:
    """A sound model with a hostile description, and a damaged one. Returns the directory of the second."""
    good = retrain(settings, 1e9).model
    data = (good / "predictions.txt").read_bytes()
    info = ModelInfo("", HOSTILE, 0, 1, 1, 1, 0, refused=HOSTILE)
    info = replace(info, sha256=check_sum(info, data))
    for name, text in (("x-hostile", json.dumps(asdict(info))), (f"x{NAME}", "{")):
        folder = models_folder(settings) / name
        folder.mkdir(mode=0o700)
        (folder / "predictions.txt").write_bytes(data)
        (folder / "model.json").write_text(text)
    return models_folder(settings) / f"x{NAME}"


def hostile_trail(settings: Settings) -> None:
    """Events of all kinds with hostile texts, also in place of numbers."""
    audit = AuditWriter(settings.paths.state)
    numbers = {"gpus": {HOSTILE: 4}, "began": 1.0, "ended": 2.0, "submitted": 0.5, "alpha": 1.0, "alpha_min": 0.5}
    for event in (
        "queued",
        "wait",
        "start",
        "running",
        "ended",
        "cut",
        "gone",
        "left",
        "not-started",
        "cycle",
        HOSTILE,
    ):
        texts = dict.fromkeys(("user", "name", "reason", "why", "error", "state", "place", "mode", HOSTILE), HOSTILE)
        audit.record(time.time(), event, HOSTILE, **texts, **numbers, predicted=5, iterations=9)
        audit.record(time.time(), event, "7", **dict.fromkeys((*texts, *numbers, "predicted", "iterations"), HOSTILE))
    audit.flush()


def hostile_pool(path: Path) -> None:
    """The status of a pool whose trainings say hostile things."""
    folder = PoolFolder(path)
    folder.make()
    training = TrainingStatus(HOSTILE, "failed", 1, 2, 3, None, None, HOSTILE)
    status = PoolStatus(HOSTILE, HOSTILE, 0.0, 1.0, 1, 2, 3, 4, 5, 6, 7.0, 8.0, HOSTILE, (training,))
    folder.write_status(status.document())


@pytest.fixture
def site(tmp_path: Path) -> dict[str, str]:
    """The placeholders of LINES, for an installation in which every text is HOSTILE."""
    paths = {name: str(tmp_path / name) for name in ("state", "run", "hook", "spool")}
    for path in paths.values():
        Path(path).mkdir(mode=0o755)
    config = tmp_path / "asrpt.toml"
    config.write_text("[paths]\n" + "".join(f'{name} = "{path}"\n' for name, path in paths.items()))
    settings = load_settings(config)
    fill_history(settings)
    model = hostile_model(settings)
    write_status(tmp_path / "run", Status(0.0, HOSTILE, HOSTILE, 5.0, 8, 4, [hostile_job(HOSTILE), hostile_job("7")]))
    files = {name: tmp_path / f"{name}{NAME}" for name in ("script", "other", "trace", "runs", "dump", "hostile.toml")}
    files["script"].write_text(
        f"#!/bin/sh\n#SBATCH -J '{HOSTILE}'\n#SBATCH --comment=asrpt:dataset={HOSTILE}\npython {HOSTILE}\n"
    )
    files["other"].write_text(f"#!/bin/sh\npython other {HOSTILE}\n")
    files["hostile.toml"].write_text(f"[daemon]\nmode = {json.dumps(HOSTILE)}\n")
    texts = ("user", "group", "gpu_type", "status", "queue", "name")
    with files["trace"].open("w", newline="") as file:
        write_csv(
            file, ["job_id", "submit_s", "gpus", "duration_s", *texts], [[i, i, 1, 60, *[FLAT] * 6] for i in range(30)]
        )
    with files["runs"].open("w", newline="") as file:
        write_csv(
            file,
            ["job_id", "start_time", "end_time", TAME, "user"],
            [[HOSTILE, 1, 9, HOSTILE, HOSTILE], [2, HOSTILE, 5, 1, 1]],
        )
    files["dump"].write_text(f"{HOSTILE}|{HOSTILE}\n{HOSTILE}\n")
    hostile_trail(settings)
    files["snapshot"] = tmp_path / f"snapshot{NAME}"
    files["snapshot"].write_bytes(to_bytes({HOSTILE: HOSTILE}, [HOSTILE]))
    files["sweep"], files["bad sweep"] = tmp_path / "sweep.toml", tmp_path / f"bad{NAME}"
    files["sweep"].write_text("")
    files["bad sweep"].write_text(f"[[training]]\nname = {json.dumps(HOSTILE)}\nuses = {json.dumps(HOSTILE)}\n")
    hostile_pool(tmp_path / "sweep.pool")
    words = {f"@{name}": str(path) for name, path in files.items()}
    return {**words, "@config": str(config), "@missing": str(tmp_path / NAME), "@out": str(tmp_path / f"out{NAME}"),
            "@model": model.name, "@hostile": HOSTILE}  # fmt: skip


def write_csv(file: object, titles: list[str], rows: list[list[object]]) -> None:
    csv.writer(file).writerows([titles, *rows])  # type: ignore[call-overload]


@pytest.mark.parametrize("line", LINES, ids=lambda line: " ".join(word for word in line if NAME not in word))
def test_every_command_escapes_hostile_text(
    line: tuple[str, ...], site: dict[str, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command, *words = (site.get(word, word) for word in line)
    monkeypatch.setenv("ASRPT_CONFIG", site["@config"])
    monkeypatch.chdir(site["@config"].removesuffix("asrpt.toml"))
    monkeypatch.setattr(sys, "argv", [f"/usr/bin/{command}", *words])
    monkeypatch.setattr(asrptd.logging, "basicConfig", lambda **_: None)  # pytest configures logging
    main = importlib.import_module(f"slurm_asrpt_cli.{MAINS[command]}").main
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capfd.readouterr()
    assert ended.value.code in (0, 1, 2), err
    assert not controls(out + err)
    assert "Traceback" not in err
    assert all(text.startswith((f"{command}", "asrpt-train")) for text in err.splitlines()), err
    assert not list(Path.cwd().rglob("pwned*"))
    if "--json" in line and out:
        assert [json.loads(text) for text in ([out] if out[1:2] in '\n[{"' else out.splitlines())]


def test_every_command_is_covered_by_the_hostile_lines() -> None:
    """New commands must be added to LINES."""
    there = {
        (command, name)
        for command, module in MAINS.items()
        for name, _ in commands(typer.main.get_command(importlib.import_module(f"slurm_asrpt_cli.{module}").app))
    }
    typed = {(line[0], name) for line in LINES for name in ("", line[1:2] and line[1], " ".join(line[1:3]))}
    assert there <= typed


def test_asrpt_report_escapes_hostile_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ASRPT_PROGRESS_DIR", str(tmp_path / NAME / "missing"))
    assert report.main(["5"]) == 0
    for words in ([HOSTILE], ["5", TAME], ["5", "--total", TAME]):
        with pytest.raises(SystemExit):
            report.main(words)
    out, err = capfd.readouterr()
    assert not controls(out + err)


def test_log_messages_are_one_line_and_tracebacks_are_indented() -> None:
    record = logging.LogRecord("asrptd", logging.ERROR, "", 0, "job %s", (HOSTILE,), None)
    try:
        raise ValueError(f"{HOSTILE}\n2026-01-01 00:00:00,000 asrptd INFO forged")
    except ValueError:
        record.exc_info = sys.exc_info()
    lines = OneLine("%(name)s %(message)s").format(record).split("\n")
    assert not controls("".join(lines))
    assert [line for line in lines if not line.startswith("    ")] == lines[:1]
    assert lines[0].startswith("asrptd job -rf;")


def test_the_audit_trail_has_one_line_per_event(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    audit = AuditWriter(tmp_path)
    with caplog.at_level(logging.INFO, "asrptd"):
        audit.record(1.0, "left", "7", why=HOSTILE, facts={HOSTILE: HOSTILE})
    audit.flush()
    text = audit.path.read_text(encoding="ascii")
    assert text.count("\n") == 1
    assert not controls(text + caplog.text)
    assert json.loads(text)["why"] == HOSTILE


def test_models_with_hostile_names_are_listed(site: dict[str, str]) -> None:
    assert len(list_models(models_folder(load_settings(Path(site["@config"]))))) == 3
