"""Where the settings file is. Apart from ``settings``: without pydantic, read-only commands start much faster."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

DEFAULT_PATH = Path("/etc/slurm/asrpt.toml")
ENVIRONMENT_VARIABLE = "ASRPT_CONFIG"
RUN = Path("/run/asrpt")
DEFAULT_UNITS = Path("/etc/systemd/system")


def settings_file(named: Path | None) -> Path | None:
    """``named``, else the value of $ASRPT_CONFIG, else None: the default path, which need not exist."""
    from_environment = os.environ.get(ENVIRONMENT_VARIABLE)  # empty, as unset
    return named or (Path(from_environment) if from_environment else None)


def run_folder(named: Path | None) -> Path | None:
    """``paths.run`` from the settings file, not validated; None if the file needs the full parser."""
    target = settings_file(named) or DEFAULT_PATH
    try:
        found = tomllib.loads(target.read_text(encoding="utf-8")).get("paths", {}).get("run", str(RUN))
    except FileNotFoundError:
        return None if settings_file(named) else RUN
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return Path(found) if isinstance(found, str) else None
