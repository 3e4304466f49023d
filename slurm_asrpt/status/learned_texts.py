"""What has been learned about jobs without a profile, in words."""

from __future__ import annotations

from slurm_asrpt.text import counted

_OTHERS = {
    "group": "its earlier runs and similar jobs",
    "program": "other jobs of the same program",
    "user": "other jobs of the same user",
    "cluster": "jobs of all users",
}

TOLD = 1.1
"""Smaller differences are not worth telling."""


def communication_text(level: str, runs: int, apart: int, slower: float) -> str:
    """Why a job is placed like one with a profile. level: the key that says so; the others: of its group's own runs,
    how many there are, how many were apart, and how many times as long these took (0: not known)."""
    if slower >= TOLD:
        return f"{apart} of {counted(runs, 'earlier run')} had nodes farther apart and took {slower:.1f} times as long"
    return f"learned from {_OTHERS[level]}"
