"""Profiles for jobs whose users name none: ``attachments.toml``, which belongs to the admin.

    version = 1

    [group]                              # by group id; asrpt-admin group shows it
    "93eb1d3f0bc79e52" = "vgg19-dp4"

    [job-name]                           # by job name; * matches any text
    "llama-*" = "llama-3-8b"

A profile in ``--comment`` has priority over a group, and a group over a job name. If several job names match, the
longest pattern counts. asrptd writes the attachments to hook.conf; the hook writes the profile's name into the tag.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from slurm_asrpt.errors import Collected, InputError, short
from slurm_asrpt.files import read_config
from slurm_asrpt.profile.header import NAME_PATTERN
from slurm_asrpt.profile.toml_table import Table, quote, read_toml

VERSION = 1
MAX_ATTACHMENTS = 200
"""Attachments of each kind. slurmctld compares the name of each submission with all of them."""

LONGEST = 128
"""Characters in a pattern."""

GROUP, JOB_NAME = "group", "job-name"
_ID = re.compile(r"[0-9a-f]{16}")
_STARS = re.compile(r"\*+")


@dataclass(frozen=True)
class Attachments:
    """Profiles by group id, and by job-name pattern."""

    groups: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)


def ordered(names: Mapping[str, str]) -> list[tuple[str, str]]:
    """(pattern, profile), those with the most text beside the stars first: the first that matches counts."""
    return sorted(names.items(), key=lambda item: (-len(item[0].replace("*", "").encode()), item[0]))


def attach(attachments: Attachments, kind: str, what: str, profile: str) -> Attachments:
    """Attach ``what`` (a group id or a pattern) to ``profile``, or to none any more (""). Raises InputError."""
    checked = _checked_group(what) if kind == GROUP else _checked_name(what)
    attribute = "groups" if kind == GROUP else "names"
    now = {key: value for key, value in getattr(attachments, attribute).items() if key != checked}
    if profile:
        now[checked] = profile
    if len(now) > MAX_ATTACHMENTS:
        raise InputError(
            f"more than {MAX_ATTACHMENTS} profiles attached by {kind}; remove some, or use a pattern for several names"
        )
    return replace(attachments, **{attribute: now})


def _checked_group(text: str) -> str:
    if not _ID.fullmatch(text):
        raise InputError(f"group {short(text)}: not 16 hexadecimal digits; asrpt-admin group SCRIPT shows the group id")
    return text


def _checked_name(text: str) -> str:
    name = _STARS.sub("*", text)
    if not 0 < len(name) <= LONGEST or not name.isprintable() or name != name.strip():
        raise InputError(
            f"job name {short(text)}: use 1 to {LONGEST} printable characters, * for any text, no blanks at the ends"
        )
    return name


def parse_attachments(text: str, source: str) -> Attachments:
    """Raises InputError."""
    table = read_toml(text, source)
    _check_version(table)
    errors, found = Collected(), Attachments()
    with errors:
        table.only(("version", GROUP, JOB_NAME))
    with errors:
        table.whole("version")
    for kind in (GROUP, JOB_NAME):
        with errors:
            found = _all_added(found, kind, table)
    errors.check()
    return found


def _check_version(table: Table) -> None:
    """Raises InputError for a file of another release. It may have other keys, so do not report them as errors."""
    if "version" in table and table.whole("version") != VERSION:
        raise table.error(
            "version", f"this release reads version {VERSION}; create the file again with asrpt-profile attach"
        )


def _all_added(found: Attachments, kind: str, table: Table) -> Attachments:
    """With all attachments of a kind. Raises InputError."""
    if kind not in table:
        return found
    errors, inner = Collected(), table.child(kind)
    if len(inner.values) > MAX_ATTACHMENTS:
        raise table.error(kind, f"{len(inner.values)} profiles, more than {MAX_ATTACHMENTS}; use patterns")
    for what in inner.values:
        with errors:
            profile = inner.text(what)
            if not NAME_PATTERN.fullmatch(profile):
                raise inner.error(what, f"{short(profile)} is not a valid profile name")
            found = _added(found, kind, what, profile, table)
    errors.check()
    return found


def _added(found: Attachments, kind: str, what: str, profile: str, table: Table) -> Attachments:
    try:
        return attach(found, kind, what, profile)
    except InputError as error:
        raise table.error(kind, str(error)) from None


def format_attachments(attachments: Attachments) -> str:
    """The content of the file. Comments of an earlier file are lost."""
    lines = ["# Which jobs use which profile; asrpt-profile attach writes this file.", f"version = {VERSION}"]
    for kind, found in ((GROUP, attachments.groups), (JOB_NAME, attachments.names)):
        lines += ["", f"[{kind}]"] if found else []
        lines += [f"{quote(what)} = {quote(profile)}" for what, profile in sorted(found.items())]
    return "\n".join(lines) + "\n"


def read_attachments(path: Path) -> Attachments:
    """The attachments in a file; none if there is no file.

    Raises InputError, also for a file that other users could have written, because it concerns all users' jobs.
    """
    try:
        if not path.exists():
            return Attachments()
        return parse_attachments(read_config(path).decode("utf-8"), str(path))
    except OSError as error:
        raise InputError(f"{path}: refused: {error.strerror}; chown it to root, chmod go-w") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8") from None
