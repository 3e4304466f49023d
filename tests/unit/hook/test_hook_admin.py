"""The commands asrpt-admin retrain and predict."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from slurm_asrpt_cli.admin import app, main

from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.history.store import History, Run
from slurm_asrpt.hook.group import describe, keys_of
from slurm_asrpt.hook.job_script import directives, gpus_asked
from tests.benches.in_process import in_process

SCRIPT = (
    b"#!/bin/bash\n#SBATCH --job-name=bert --comment='asrpt:profile=p\x1b,dataset=c4'\npython x.py\n#SBATCH -J no\n"
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    paths = "".join(f'{name} = "{tmp_path}/{name}"\n' for name in ("state", "hook", "spool"))
    (tmp_path / "asrpt.toml").write_text(f"[paths]\n{paths}[predict]\ntrees = 3\n")
    (tmp_path / "job.sh").write_bytes(SCRIPT)
    return tmp_path / "asrpt.toml"


def admin(*args: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return in_process(main, "asrpt-admin", *args, **environment)


def test_retrain_and_predict(config: Path) -> None:
    group = describe(1234, b"bert", SCRIPT, [b"--lr", b"1"], b"c4", GroupSettings()).group
    (config.parent / "state").mkdir()
    with History(config.parent / "state" / "history.sqlite") as history:
        history.record(Run(str(i), 1, state="COMPLETED", group_id=group, iterations=500) for i in range(3))
    done = admin("retrain", "--config", config, "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["rows"], report["groups"]) == (0, 3, 1)

    arguments = ["--user", "1234", config.parent / "job.sh", "--lr", "1"]
    done = admin("predict", "--config", config, "--json", *arguments)
    found = json.loads(done.stdout)
    assert (found["group"], found["predicted_iterations"], found["job_name"]) == (group, 500, "bert")
    done = admin("predict", "--config", config, *arguments)
    assert group in done.stdout
    assert "\x1b" not in done.stdout  # text of users cannot control the terminal


def test_empty_history(config: Path) -> None:
    done = admin("retrain", "--config", config)
    assert done.returncode == 0
    assert "no completed run" in done.stdout
    done = admin("predict", "--config", config, config.parent / "job.sh")
    assert (done.returncode, "0 (unseen)" in done.stdout) == (0, True)


def test_predict_without_a_table(config: Path) -> None:
    done = admin("predict", "--config", config, config.parent / "job.sh")
    assert done.returncode == 1
    assert "asrpt-admin retrain" in done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["predict", "/no/such/script"],
        ["predict", "--user", "no-such-user-here", "/etc/passwd"],
        ["predict", "--user", "9" * 30, "--config", "/no/such/file", "/etc/passwd"],
        ["group", "/no/such/script"],
        ["group"],
        ["group", "--diff", "/etc/passwd"],
        ["retrain", "--config", "/no/such/file"],
        ["retrain", "--frob"],
        ["frob"],
    ],
)
def test_bad_input(args: list[str]) -> None:
    done = admin(*args)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_broken_history_is_one_line(config: Path) -> None:
    (config.parent / "state").mkdir()
    (config.parent / "state" / "history.sqlite").write_bytes(b"rubbish" * 1000)
    done = admin("retrain", "--config", config)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "move the file aside" in done.stderr


def commands(group: Any, *before: str) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *before, name)
        else:
            yield *before, name


@pytest.mark.parametrize("command", list(commands(typer.main.get_command(app))), ids=" ".join)
def test_help_has_an_example_and_fits_60_columns(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, "argv", ["asrpt-admin", *command, "--help"])
    with pytest.raises(SystemExit):
        main()
    text = capsys.readouterr().out
    assert f"asrpt-admin {' '.join(command)}" in text.partition("Example")[2]
    assert max(map(len, text.splitlines())) <= 60


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"#SBATCH -J a", {"name": "a"}),
        (b"#SBATCH -Ja", {"name": "a"}),
        (b"#SBATCH --job-name a", {"name": "a"}),
        (b"#SBATCH --job-name='a b' -n 2 # x", {"name": "a b"}),
        (b"#SBATCH -J a\n\n# c\n#SBATCH -J b", {"name": "b"}),
        (b"#SBATCH --comment 'x", {}),
        (b"##SBATCH -J a", {}),
        (b"  #SBATCH -J a", {}),
        (b"echo\n#SBATCH -J a", {}),
    ],
)
def test_directives(line: bytes, found: dict[str, str]) -> None:
    assert directives(b"#!/bin/sh\n" + line + b"\n") == found


def test_explain_prediction_of_a_script_and_of_its_past_run(config: Path) -> None:
    found = json.loads(
        admin("predict", "--config", config, "--user", "1234", "--json", config.parent / "job.sh").stdout
    )
    (config.parent / "state").mkdir(mode=0o700)
    with History(config.parent / "state" / "history.sqlite") as history:
        history.record(
            Run(
                str(job),
                job,
                state="COMPLETED",
                group_id=found["group"],
                iterations=459 + job,
                user="al\x1b[2Jice",
                uid=1234,
            )
            for job in (41, 42)
        )
    assert admin("retrain", "--config", config).returncode == 0
    done = admin("explain-prediction", "--config", config, "--user", "1234", config.parent / "job.sh")
    assert done.returncode == 0, done.stderr
    assert "predicted seconds:    501" in done.stdout
    assert re.search(r"(?m)^group +[0-9a-f]+ +2 +501 s ", done.stdout)  # 500.5 is rounded as the hook does
    assert "2 past runs with this " in done.stdout
    assert re.search(r"(?m)^42 +al\S+ +0 +501 +- ", done.stdout)  # it had no prediction
    assert "\x1b" not in done.stdout
    told = json.loads(admin("explain-prediction", "--config", config, "--json", "42").stdout)
    assert told["answer"]["iterations"] == 501
    assert {run["job_id"] for run in told["runs"]} == {"41", "42"}
    assert told["loss"] is None
    for name in ("41+1", "42_[3-9%2]"):
        assert json.loads(admin("explain-prediction", "--config", config, "--json", name).stdout) == told
    spool = config.parent / "spool" / "progress" / "42"
    spool.mkdir(parents=True)
    losses = "".join(f"{at} {0.4 + 1 / (0.01 * at + 0.5):.6g}\n" for at in range(1, 300, 10))
    (spool / "losses").write_text(losses)
    picture = config.parent / "run.svg"
    done = admin("explain-prediction", "--config", config, "--plot", picture, "42")
    assert "the fitted curve falls to 0.3" in done.stdout
    assert picture.read_bytes().startswith(b"<?xml")
    assert done.stdout.endswith(f"\nWritten to {picture}\n")
    done = admin("explain-prediction", "--config", config, "--plot", "run.txt", "42")
    assert (done.returncode, "must end in .png" in done.stderr) == (2, True)
    done = admin("explain-prediction", "--config", config, "43", PATH="/nonexistent")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


def test_explain_prediction_says_which_keys_are_those_with_the_profile(config: Path) -> None:
    (config.parent / "state").mkdir(mode=0o700)
    usual = {"state": "COMPLETED", "group_id": "0" * 16, "uid": 7, "gpus": 4, "iterations": 300}
    with History(config.parent / "state" / "history.sqlite") as history:
        history.record(Run(str(at), at, end_time=at + 100, profile="vgg19-dp4", **usual) for at in (1, 2))
    assert admin("retrain", "--config", config).returncode == 0
    shown = admin("explain-prediction", "--config", config, "1").stdout
    keys = re.findall(r"(?m)^([a-z ]+?) +[0-9a-f]{16} ", shown)
    assert len(set(keys)) == len(keys) > 5
    assert {"exact with profile", "group with profile", "exact", "group"} <= set(keys)
    assert "2 past runs with this group key and profile in the history" in shown


def test_explain_prediction_says_how_much_a_job_suffers_on_distant_nodes(config: Path) -> None:
    (config.parent / "state").mkdir(mode=0o700)
    usual = {"state": "COMPLETED", "group_id": "0" * 16, "uid": 7, "gpus": 16, "nodes": {"n1": 8, "n2": 8}}
    with History(config.parent / "state" / "history.sqlite") as history:
        history.record(
            Run(
                str(at), at, end_time=at + 1000, iterations=1000, link_s=link, switches=under, iteration_s=took, **usual
            )
            for at, (link, under, took) in enumerate([(0.8, 1, 0.5), (6.4, 2, 0.9)] * 5, start=1)
        )
    assert admin("retrain", "--config", config).returncode == 0
    shown = admin("explain-prediction", "--config", config, "1").stdout
    assert re.search(r"(?m)^ +2 +1 +5 +x 1.00\n +2 +2 +5 +x 1.80$", shown), shown
    assert "5 of 10 earlier runs had nodes farther apart and took 1.8 times as long" in shown
    told = json.loads(admin("explain-prediction", "--config", config, "--json", "1").stdout)
    assert (told["communication"]["level"], len(told["placed"])) == ("group", 2)
    models = config.parent / "state" / "models" / "current" / "communication.txt"
    models.write_bytes(b"damaged")
    done = admin("explain-prediction", "--config", config, "1")
    assert (done.returncode, "checksum does not match" in done.stderr) == (0, True)
    assert "not known to matter; all placements count as equal" in done.stdout


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("4 --json --gpus 5", "--json: put options before the job ID"),
        ("4 5", "5: put options before the job ID"),
        ("--user bob --gpus 7 4", "need a job script"),
        ("--job-name '' 4", "need a job script"),
        ("--comment asrpt:off 4_1", "need a job script"),
    ],
)
def test_options_that_a_job_id_ignores_are_rejected(config: Path, line: str, words: str) -> None:
    done = admin("explain-prediction", "--config", config, *shlex.split(line))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert words in done.stderr


def test_options_after_the_script_belong_to_the_script_with_a_note(config: Path) -> None:
    script = config.parent / "job.sh"
    script.write_text("#!/bin/bash\npython train.py\n")
    (config.parent / "state").mkdir(mode=0o700)
    with History(config.parent / "state" / "history.sqlite") as history:
        history.record([Run("1", 1, end_time=2, state="COMPLETED", group_id="0" * 16, iterations=5)])
    assert admin("retrain", "--config", config).returncode == 0
    explain = ["explain-prediction", "--config", config]
    before, behind = admin(*explain, "--json", script), admin(*explain, script, "--json", "--epochs=3")
    assert (before.returncode, before.stderr, json.loads(before.stdout)["answer"]["iterations"]) == (0, "", 5)
    assert behind.stderr == "note: --json follows the script, so the script gets it; put it before\n"
    assert (behind.returncode, behind.stdout.splitlines()[0]) == (0, "predicted seconds:    5")


def test_without_a_table_or_a_history_a_remedy_is_shown(config: Path) -> None:
    explain = ["explain-prediction", "--config", config, config.parent / "job.sh"]
    done = admin(*explain)
    assert (done.returncode, "Errno" in done.stderr, "asrpt-admin retrain" in done.stderr) == (1, False, True)
    assert admin("retrain", "--config", config).returncode == 0
    (config.parent / "state" / "history.sqlite").unlink()
    told = {admin(*command).stderr for command in (explain, ["evaluate", "--config", config])}
    assert told == {admin("history", "stats", "--config", config).stderr}
    assert "no history yet" in told.pop()


def test_models_and_doctor_commands(config: Path) -> None:
    assert "no models yet" in admin("models", "list", "--config", config).stdout
    for _ in range(2):
        assert admin("retrain", "--config", config).returncode == 0
    listed = json.loads(admin("models", "list", "--config", config, "--json").stdout)
    assert [model["active"] for model in listed] == [False, True]
    assert "is active" in admin("models", "rollback", "--config", config).stdout
    assert "active" in admin("models", "list", "--config", config).stdout
    done = admin("models", "rollback", "--config", config)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    done = admin("models", "activate", "../x", "--config", config)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    done = admin("doctor", "--config", config)
    assert done.returncode == 1  # asrptd has never run here
    assert "start asrptd" in done.stdout
    found = {finding["check"] for finding in json.loads(admin("doctor", "--config", config, "--json").stdout)}
    assert found >= {"switch", "hook", "table", "model", "drift", "slurm"}


@pytest.fixture
def scripts(config: Path) -> list[Path]:
    """Monday's job, the same job on Tuesday, and another model."""
    text = "#!/bin/sh\n#SBATCH -J bert-{n}\n#SBATCH --gpus=4\nSEED={n}\n# try {n}\npython t.py --model {m} --lr 0.{n}\n"
    paths = [config.parent / name for name in ("monday.sh", "tuesday.sh", "other.sh")]
    for path, number, model in zip(paths, (1, 2, 2), ("a", "a", "b\x1b[1m"), strict=True):
        path.write_text(text.format(n=number, m=model))
    return paths


def test_group(config: Path, scripts: list[Path]) -> None:
    done = admin("group", "--config", config, "--user", "7", "--json", *scripts)
    assert done.returncode == 0
    monday, tuesday, other = json.loads(done.stdout)
    job = describe(7, b"bert-1", scripts[0].read_bytes(), [], b"", GroupSettings())
    assert (monday["group"], monday["program"], monday["features"]) == (job.group, job.program, {"lr": 0.1})
    assert monday["keys"] == dict(keys_of(job.group, job.program, 7, 4, job.features))
    assert monday["programs"] == ["t.py"]
    assert [line["counts"] for line in monday["lines"]] == ["", "t.py --model a"]
    assert monday["lines"][0]["set_aside"] == [["ignored option", "SEED=1"]]
    assert (tuesday["group"] == monday["group"], other["program"] == monday["program"]) == (True, True)
    assert other["group"] != monday["group"]


def test_group_as_text(config: Path, scripts: list[Path]) -> None:
    done = admin("group", "--config", config, *scripts)
    assert done.returncode == 0
    assert "feature lr: --lr 0.1" in done.stdout
    assert "\x1b" not in done.stdout


def test_group_diff(config: Path, scripts: list[Path]) -> None:
    monday, tuesday, other = scripts
    assert "same group" in admin("group", "--config", config, "--diff", monday, tuesday).stdout
    done = admin("group", "--config", config, "--diff", monday, other)
    assert "\n- t.py --model a\n+ t.py --model b" in done.stdout
    assert "\x1b" not in done.stdout
    found = json.loads(admin("group", "--config", config, "--diff", "--json", "-J", "x", monday, other).stdout)
    assert (found["same"], [what for what, _ in found["differences"]]) == (False, ["line", "line"])
    (config.parent / "third.sh").write_text("#!/bin/sh\npython t.py --model a\n")
    done = admin("group", "--config", config, "--diff", monday, config.parent / "third.sh")
    assert "job name: bert-# / third.sh" in done.stdout


@pytest.mark.parametrize(
    ("lines", "gpus"),
    [
        ("", 0),
        ("--gpus=8", 8),
        ("-G a100:2", 2),
        ("-N 2 --gpus-per-node=h100:4", 8),
        ("--nodes=2-4 --gres=gpu:a100:4,nic:1", 8),
        ("--gres=gpu", 1),
        ("-n 6 --gpus-per-task=1", 6),
        ("-N2 --ntasks-per-node=4 --gpus-per-task 2", 16),
        ("--gpus=x:y:z", 1),
        ("--gpus=4 --gpus-per-task=1 -n4", 4),
        ("--gpus=4 --gpus-per-node=2", 4),
        ("-N2 --gpus-per-node=4 --gpus-per-task=1", 8),
        ("-n8 --gpus-per-task=1 --gres=gpu:4", 8),
    ],
)
def test_requested_gpus(lines: str, gpus: int) -> None:
    assert gpus_asked(f"#!/bin/sh\n#SBATCH {lines}\n".encode()) == gpus


def test_predict_says_which_runs_it_learned_from_as_asrpt_status_does(config: Path) -> None:
    (config.parent / "state").mkdir(mode=0o700)
    with History(config.parent / "state" / "history.sqlite") as history:
        history.record(
            Run(str(job), job, state="COMPLETED", group_id="0" * 16, iterations=300, user="bob", uid=7, gpus=4)
            for job in range(1, 40)
        )
    assert admin("retrain", "--config", config).returncode == 0
    said = admin("predict", "--config", config, "--user", "1234", config.parent / "job.sh").stdout
    assert re.search(r"(?m)^learned from: +runs of all users \(new user\), key cluster$", said)
    assert re.search(r"(?m)^mean, for the order: +300$", said)
