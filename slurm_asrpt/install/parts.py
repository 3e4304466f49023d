"""The parts of an installation: directories, files, the block in job_submit.lua. Each can be installed and removed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slurm_asrpt.errors import AsrptError, InputError
from slurm_asrpt.files import replace_file
from slurm_asrpt.install import job_submit
from slurm_asrpt.install.slurm_conf import State

Owner = tuple[int, int] | None


class Part(Protocol):
    @property
    def what(self) -> str:
        """Its name, in a word or two."""

    @property
    def path(self) -> Path:
        """Its path."""

    def state(self) -> State:
        """Its state now. Raises OSError, InputError."""

    def put(self) -> str:
        """Install it. Returns the path of the backup ("": none). Raises OSError, AsrptError."""

    def take(self) -> str:
        """Remove it. Returns why it stays ("": removed). Raises OSError, AsrptError."""


@dataclass(frozen=True)
class Folder:
    """A directory of the daemon's user, or of root; the daemon could not write to the other's. Its content stays."""

    what: str
    path: Path
    mode: int
    owner: Owner

    def state(self) -> State:
        if not self.path.is_dir():
            return State.MISSING
        found = self.path.stat()
        loose = found.st_mode & 0o777 & ~self.mode
        others = self.owner is not None and found.st_uid != self.owner[0]
        return State.DIFFERS if loose or others else State.PRESENT

    def put(self) -> str:
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(self.path.stat().st_mode & 0o777 & self.mode if self.state() is State.DIFFERS else self.mode)
        if self.owner:
            os.chown(self.path, *self.owner)
        return ""

    def take(self) -> str:
        if any(self.path.iterdir()):
            return "not empty; delete it by hand if it is no longer needed"
        self.path.rmdir()
        return ""


@dataclass(frozen=True)
class File:
    """A file that belongs to root. If it differs it is replaced, with a backup beside it.

    used_by: the keys of slurm.conf that name it; Slurm drains nodes where such a file is missing.
    """

    what: str
    path: Path
    wanted: bytes
    mode: int = 0o644
    used_by: tuple[str, ...] = ()

    def state(self) -> State:
        if not self.path.exists():
            return State.MISSING
        found = self.path.stat()
        loose = found.st_mode & 0o777 != self.mode or (os.geteuid() == 0 and found.st_uid != 0)
        return State.DIFFERS if loose or self.path.read_bytes() != self.wanted else State.PRESENT

    def put(self) -> str:
        kept = backup(self.path) if self.state() is State.DIFFERS else ""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, self.wanted, self.mode)
        return kept

    def take(self) -> str:
        if self.used_by:
            return f"slurm.conf names it ({', '.join(self.used_by)}): remove that, run scontrol reconfigure, then retry"
        self.path.unlink()
        return ""


@dataclass(frozen=True)
class FirstFile:
    """A file that is created once and then belongs to the site or to asrptd. taken: --remove deletes it."""

    what: str
    path: Path
    first: Callable[[], bytes]
    owner: Owner
    taken: bool
    check: Callable[[Path], object] = lambda path: None

    def state(self) -> State:
        if not self.path.exists():
            return State.MISSING
        self.check(self.path)
        others = self.owner is not None and self.path.stat().st_uid != self.owner[0]
        return State.DIFFERS if others else State.PRESENT

    def put(self) -> str:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists():
            replace_file(self.path, self.first(), 0o644)
        if self.owner:
            os.chown(self.path, *self.owner)
        return ""

    def take(self) -> str:
        if not self.taken:
            return "the site's own"
        self.path.unlink()
        return ""


@dataclass(frozen=True)
class Include:
    """The block in job_submit.lua. needed: slurm.conf says that slurmctld loads the file."""

    what: str
    path: Path
    block: bytes
    plugin: Path | None
    needed: bool

    def state(self) -> State:
        text = self._text()
        found = self._named(job_submit.block_in, text)
        if found:
            return State.PRESENT if found == self.block else State.DIFFERS
        return State.PRESENT if job_submit.included_by_hand(text) else State.MISSING

    def put(self) -> str:
        before = self._text()
        after = self._named(lambda text: job_submit.with_block(text, self.block), before)
        trouble = job_submit.trouble_with(after, self.plugin) if self.plugin else ""
        if trouble:
            raise AsrptError(f"{self.path}: would not load with our lines in it ({trouble}); insert them by hand")
        kept = backup(self.path) if job_submit.without_block(before) else ""
        self._write(after)
        return kept

    def take(self) -> str:
        before = self._text()
        after = self._named(job_submit.without_block, before)
        if job_submit.included_by_hand(before):
            return "the site's own lines load our module; remove them by hand"
        if after.replace(job_submit.STUB, b"").strip():
            if after == before:
                return "the site's own"
            self._write(after)
            return ""
        if self.needed:
            self._write(job_submit.STUB)
            return (
                "empty functions: slurmctld needs the file while slurm.conf says JobSubmitPlugins=lua: "
                "remove that, restart slurmctld, then retry"
            )
        self.path.unlink()
        return ""

    def touch(self) -> None:
        """Make slurmctld load the module again: it compares the time of this file, in whole seconds."""
        if self.path.exists():
            os.utime(self.path)

    def _text(self) -> bytes:
        return self.path.read_bytes() if self.path.exists() else b""

    def _named(self, edit: Callable[[bytes], bytes], text: bytes) -> bytes:
        try:
            return edit(text)
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from None

    def _write(self, text: bytes) -> None:
        """Write the file; owner and mode stay."""
        there = self.path.stat() if self.path.exists() else None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, text, there.st_mode & 0o777 if there else 0o644)
        if there and os.geteuid() == 0:
            os.chown(self.path, there.st_uid, there.st_gid)


def backup(path: Path) -> str:
    """Copy the file beside itself, named by date and time. Returns the path of the copy."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    copy = path.with_name(f"{path.name}.before-asrpt-{stamp}")
    shutil.copy2(path, copy)
    return str(copy)
