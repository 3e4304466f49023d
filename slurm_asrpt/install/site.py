"""The paths and the user of an installation, and the content of its files."""

from __future__ import annotations

import grp
import os
import pwd
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_asrpt.config.location import DEFAULT_PATH
from slurm_asrpt.config.settings import PathSettings, Settings
from slurm_asrpt.errors import InputError
from slurm_asrpt.install import job_submit
from slurm_asrpt.install.parts import Owner
from slurm_asrpt.shipped import ETC, HOOKS, shipped

UNITS = ("asrptd.service", "asrpt-release.service", "asrpt-retrain.service", "asrpt-retrain.timer")
DEFAULT_SLURM = Path("/etc/slurm")
_DEFAULTS = PathSettings()
_PLAIN = re.compile(r"/[A-Za-z0-9._/+-]*")


@dataclass(frozen=True)
class Site:
    """Where and for whom to install.

    settings_path: of asrpt.toml. slurm: the directory of slurm.conf. units: of systemd's units. programs: of asrptd.
    user: that asrptd runs as. root: the directory of an image, else "/". config: the output of scontrol show config;
    empty if Slurm was not asked.
    Raises InputError for a path that a script could misinterpret.
    """

    settings: Settings
    settings_path: Path
    slurm: Path
    units: Path
    programs: Path
    user: str
    root: Path
    config: Mapping[str, str]

    def __post_init__(self) -> None:
        paths = self.settings.paths
        ours = (paths.state, paths.run, paths.hook, paths.scripts, paths.spool)
        for path in (self.settings_path, self.slurm, self.programs, *ours):
            if not _PLAIN.fullmatch(str(path)):
                raise InputError(f"{path}: use an absolute path of letters, digits and . _ / + -; scripts contain it")
        if paths.scripts in (paths.hook, *paths.hook.parents) or paths.hook in paths.scripts.parents:
            raise InputError(
                f"paths.scripts ({paths.scripts}) belongs to root and paths.hook ({paths.hook}) to {self.user}: "
                "use two directories, neither inside the other"
            )
        if not re.fullmatch(r"[a-z_][a-z0-9_.-]*\$?", self.user):
            raise InputError(f"{self.user}: not a valid user name; give the user of asrptd with --user")

    def at(self, path: Path) -> Path:
        """The path below root."""
        return self.root / path.relative_to("/")

    @property
    def owner(self) -> Owner:
        """User and group ID of the daemon; None if files cannot be given to it (not root, or the image lacks it)."""
        if os.geteuid():
            return None
        if self.root != Path("/"):
            return _ids_in(self.root / "etc/passwd", self.user)
        try:
            entry = pwd.getpwnam(self.user)
        except KeyError:
            raise InputError(f"no user {self.user} on this machine; give SlurmUser with --user") from None
        return entry.pw_uid, entry.pw_gid

    def troubles(self) -> Iterator[str]:
        """What an image lacks for asrptd to run there."""
        if self.root == Path("/"):
            return
        if not os.geteuid() and self.owner is None:
            yield f"{self.root} has no user {self.user}, so all belongs to root; create it there, then --apply again"
        if not self.at(self.programs / "asrptd").exists():
            yield f"{self.root} has no {self.programs}/asrptd, which the units run; install slurm-asrpt there, too"

    @property
    def roots(self) -> Owner:
        """User and group ID of root, who owns the scripts; None if files cannot be given to root."""
        return None if self.owner is None else (0, 0)

    @property
    def lua(self) -> Path:
        return self.slurm / "job_submit.lua"

    # the content of the files

    def block(self) -> bytes:
        """The block in job_submit.lua."""
        return placed("job_submit.lua", self.settings.paths)

    def module(self) -> bytes:
        return shipped(HOOKS, job_submit.MODULE)

    def script(self, name: str) -> bytes:
        """A prolog or epilog."""
        return placed(name, self.settings.paths)

    def new_settings(self) -> bytes:
        """The shipped asrpt.toml: mode shadow."""
        return shipped(ETC, "asrpt.toml")

    def unit(self, name: str) -> bytes:
        """The content of one of UNITS."""
        text = shipped(ETC, f"systemd/{name}").decode()
        text = text.replace("ExecStart=/usr/bin/", f"ExecStart={self.programs}/")
        text = text.replace("User=slurm\nGroup=slurm\n", f"User={self.user}\nGroup={self._group()}\n")
        text = re.sub("(?m)^ReadWritePaths=.*$", lambda found: self._writable(found[0]), text)
        if self.settings_path != DEFAULT_PATH:
            text = text.replace("[Service]\n", f"[Service]\nEnvironment=ASRPT_CONFIG={self.settings_path}\n")
        if self.programs.parts[:2] in (("/", "home"), ("/", "root")):
            text = text.replace("ProtectHome=yes", "ProtectHome=read-only")  # the programs are there
        return text.encode()

    def _writable(self, line: str) -> str:
        """The line with the directories that systemd does not create itself."""
        paths = self.settings.paths
        line = _replaced(line, _placeable(_DEFAULTS), _placeable(paths))
        moved = [path for path in (paths.state, paths.run) if path not in (_DEFAULTS.state, _DEFAULTS.run)]
        return " ".join([line, *(f"-{path}" for path in moved)])

    def _group(self) -> str:
        try:
            return grp.getgrgid(pwd.getpwnam(self.user).pw_gid).gr_name
        except KeyError:
            return self.user


def _ids_in(passwd: Path, user: str) -> Owner:
    """User and group ID in the passwd file of an image; None if it does not have the user."""
    rows = (line.split(":") for line in passwd.read_text().splitlines()) if passwd.exists() else ()
    return next(((int(row[2]), int(row[3])) for row in rows if row[0] == user and len(row) > 3), None)


def placed(name: str, paths: PathSettings) -> bytes:
    """The content of a script, with these directories."""
    return _replaced(shipped(HOOKS, name).decode(), _placeable(_DEFAULTS), _placeable(paths)).encode()


def _placeable(paths: PathSettings) -> list[str]:
    """The directories that scripts contain."""
    return [str(path) for path in (paths.scripts, paths.hook, paths.spool)]


def _replaced(text: str, before: Sequence[str], after: Sequence[str]) -> str:
    """All in one pass: a new directory may have a former one in its name."""
    new = dict(zip(before, after, strict=True))
    return re.sub("|".join(map(re.escape, before)), lambda found: new[found[0]], text)
