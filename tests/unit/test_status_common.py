"""run_app: one line and an exit code for whatever ends a command."""

import sys

import pytest
import typer
from slurm_asrpt_cli.common import run_app

from slurm_asrpt.errors import InputError, MachineError


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, 0, ""),
        (InputError("line 3: no\nsuch \x1b[31mkey"), 2, "asrpt-x: line 3: no such \\x1b[31mkey\n"),
        (MachineError("a port is taken"), 1, "asrpt-x: a port is taken\n"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), None, ""),
        (typer.Exit(7), 7, ""),
    ],
)
def test_ends(
    error: BaseException | None,
    code: int | None,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    @app.command()
    def command() -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(sys, "argv", ["/usr/bin/asrpt-x"])
    with pytest.raises(SystemExit) as ended:
        run_app(app)
    assert code is None or ended.value.code == code
    assert capsys.readouterr().err == said


def test_bugs_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    @app.command()
    def command() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(sys, "argv", ["asrpt-x"])
    with pytest.raises(RuntimeError, match="a bug"):
        run_app(app)
