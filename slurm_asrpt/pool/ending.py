"""Why a pool ended. A module of its own, because the driver takes long to import."""

from __future__ import annotations

import enum


class Ending(enum.StrEnum):
    """Why a pool ended."""

    DONE = "done"
    STOPPED = "stopped"
    LIMIT = "time limit"
    TERMINATED = "terminated"
    INTERRUPTED = "interrupted"
    LOST = "no slots left"
