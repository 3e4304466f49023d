"""asrpt-lab with bad input: one line on stderr, the right exit code, no traceback."""

import pytest
from slurm_asrpt_cli.lab import app
from typer.testing import CliRunner

runner = CliRunner()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["up", "--nodes", "4y8"], "cannot read '4y8'"),
        (["up", "--base-port", "1"], "--base-port 1"),
        (["up", "--users", "1000"], "--users 1000"),
        (["up", "--set", "mode"], "must be section.key=value"),
        (["up", "--set", "daemon.mode=wild"], "daemon.mode"),
        (["up", "--set", "daemon.nonsense=1"], "unknown setting daemon.nonsense"),
        (["up", "--dir", "/tmp/a b"], "/tmp/a b"),
        (["status", "--dir", "/nowhere"], "no lab there"),
        (["train", "--speedup", "-1"], "--speedup"),
        (["--root", "/nowhere", "status"], "asrpt-lab debian trixie /nowhere"),
        (["run", "--dir", "/nowhere", "squeue"], "no lab there"),
    ],
)
def test_bad_input(arguments, says):
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_down_refuses_a_directory_that_is_not_a_lab(tmp_path):
    result = runner.invoke(app, ["down", "--dir", str(tmp_path)])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert tmp_path.exists()


def test_down_without_a_lab_is_no_error():
    assert runner.invoke(app, ["down", "--dir", "/nowhere"]).exit_code == 0


def test_train_has_help_of_its_own():
    result = runner.invoke(app, ["train", "--help"])
    assert result.exit_code == 0
    assert "--profile" in result.stdout
