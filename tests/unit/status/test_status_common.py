"""run_app: every error of a command becomes one line and an exit code."""

import sys

import pytest
import typer
from slurm_asrpt_cli._app.errors import run_app

from slurm_asrpt.errors import InputError, MachineError


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, 0, ""),
        (InputError("line 3: no\nsuch \x1b[31mkey"), 2, "asrpt-x: line 3: no such \\x1b[31mkey\n"),
        (MachineError("a port is taken"), 1, "asrpt-x: a port is taken\n"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 0, ""),
        (OSError(28, "No space left on device", "/a\n"), 1, "asrpt-x: /a\\n: No space left on device\n"),
        (MemoryError(), 1, "asrpt-x: not enough memory on this machine; try a smaller input\n"),
        (typer.Exit(7), 7, ""),
    ],
)
def test_every_error_ends_with_one_line_and_its_exit_code(
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


@pytest.mark.parametrize("debug", ["", "1"])
def test_an_unexpected_exception_is_one_line_and_with_asrpt_debug_a_traceback(
    debug: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    @app.command()
    def command() -> None:
        raise RuntimeError("a \x1b[31mbug")

    monkeypatch.setenv("ASRPT_DEBUG", debug)
    monkeypatch.setattr(sys, "argv", ["asrpt-x"])
    with pytest.raises(SystemExit) as ended:
        run_app(app)
    first, *rest = capsys.readouterr().err.splitlines()
    assert ended.value.code == 70
    assert first.startswith(
        "asrpt-x: a bug in slurm-asrpt, please report it: RuntimeError: a \\x1b[31mbug (test_status_common.py:"
    )
    assert bool(rest) == bool(debug)
