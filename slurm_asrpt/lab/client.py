"""Client commands in a lab: as root or as a test user, with the lab's environment."""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_asrpt.errors import InputError, SlurmError
from slurm_asrpt.lab.paths import LabPaths
from slurm_asrpt.lab.spec import LabSpec

COMMAND_TIMEOUT_S = 60.0


class LabClient:
    """What a user of a lab needs: its files, its environment, its answers."""

    def __init__(self, spec: LabSpec) -> None:
        self.spec = spec
        self.paths = LabPaths(spec.directory)

    @property
    def directory(self) -> Path:
        return self.spec.directory

    @property
    def settings_path(self) -> Path:
        """The lab's asrpt.toml."""
        return self.paths.settings

    @property
    def slurm_conf(self) -> Path:
        return self.paths.slurm_conf

    @property
    def train(self) -> Path:
        """The training stand-in, for ``srun`` in job scripts."""
        return self.paths.bin / "asrpt-train"

    @property
    def env(self) -> dict[str, str]:
        """Environment of client commands: this process's own without Slurm's variables, plus the lab's two."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH_", "SALLOC_", "SRUN_"))}
        return kept | {"SLURM_CONF": str(self.slurm_conf), "ASRPT_CONFIG": str(self.settings_path)}

    def home(self, user: str | None = None) -> Path:
        """Where a test user's jobs run and write their output."""
        return self.paths.home / (user or "root")

    def run(
        self,
        command: Sequence[str | os.PathLike[str]],
        user: str | None = None,
        input: str | None = None,
        cwd: Path | None = None,
        check: bool = True,
        timeout_s: float = COMMAND_TIMEOUT_S,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a client command in the lab, as root or as a test user, in that user's home folder.

        Raises SlurmError if it fails (unless check=False) or hangs, InputError for an unknown user.
        """
        words = [os.fspath(word) for word in command]
        variables = self.env | {"HOME": str(self.home(user)), "USER": user or "root"} | dict(env or {})
        who = identity(user) if user else None
        try:
            done = subprocess.run(
                words,
                input=input if input is not None else "",
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                env=variables,
                cwd=cwd or self.home(user),
                timeout=timeout_s,
                user=who[0] if who else None,
                group=who[1] if who else None,
                extra_groups=[] if who else None,
            )
        except subprocess.TimeoutExpired as error:
            raise SlurmError(f"{' '.join(words[:3])}: no answer in {timeout_s:g} s") from error
        except OSError as error:
            raise SlurmError(f"{words[0]}: cannot be started ({error.strerror})") from error
        if check and done.returncode:
            raise SlurmError(f"{' '.join(words[:3])}: exit code {done.returncode}: {done.stderr or done.stdout}")
        return done

    def controller_up(self) -> bool:
        """Whether slurmctld answers."""
        with contextlib.suppress(SlurmError):
            return " UP" in self.run(["scontrol", "ping"], check=False, timeout_s=10.0).stdout
        return False

    def node_states(self) -> Counter[str]:
        """How many nodes are in each state. Raises SlurmError."""
        return _count(self.run(["sinfo", "-h", "-N", "-p", self.spec.partitions[0], "-o", "%T"]).stdout)

    def job_states(self) -> Counter[str]:
        """How many jobs are in each state. Raises SlurmError."""
        return _count(self.run(["squeue", "-h", "-t", "all", "-o", "%T"]).stdout)


def identity(user: str) -> tuple[int, int]:
    """uid and gid to run as. Raises InputError."""
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise InputError(f"no user {user} on this machine; asrpt-lab up --users N makes asrpt1 .. asrptN") from None
    return entry.pw_uid, entry.pw_gid


def _count(lines: str) -> Counter[str]:
    """Slurm marks states (idle*, idle~ ...); a marked state is another state."""
    return Counter(lines.lower().split())
