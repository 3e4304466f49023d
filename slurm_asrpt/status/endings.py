"""How a job ended, in words: its state in Slurm, its exit code, and the signal that ended it."""

from __future__ import annotations

from signal import Signals

SHELLS = 128
"""A shell adds this to the signal that ended its last command."""

BY_SLURM = {
    "timeout": "Slurm ended it at its time limit",
    "deadline": "Slurm ended it at its deadline",
    "out_of_memory": "it used more memory than it had requested",
    "node_fail": "one of its nodes failed",
    "boot_fail": "one of its nodes did not boot",
    "preempted": "Slurm preempted it for another job",
}
"""Why, by state. The signal of such a job is how Slurm ended it, and says nothing more."""


def outcome(state: str, exit_code: int, signal: int) -> str:
    """A state as Slurm writes it, with the signal or the exit code that a failed job had: ``FAILED, exit code 3``.

    A job that was ended, as by its time limit, has exit code 0, too: there it says nothing.
    """
    state = state.upper()
    if signal and state.lower() not in {*BY_SLURM, "cancelled"}:
        return f"{state}, signal {signal}{_named(signal)}"
    if exit_code > SHELLS and (name := _name(exit_code - SHELLS)):
        return f"{state}, exit code {exit_code} ({SHELLS} + signal {exit_code - SHELLS}, {name})"
    return f"{state}, exit code {exit_code}" if exit_code else state


def ending(job_id: str, state: str, exit_code: int, signal: int) -> str:
    """The same with why, where the state alone does not say it."""
    said = outcome(state, exit_code, signal)
    if state.lower() == "cancelled":
        return f"{said}; by whom: sacct -X -j {job_id} -o State%30 (with slurmdbd)"
    if state.lower() == "completed":
        return f"{said}, exit code {exit_code}" if not (exit_code or signal) else said
    why = BY_SLURM.get(state.lower(), "")
    return f"{said}: {why}" if why else said


def _named(signal: int) -> str:
    name = _name(signal)
    return f" ({name})" if name else ""


def _name(signal: int) -> str:
    """``SIGKILL``; empty for a number that has no name here."""
    try:
        return Signals(signal).name
    except ValueError:
        return ""
