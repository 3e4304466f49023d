"""Running Slurm's commands: those of ``slurm.bin_dir``, with ``slurm.conf``, and no shell."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from slurm_asrpt.config.settings import SlurmSettings
from slurm_asrpt.errors import SlurmError, printable


def environment_of(settings: SlurmSettings) -> dict[str, str]:
    """This process's variables, and SLURM_CONF if the settings name it."""
    return {**os.environ, **({"SLURM_CONF": settings.conf} if settings.conf else {})}


def run_slurm(
    settings: SlurmSettings,
    command: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    folder: Path | None = None,
    stdin: str = "",
    lenient: bool = False,
) -> bytes:
    """Run a command of Slurm; its standard output. lenient: with standard error, at any exit status.

    environment, timeout_s, folder: other than those of the settings and of this process. Raises SlurmError.
    """
    path = str(Path(settings.bin_dir) / command) if settings.bin_dir else command
    limit_s = timeout_s or settings.timeout_s
    try:
        done = subprocess.run(
            [path, *arguments],
            input=stdin.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if lenient else subprocess.PIPE,
            env=environment_of(settings) if environment is None else environment,
            cwd=folder,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command} did not answer within {limit_s:g} s") from None
    except OSError as error:
        raise SlurmError(f"{path} cannot be run ({error.strerror}); set slurm.bin_dir or PATH") from error
    if done.returncode and not lenient:
        text = " ".join((done.stderr or b"").decode(errors="replace").split()) or f"exit status {done.returncode}"
        raise SlurmError(f"{command} failed: {printable(text)}")
    return done.stdout
