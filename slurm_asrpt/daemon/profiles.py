"""Profiles by name, and the admin's file that attaches jobs to profiles."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from slurm_asrpt.core.job import JobProfile, unprofiled
from slurm_asrpt.errors import InputError, one_line
from slurm_asrpt.hook.attachments import Attachments, read_attachments
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.profile.blocks import UncutFile
from slurm_asrpt.profile.shape import cut_for
from slurm_asrpt.profile.sizes import NO_SIZES, Sizes

LOG = logging.getLogger("asrptd")
LoadProfile = Callable[[str], JobProfile | UncutFile]
MAX_PROFILES = 4096


class Profiles:
    """Profiles by name, each file read once. A name that cannot be used counts as no profile; ``problems`` says why.

    A model that is not cut yet is cut to what a job's script says of it. Names are what users wrote: of more than
    ``most`` the one that was asked for longest ago is forgotten.
    """

    def __init__(self, load: LoadProfile, most: int = MAX_PROFILES) -> None:
        self._load, self._most = load, most
        self._known: OrderedDict[str, JobProfile | UncutFile | InputError] = OrderedDict()
        self._cut = lru_cache(most)(self._cut_now)
        self.problems: dict[str, str] = {}

    def of(self, tag: Tag | None, gpus: int) -> JobProfile:
        """That which a job's tag names, see ``get``."""
        return self.get(tag.profile, gpus, tag.sizes) if tag else unprofiled(gpus)

    def get(self, name: str, gpus: int, sizes: Sizes = NO_SIZES) -> JobProfile:
        """The profile of that name if it fits the GPUs, else the stand-in for an unprofiled job."""
        try:
            return self._use(name, gpus, sizes) if name else unprofiled(gpus)
        except InputError as error:
            self.problems[name] = str(error)
            return unprofiled(gpus)

    def problem(self, tag: Tag, gpus: int) -> str:
        """Why the profile that a job's tag names does not count; of jobs that name the same each may have its own."""
        try:
            self._use(tag.profile, gpus, tag.sizes)
        except InputError as error:
            return str(error)
        return self.problems.get(tag.profile, "")

    def _use(self, name: str, gpus: int, sizes: Sizes) -> JobProfile:
        """The profile of that name. Raises InputError where it cannot be used for so many GPUs."""
        found = self._named(name)
        try:
            profile = self._cut(name, sizes, gpus) if isinstance(found, UncutFile) else found
        except (ValueError, InputError) as error:
            raise InputError(f"profile {name} is not cut into stages: {error}") from None
        if profile.gpus != gpus:
            raise InputError(f"profile {name} is for {profile.gpus} GPUs, a job asks for {gpus}")
        return profile

    def _cut_now(self, name: str, sizes: Sizes, gpus: int) -> JobProfile:
        """By the name that says its shape: there may be a better file of that name. Raises ValueError, InputError."""
        document = self._known[name]
        assert isinstance(document, UncutFile)  # noqa: S101  (the caller has looked)
        found = self._load(f"{name}-{cut_for(document, sizes, gpus).suffix}")
        assert isinstance(found, JobProfile)  # noqa: S101  (names of shapes are of nothing else)
        return found

    def _named(self, name: str) -> JobProfile | UncutFile:
        """Raises InputError, each time, for one that cannot be read."""
        if name not in self._known:
            try:
                self._known[name] = self._load(name)
            except InputError as error:
                self._known[name] = error
        self._known.move_to_end(name)
        if len(self._known) > self._most:
            oldest, _ = self._known.popitem(last=False)
            self.problems.pop(oldest, None)
        found = self._known[name]
        if isinstance(found, InputError):
            raise InputError(str(found))
        return found


class AttachmentsFile:
    """Which jobs use which profile, as the admin's file says; read again when it has changed.

    A file that cannot be used changes nothing: the previous attachments stay, and the log says why.

    check: raises InputError for what hook.conf cannot hold.
    """

    def __init__(self, path: Path, check: Callable[[Attachments], object]) -> None:
        self._path, self._check = path, check
        self._seen: tuple[int, ...] | None = None
        self._known = Attachments()

    def current(self) -> Attachments:
        """As of now."""
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            try:
                found = read_attachments(self._path)
                self._check(found)
                self._known = found
            except InputError as error:
                LOG.error("%s; the previous attachments stay in force", one_line(error))
        return self._known

    def _stamp(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
