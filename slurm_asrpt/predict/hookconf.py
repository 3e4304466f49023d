"""``hook.conf``: what asrptd tells the job_submit hook. Read by job_submit_asrpt.lua at every submission.

    asrpt-hook 1
    partitions=gpu,gpu-long
    lease_s=600
    valid_until=1795257166
    strip_comments=1
    fold_digits=1
    arguments=1
    ignore_line=...                (any number of them)
    check=<16 hex digits over all lines before>

lease_s 0: the hook only tags (modes shadow and order). After valid_until, the daemon's heartbeat, it only tags too, so
that a dead daemon delays nobody. A file that is damaged in any way leaves every job as its user wrote it.
"""

from __future__ import annotations

import re
from pathlib import Path

from slurm_asrpt.config import GroupSettings
from slurm_asrpt.errors import InputError
from slurm_asrpt.files import replace_file
from slurm_asrpt.predict.group import digest

FILE_NAME = "hook.conf"
MAX_BYTES = 65536
_VALID_UNTIL = re.compile(rb"^valid_until=([0-9]{1,12})$", re.MULTILINE)
_PARTITION = re.compile(r"[!-+\--~]+")  # printable ASCII without blank and comma


def render_hook_conf(partitions: list[str], lease_s: int, valid_until: float, rules: GroupSettings) -> bytes:
    """The text of hook.conf. Raises InputError for a name or text that its format cannot hold."""
    for name in partitions:
        if not _PARTITION.fullmatch(name):
            raise InputError(f"slurm.partitions: {name!r} is no name of a partition; use names as in slurm.conf")
    for text in rules.ignore_lines:
        if not text or "\n" in text:
            raise InputError(f"group.ignore_lines: {text!r} is empty or has a line break; remove it")
    lines = [
        "asrpt-hook 1",
        f"partitions={','.join(partitions)}",
        f"lease_s={int(lease_s)}",
        f"valid_until={int(valid_until)}",
        f"strip_comments={int(rules.strip_comments)}",
        f"fold_digits={int(rules.fold_digits)}",
        f"arguments={int(rules.arguments)}",
        *(f"ignore_line={text}" for text in rules.ignore_lines),
    ]
    body = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
    whole = body + f"check={digest(body)}\n".encode("ascii")
    if len(whole) > MAX_BYTES:
        raise InputError(f"hook.conf would be {len(whole)} bytes, over {MAX_BYTES}; shorten group.ignore_lines")
    return whole


def write_hook_conf(
    hook_dir: Path, partitions: list[str], lease_s: int, valid_until: float, rules: GroupSettings
) -> None:
    """Replace ``hook_dir/hook.conf``. Raises InputError, OSError."""
    replace_file(hook_dir / FILE_NAME, render_hook_conf(partitions, lease_s, valid_until, rules))


def valid_until(text: bytes) -> int:
    """Until when the hook believes that asrptd lives, seconds since the epoch. Raises ValueError for a damaged file."""
    body, _, check = text.rpartition(b"check=")
    found = _VALID_UNTIL.search(body)
    if check.strip().decode("ascii", "replace") != digest(body) or not found:
        raise ValueError("is damaged (its check sum does not fit)")
    return int(found[1])
