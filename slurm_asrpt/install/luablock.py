"""Our lines in a site's job_submit.lua: put in, found and taken out again. Bytes in, bytes out.

A file may end in ``return slurm.SUCCESS``, as Slurm's own example does, and nothing may follow that in Lua: our lines
go before it. Whether the outcome loads is for Slurm's own Lua to say (``slurm.lua``).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from slurm_asrpt.errors import InputError

MODULE = "job_submit_asrpt.lua"
_BEGIN, _END = b"-- >>> slurm-asrpt", b"-- <<< slurm-asrpt"
_BLOCK = re.compile(rb"^-- >>> slurm-asrpt.*?^-- <<< slurm-asrpt[^\n]*\n?", re.MULTILINE | re.DOTALL)
_LAST_RETURN = re.compile(
    rb"^[ \t]*return\b(?![^\n]*\bend\b)[^\n]*(?:\n[ \t]*(?:--(?!\[=*\[)[^\n]*)?)*\Z", re.MULTILINE
)
_NAMED = re.compile(rb"""["'](/[^"']*/job_submit_asrpt\.lua)["']""")
_SUBMIT = re.compile(rb"^[ \t]*(function[ \t]+)?slurm_job_submit\b[ \t]*[(=]", re.MULTILINE)
STUB = b"""\
-- slurm-asrpt has gone. slurmctld does not start without this file while slurm.conf says JobSubmitPlugins=lua.
function slurm_job_submit() return slurm.SUCCESS end
function slurm_job_modify() return slurm.SUCCESS end
"""


def block_in(text: bytes) -> bytes:
    """Our lines as they stand there, empty without any. Raises InputError where one of their ends is missing."""
    found = _BLOCK.findall(text)
    if len(found) > 1 or text.count(_BEGIN) != len(found) or text.count(_END) != len(found):
        raise InputError("the lines between '>>> slurm-asrpt' and '<<< slurm-asrpt' are damaged; take them out by hand")
    return found[0] if found else b""


def without_block(text: bytes) -> bytes:
    """What is the site's own. Raises InputError."""
    return text.replace(block_in(text), b"")


def with_block(text: bytes, block: bytes) -> bytes:
    """The site's own lines and then ours, but before a last ``return``. Raises InputError."""
    site = without_block(text)
    last = _LAST_RETURN.search(site)
    head, tail = (site[: last.start()], site[last.start() :]) if last else (site, b"")
    line_break = b"\n" if head and not head.endswith(b"\n") else b""
    return head + line_break + block + tail


def redefined(text: bytes) -> bool:
    """Whether the site's lines after ours put a function in the place of ours. Raises InputError."""
    block = block_in(text)
    return bool(block) and bool(_SUBMIT.search(text.partition(block)[2]))


def included_by_hand(text: bytes) -> bool:
    """Whether the site loads our module in lines of its own."""
    return MODULE.encode() in _by_hand(text)


def named_by_hand(text: bytes) -> Path | None:
    """From where the site's own lines load our module, if they say it in one string."""
    named = _NAMED.search(_by_hand(text))
    return Path(os.fsdecode(named[1])) if named else None


def _by_hand(text: bytes) -> bytes:
    """The site's own lines, without comments."""
    return b"\n".join(line.partition(b"--")[0] for line in without_block(text).splitlines())
