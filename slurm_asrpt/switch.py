"""What asrptd may write to Slurm now: its configured mode, and the switch of ``asrpt-admin disable``.

The switch is a file in the state directory. While it exists, asrptd only undoes what it has written before.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slurm_asrpt.config.settings import Mode
from slurm_asrpt.files import give_to_folder_owner, replace_file

FILE_NAME = "disabled"


@dataclass
class OperatingMode:
    """The configured mode, whether asrptd is disabled, and whether it cannot save what a restart must know."""

    configured: Mode
    disabled: bool = False
    unsaved: bool = False

    @property
    def current(self) -> Mode:
        """The mode that applies; shadow while disabled or unsaved."""
        return Mode.SHADOW if self.disabled or self.unsaved else self.configured

    @property
    def enforcing(self) -> bool:
        return self.current is Mode.ENFORCE

    @property
    def label(self) -> str:
        """The mode's name in the status and the audit trail."""
        if self.disabled:
            return "disabled"
        return "unsaved" if self.unsaved else str(self.configured)


def is_off(state: Path) -> bool:
    """Whether asrptd is disabled. Raises OSError."""
    return (state / FILE_NAME).exists()


def turn_off(state: Path) -> None:
    """Disable asrptd. Raises OSError."""
    replace_file(state / FILE_NAME, b"asrpt-admin enable removes this file\n", mode=0o600)
    give_to_folder_owner(state / FILE_NAME)


def turn_on(state: Path) -> bool:
    """Enable asrptd. Returns whether it was disabled. Raises OSError."""
    there = is_off(state)
    (state / FILE_NAME).unlink(missing_ok=True)
    return there
