"""Profiles by name, and the admin's file that attaches profiles to jobs."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from slurm_asrpt.core.job import JobProfile, unprofiled
from slurm_asrpt.errors import InputError, error_lines
from slurm_asrpt.hook.attachments import Attachments, read_attachments
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.profile.blocks import UncutFile
from slurm_asrpt.profile.shape import cut_for
from slurm_asrpt.profile.sizes import NO_SIZES, Sizes

LOG = logging.getLogger("asrptd")
LoadProfile = Callable[[str], JobProfile | UncutFile]
MAX_PROFILES = 4096


class Profiles:
    """Profiles by name; each file is read once. An unusable name counts as no profile.

    problems: why, by name, a line for each error.

    An uncut model is cut into the shape that the job's script gives. Users choose the names, so the least recently used
    one is dropped if there are more than ``most``.
    """

    def __init__(self, load: LoadProfile, most: int = MAX_PROFILES) -> None:
        self._load, self._most = load, most
        self._known: OrderedDict[str, JobProfile | UncutFile | InputError] = OrderedDict()
        self._cut = lru_cache(most)(self._cut_now)
        self.problems: dict[str, list[str]] = {}

    def of(self, tag: Tag | None, gpus: int) -> JobProfile:
        """The profile in a job's tag, as in ``get``."""
        return self.get(tag.profile, gpus, tag.sizes) if tag else unprofiled(gpus)

    def get(self, name: str, gpus: int, sizes: Sizes = NO_SIZES) -> JobProfile:
        """The profile with this name if it fits the GPUs, else the default for unprofiled jobs."""
        try:
            return self._use(name, gpus, sizes) if name else unprofiled(gpus)
        except InputError as error:
            self.problems[name] = error_lines(error)
            return unprofiled(gpus)

    def problem(self, tag: Tag, gpus: int) -> str:
        """Why the profile in a job's tag is not used. The reason may differ between jobs with the same profile."""
        try:
            self._use(tag.profile, gpus, tag.sizes)
        except InputError as error:
            return str(error)
        return "".join(self.problems.get(tag.profile, ())[:1])

    def look_again(self) -> None:
        """Read names that could not be read once more: profiles have been added or mended."""
        missing = [name for name, found in self._known.items() if isinstance(found, InputError)]
        for name in missing:
            del self._known[name]
            self.problems.pop(name, None)

    def _use(self, name: str, gpus: int, sizes: Sizes) -> JobProfile:
        """The profile with this name. Raises InputError if it cannot be used for this number of GPUs."""
        found = self._named(name)
        try:
            profile = self._cut(name, sizes, gpus) if isinstance(found, UncutFile) else found
        except (ValueError, InputError) as error:
            raise InputError(f"profile {name} cannot be cut into stages: {error}") from None
        if profile.gpus != gpus:
            raise InputError(f"profile {name} is for {profile.gpus} GPUs, but a job requests {gpus}")
        return profile

    def _cut_now(self, name: str, sizes: Sizes, gpus: int) -> JobProfile:
        """Cut a model. A file named after the shape has priority. Raises ValueError, InputError."""
        document = self._known[name]
        assert isinstance(document, UncutFile)  # noqa: S101  (the caller has looked)
        found = self._load(f"{name}-{cut_for(document, sizes, gpus).suffix}")
        assert isinstance(found, JobProfile)  # noqa: S101  (names of shapes are of nothing else)
        return found

    def _named(self, name: str) -> JobProfile | UncutFile:
        """Read a profile. Raises InputError, every time, if it cannot be read."""
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
            raise found.with_traceback(None)
        return found


class AttachmentsFile:
    """The admin's file of profiles attached to jobs, read again when it changes.

    If the file is not valid, the previous attachments stay in force, and the reason is logged.

    check: raises InputError for attachments that hook.conf cannot hold.
    """

    def __init__(self, path: Path, check: Callable[[Attachments], object]) -> None:
        self._path, self._check = path, check
        self._seen: tuple[int, ...] | None = None
        self._known = Attachments()

    def current(self) -> Attachments:
        """The current attachments."""
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            try:
                found = read_attachments(self._path)
                self._check(found)
                self._known = found
            except InputError as error:
                *others, last = error_lines(error)
                for line in others:
                    LOG.error("%s", line)
                LOG.error("%s; the previous attachments stay in force", last)
        return self._known

    def _stamp(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
