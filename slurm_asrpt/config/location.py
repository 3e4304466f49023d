"""Where the settings are, without reading them all: commands that only show something start in a third of the time."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

DEFAULT_PATH = Path("/etc/slurm/asrpt.toml")
ENVIRONMENT_VARIABLE = "ASRPT_CONFIG"
RUN = Path("/run/asrpt")


def settings_file(named: Path | None) -> Path | None:
    """``named``, else what $ASRPT_CONFIG says; None: the default path, which need not be there."""
    return named or (Path(os.environ[ENVIRONMENT_VARIABLE]) if ENVIRONMENT_VARIABLE in os.environ else None)


def run_folder(named: Path | None) -> Path | None:
    """``paths.run`` as the settings file has it, unchecked; None where that cannot be told so quickly."""
    target = settings_file(named) or DEFAULT_PATH
    try:
        found = tomllib.loads(target.read_text(encoding="utf-8")).get("paths", {}).get("run", str(RUN))
    except FileNotFoundError:
        return None if settings_file(named) else RUN
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return Path(found) if isinstance(found, str) else None
