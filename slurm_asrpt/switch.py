"""The switch of ``asrpt-admin disable``: while a mark lies in the state folder asrptd writes nothing to Slurm."""

from __future__ import annotations

from pathlib import Path

from slurm_asrpt.files import give_to_folder_owner, replace_file

FILE_NAME = "disabled"


def is_off(state: Path) -> bool:
    """Whether asrptd must keep its hands off. Raises OSError."""
    return (state / FILE_NAME).exists()


def turn_off(state: Path) -> None:
    """Put the mark there. Raises OSError."""
    replace_file(state / FILE_NAME, b"asrpt-admin enable takes this away\n", mode=0o600)
    give_to_folder_owner(state / FILE_NAME)


def turn_on(state: Path) -> bool:
    """Take the mark away; whether there was one. Raises OSError."""
    there = is_off(state)
    (state / FILE_NAME).unlink(missing_ok=True)
    return there
