"""Where things are in a lab's directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

STATE_FILE = "lab.json"


@dataclass(frozen=True)
class LabPaths:
    """The folders and files of the lab in ``root``."""

    root: Path

    @property
    def state_file(self) -> Path:
        return self.root / STATE_FILE

    @property
    def etc(self) -> Path:
        return self.root / "etc"

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def settings(self) -> Path:
        return self.etc / "asrpt.toml"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def pids(self) -> Path:
        return self.root / "pids"

    @property
    def munge(self) -> Path:
        return self.root / "munge"

    @property
    def munge_socket(self) -> Path:
        return self.munge / "s"

    @property
    def gpus(self) -> Path:
        return self.root / "dev"

    @property
    def slurmctld_state(self) -> Path:
        return self.root / "ctld"

    @property
    def slurmd_spool(self) -> Path:
        return self.root / "d"

    @property
    def database(self) -> Path:
        return self.root / "db"

    @property
    def asrpt(self) -> Path:
        return self.root / "asrpt"

    @property
    def hook(self) -> Path:
        return self.asrpt / "hook"

    @property
    def spool(self) -> Path:
        return self.asrpt / "spool"

    @property
    def library(self) -> Path:
        return self.root / "lib"

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def home(self) -> Path:
        return self.root / "home"

    def create(self) -> None:
        """Make every folder of the lab with its mode, whatever the umask."""
        for folder, mode in self._folders():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(mode)

    def _folders(self) -> list[tuple[Path, int]]:
        private = [self.slurmctld_state, self.asrpt / "state", self.pids]
        shared = [self.etc, self.log, self.munge, self.gpus, self.slurmd_spool, self.database, self.asrpt, self.hook]
        shared += [self.asrpt / "run", self.spool, self.spool / "hosts", self.spool / "progress"]
        shared += [self.library, self.bin, self.home]
        return [(self.root, 0o755)] + [(f, 0o755) for f in shared] + [(f, 0o700) for f in private]

    @property
    def of_slurm_user(self) -> list[Path]:
        """Folders that SlurmUser's daemons write: slurmctld and asrptd."""
        asrpt = [self.asrpt / "state", self.asrpt / "run", self.hook, self.spool]
        return [self.slurmctld_state, self.log, *asrpt, self.spool / "hosts", self.spool / "progress"]

    def top_level(self) -> list[Path]:
        """What a lab puts directly into its directory, and so what may be deleted there."""
        below = [folder.relative_to(self.root) for folder, _ in self._folders() if folder != self.root]
        return [self.root / name for name in sorted({folder.parts[0] for folder in below})]
