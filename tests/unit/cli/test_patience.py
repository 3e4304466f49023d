"""Messages on a terminal while Slurm does not answer."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from slurm_asrpt_cli._app import progress
from slurm_asrpt_cli._app.errors import run_app
from slurm_asrpt_cli.admin import app

from slurm_asrpt.history.store import FILE_NAME, History

SILENT = "#!/bin/sh\nwhile ! test -e {}; do sleep 0.05; done\nexit 1\n"


class Terminal(io.StringIO):
    """A terminal that lets Slurm answer as soon as it shows the expected message."""

    def __init__(self, go: Path, awaited: str) -> None:
        super().__init__()
        self.go, self.awaited = go, awaited

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.awaited in text:
            self.go.touch()
        return super().write(text)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Settings of a site whose Slurm does not answer until told to, and then fails."""
    for command in ("squeue", "scontrol"):
        (tmp_path / command).write_text(SILENT.format(tmp_path / "go"))
        (tmp_path / command).chmod(0o755)
    path = tmp_path / "asrpt.toml"
    places = "\n".join(f'{name} = "{tmp_path}/{name}"' for name in ("state", "run", "hook", "scripts", "spool"))
    path.write_text(f'[slurm]\nbin_dir = "{tmp_path}"\ntimeout_s = 30\n[paths]\n{places}\n')
    (tmp_path / "state").mkdir()
    return path


COMMANDS = [
    ["install", "--check"],
    ["explain-prediction", "4711"],
    ["shadow-report"],
    ["doctor"],
    ["disable"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_commands_say_that_they_wait_for_slurm(words: list[str], config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(config.parent / "go", "handing back" if words == ["disable"] else "waiting for Slurm")
    with History(config.parent / "state" / FILE_NAME):
        pass
    monkeypatch.setattr(progress, "PATIENCE_S", 0.01)
    monkeypatch.setattr(sys, "argv", ["asrpt-admin", words[0], "--config", str(config), *words[1:]])
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(SystemExit) as leaving:
        run_app(app)
    assert leaving.value.code == 1, terminal.getvalue()
    assert terminal.go.exists()
    assert "did not answer" not in terminal.getvalue()


def test_quick_commands_print_no_waiting_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(tmp_path / "go", "slow")
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.patience("slow"):
        pass
    assert terminal.getvalue() == ""
