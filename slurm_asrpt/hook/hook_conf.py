"""``hook.conf``: what asrptd tells the submit hook, which reads the file at every submission.

    asrpt-hook 2
    partitions=gpu,gpu-long
    lease_s=600
    valid_until=1795257166
    rules=<16 hex digits over all lines after the #>
    check=<16 hex digits over all lines before>
    #
    strip_comments=1
    fold_digits=1
    fold_dates=1
    arguments=1
    ignore_line=...                (may repeat, like feature, launcher, size and the last two)
    feature=epochs num_epochs ...
    ignore_options=seed output_dir ...
    ignore_commands=echo date ...
    setup_commands=module cd ...
    launcher=torchrun nnodes nproc_per_node ...
    size=tp tensor_model_parallel_size ...
    attach_group=<profile> <16 hex digits>
    attach_name=<profile> <pattern>        (the first that matches counts)

With lease_s 0 the hook only tags jobs (modes shadow and order). asrptd's heartbeat extends valid_until; after that time
the hook only tags jobs, too, so a dead daemon delays nobody. A heartbeat does not change the lines after the #, and the
hook parses them once. If the file is damaged, the hook leaves every job as its user wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.errors import InputError
from slurm_asrpt.files import replace_file
from slurm_asrpt.hook.attachments import Attachments, ordered
from slurm_asrpt.profile.sizes import SIZES

FILE_NAME = "hook.conf"
WAKEUP = "wakeup"
"""The file beside it that the hook truncates for each job that it tags, and EpilogSlurmctld for each that ends."""
MAX_BYTES = 65536
_VALID_UNTIL = re.compile(rb"^valid_until=([0-9]{1,12})$", re.MULTILINE)
_RULES = re.compile(rb"^rules=([0-9a-f]{16})$", re.MULTILINE)
_PARTITION = re.compile(r"[!-+\--~]+")  # printable ASCII without blank and comma
_FEATURE = re.compile(r"[a-z][a-z0-9_]{0,31}")
_OPTION = re.compile(r"[A-Za-z0-9_.-]{1,64}(=[1-9])?")
_COMMAND = re.compile(r"[!-~]{1,64}")
_LAUNCHER = re.compile(r"[!-)+-.0-~]{1,64}(/[!-)+-.0-~]{1,64})?(\*[0-9])?")  # a *N at its end only
_LANES = ((1, 1000003, 4294967291), (2, 786433, 4294967279))
_STEP, _BLOCK = 6, 12

NOTHING_ATTACHED = Attachments()


def digest(data: bytes) -> str:
    """The hash of checksums and group ids: 16 hex digits.

    Two polynomials modulo primes below 2^32 over six bytes a step; Lua 5.1 computes them exactly (docs/decisions/0004).
    """
    whole = len(data) - len(data) % _BLOCK
    values = [int.from_bytes(data[at : at + _STEP], "little") for at in range(0, whole, _STEP)]
    values += data[whole:]
    values.append(len(data))
    return "".join(f"{_lane(values, *lane):08x}" for lane in _LANES)


def _lane(values: Sequence[int], start: int, factor: int, prime: int) -> int:
    state = start
    for value in values:
        state = (state * factor + value) % prime
    return state


def render_hook_conf(
    partitions: list[str],
    lease_s: int,
    valid_until: float,
    rules: GroupSettings,
    attachments: Attachments = NOTHING_ATTACHED,
) -> bytes:
    """The content of hook.conf. Raises InputError for a name or text that its format cannot hold."""
    for name in partitions:
        if not _PARTITION.fullmatch(name):
            raise InputError(f"slurm.partitions: {name!r} is not a valid partition name; use the names in slurm.conf")
    rest = render_rules(rules, attachments)
    head = (
        f"asrpt-hook 2\npartitions={','.join(partitions)}\nlease_s={int(lease_s)}\nvalid_until={int(valid_until)}\n"
        f"rules={digest(rest)}\n"
    ).encode("ascii")
    whole = head + f"check={digest(head)}\n#\n".encode("ascii") + rest
    if len(whole) > MAX_BYTES:
        raise InputError(
            f"hook.conf would have {len(whole)} bytes, more than {MAX_BYTES}; shorten the lists in [group]"
        )
    return whole


def render_rules(rules: GroupSettings, attachments: Attachments = NOTHING_ATTACHED) -> bytes:
    """The lines behind the #. Raises InputError for a name or text that the format cannot hold."""
    lines = [*_rule_lines(rules), *_attachment_lines(attachments)]
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def _rule_lines(rules: GroupSettings) -> Iterator[str]:
    for flag in ("strip_comments", "fold_digits", "fold_dates", "arguments"):
        yield f"{flag}={int(getattr(rules, flag))}"
    for text in rules.ignore_lines:
        if not text or "\n" in text:
            raise InputError(f"group.ignore_lines: {text!r} is empty or contains a line break; remove it")
        yield f"ignore_line={text}"
    for line in rules.features:
        name, *others = _keys("features", line.split() or [""])
        if not _FEATURE.fullmatch(name):
            raise InputError(f"group.features: {name!r} is not a valid feature name; use letters, digits and _")
        yield f"feature={' '.join([name, *others])}"
    yield f"ignore_options={' '.join(_keys('ignore_options', rules.ignore_options))}"
    for key in ("ignore_commands", "setup_commands"):
        yield f"{key}={' '.join(_checked(key, _COMMAND, getattr(rules, key)))}"
    for line in rules.launchers:
        name, *options = line.split() or [""]
        _checked("launchers", _LAUNCHER, [name])
        yield f"launcher={' '.join([name, *_keys('launchers', options)])}"
    for line in rules.sizes:
        name, *others = line.split() or [""]
        if name not in SIZES:
            raise InputError(f"group.sizes: unknown size {name!r}; begin each line with one of {', '.join(SIZES)}")
        yield f"size={' '.join([name, *_keys('sizes', others)])}"


def _attachment_lines(attachments: Attachments) -> Iterator[str]:
    for group, profile in sorted(attachments.groups.items()):
        yield f"attach_group={profile} {group}"
    for pattern, profile in ordered(attachments.names):
        yield f"attach_name={profile} {pattern}"


def _keys(setting: str, names: list[str]) -> list[str]:
    return [name.lower().replace("-", "_") for name in _checked(setting, _OPTION, names)]


def _checked(setting: str, pattern: re.Pattern[str], names: list[str]) -> list[str]:
    for name in names:
        if not pattern.fullmatch(name):
            raise InputError(f"group.{setting}: {name!r} is not a valid name there; fix or remove it")
    return names


def write_hook_conf(
    hook_dir: Path,
    partitions: list[str],
    lease_s: int,
    valid_until: float,
    rules: GroupSettings,
    attachments: Attachments = NOTHING_ATTACHED,
) -> None:
    """Replace ``hook_dir/hook.conf``. Raises InputError, OSError."""
    replace_file(hook_dir / FILE_NAME, render_hook_conf(partitions, lease_s, valid_until, rules, attachments))


def valid_until(text: bytes) -> int:
    """When the hook stops to lease jobs, in seconds since the epoch. Raises ValueError for a damaged file."""
    head, _, rest = text.partition(b"\n#\n")
    body, _, check = head.rpartition(b"check=")
    until, rules = _VALID_UNTIL.search(body), _RULES.search(body)
    if check.decode("ascii", "replace") != digest(body) or not until or not rules:
        raise ValueError("is damaged (checksum mismatch)")
    if rules[1].decode() != digest(rest):
        raise ValueError("is damaged (checksum mismatch in the rules)")
    return int(until[1])
