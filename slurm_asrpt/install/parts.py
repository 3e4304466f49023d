"""The parts of an installation: each knows how it stands, how it is put there and how it is taken away again."""

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
from slurm_asrpt.install import lua_plugin, luablock
from slurm_asrpt.install.slurmlines import State

Owner = tuple[int, int] | None


class Part(Protocol):
    @property
    def what(self) -> str:
        """In a word or two."""

    @property
    def path(self) -> Path:
        """Where it is."""

    def state(self) -> State:
        """How it stands now. Raises OSError, InputError."""

    def put(self) -> str:
        """Make it present; what was kept of what had been there ("": nothing). Raises OSError, AsrptError."""

    def take(self) -> str:
        """Take it away; why it was kept instead ("": gone). Raises OSError, AsrptError."""


@dataclass(frozen=True)
class Folder:
    """A folder of the daemon's user or of root's. What is in it stays."""

    what: str
    path: Path
    mode: int
    owner: Owner

    def state(self) -> State:
        if not self.path.is_dir():
            return State.MISSING
        found = self.path.stat()
        loose = found.st_mode & 0o777 & ~self.mode
        others = self.owner is not None and found.st_uid not in (self.owner[0], 0)
        return State.DIFFERS if loose or others else State.PRESENT

    def put(self) -> str:
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(self.path.stat().st_mode & 0o777 & self.mode if self.state() is State.DIFFERS else self.mode)
        if self.owner:
            os.chown(self.path, *self.owner)
        return ""

    def take(self) -> str:
        if any(self.path.iterdir()):
            return "not empty, so it stays; delete it by hand if nobody wants it"
        self.path.rmdir()
        return ""


@dataclass(frozen=True)
class File:
    """A file of ours, and root's: replaced where it differs, and the one before is kept beside it.

    used_by: the keys of slurm.conf that name it; Slurm would drain nodes where it is missing.
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
            return f"slurm.conf names it ({', '.join(self.used_by)}): take that out, scontrol reconfigure, then again"
        self.path.unlink()
        return ""


@dataclass(frozen=True)
class FirstFile:
    """A file that is made once and then belongs to the site or to asrptd. taken: goes with --remove."""

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
        return State.PRESENT

    def put(self) -> str:
        self.path.parent.mkdir(parents=True, exist_ok=True)
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
    """Our lines in job_submit.lua, whoever's file that is. needed: by slurmctld, as slurm.conf says today."""

    what: str
    path: Path
    block: bytes
    plugin: Path | None
    needed: bool

    def state(self) -> State:
        text = self._text()
        found = self._named(luablock.block_in, text)
        if found:
            return State.PRESENT if found == self.block else State.DIFFERS
        return State.PRESENT if luablock.included_by_hand(text) else State.MISSING

    def put(self) -> str:
        before = self._text()
        after = self._named(lambda text: luablock.with_block(text, self.block), before)
        trouble = lua_plugin.trouble_with(after, self.plugin) if self.plugin else ""
        if trouble:
            raise AsrptError(f"{self.path}: would not load with our lines in it ({trouble}); put them in by hand")
        kept = backup(self.path) if luablock.without_block(before) else ""
        self._write(after)
        return kept

    def take(self) -> str:
        before = self._text()
        after = self._named(luablock.without_block, before)
        if luablock.included_by_hand(before):
            return "loads our module in lines of the site's own; take them out by hand"
        if after.replace(luablock.STUB, b"").strip():
            if after == before:
                return "the site's own"
            self._write(after)
            return ""
        if self.needed:
            self._write(luablock.STUB)
            return (
                "empty functions: slurmctld needs the file while slurm.conf says JobSubmitPlugins=lua: "
                "take that out, restart slurmctld, then again"
            )
        self.path.unlink()
        return ""

    def touch(self) -> None:
        """slurmctld loads a new module only where this file looks new, in whole seconds."""
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
        """Its owner and mode stay."""
        there = self.path.stat() if self.path.exists() else None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, text, there.st_mode & 0o777 if there else 0o644)
        if there and os.geteuid() == 0:
            os.chown(self.path, there.st_uid, there.st_gid)


def backup(path: Path) -> str:
    """Keep a copy beside the file, by the time of day; its path."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    copy = path.with_name(f"{path.name}.before-asrpt-{stamp}")
    shutil.copy2(path, copy)
    return str(copy)
