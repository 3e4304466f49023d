"""What asrptd writes to Slurm. A module of its own, because the settings take long to import."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """What asrptd writes to Slurm."""

    SHADOW = "shadow"
    ORDER = "order"
    ENFORCE = "enforce"
