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
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.errors import Collected, InputError, as_one
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
    errors = Collected()
    with errors:
        _check_partitions(partitions)
    with errors:
        rest = render_rules(rules, attachments)
    errors.check()
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


def _check_partitions(names: list[str]) -> None:
    wrong = [name for name in names if not _PARTITION.fullmatch(name)]
    if wrong:
        what = "is not a valid partition name; use the names in slurm.conf"
        raise as_one(InputError(f"slurm.partitions: {name!r} {what}") for name in wrong)


def render_rules(rules: GroupSettings, attachments: Attachments = NOTHING_ATTACHED) -> bytes:
    """The lines behind the #. Raises InputError for a name or text that the format cannot hold."""
    lines = [*_rule_lines(rules), *_attachment_lines(attachments)]
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def _rule_lines(rules: GroupSettings) -> list[str]:
    flags = ("strip_comments", "fold_digits", "fold_dates", "arguments")
    errors, lines = Collected(), [f"{flag}={int(getattr(rules, flag))}" for flag in flags]
    for line in _lines_of(rules):
        with errors:
            lines.append(line())
    errors.check()
    return lines


def _lines_of(rules: GroupSettings) -> Iterator[Callable[[], str]]:
    """Functions that make the lines, since one that raises InputError must not end the others."""
    yield from (partial(_ignore_line, text) for text in rules.ignore_lines)
    yield from (partial(_feature, line) for line in rules.features)
    yield partial(_list_of_options, rules.ignore_options)
    yield partial(_list_of_commands, "ignore_commands", rules.ignore_commands)
    yield partial(_list_of_commands, "setup_commands", rules.setup_commands)
    yield from (partial(_launcher, line) for line in rules.launchers)
    yield from (partial(_size, line) for line in rules.sizes)


def _ignore_line(text: str) -> str:
    if not text or "\n" in text:
        raise InputError(f"group.ignore_lines: {text!r} is empty or contains a line break; remove it")
    return f"ignore_line={text}"


def _feature(line: str) -> str:
    name, *others = _keys("features", line.split() or [""])
    if not _FEATURE.fullmatch(name):
        raise InputError(f"group.features: {name!r} is not a valid feature name; use letters, digits and _")
    return f"feature={' '.join([name, *others])}"


def _list_of_options(names: list[str]) -> str:
    return f"ignore_options={' '.join(_keys('ignore_options', names))}"


def _list_of_commands(setting: str, names: list[str]) -> str:
    return f"{setting}={' '.join(_checked(setting, _COMMAND, names))}"


def _launcher(line: str) -> str:
    name, *options = line.split() or [""]
    _checked("launchers", _LAUNCHER, [name])
    return f"launcher={' '.join([name, *_keys('launchers', options)])}"


def _size(line: str) -> str:
    name, *others = line.split() or [""]
    if name not in SIZES:
        raise InputError(f"group.sizes: unknown size {name!r}; begin each line with one of {', '.join(SIZES)}")
    return f"size={' '.join([name, *_keys('sizes', others)])}"


def _attachment_lines(attachments: Attachments) -> Iterator[str]:
    for group, profile in sorted(attachments.groups.items()):
        yield f"attach_group={profile} {group}"
    for pattern, profile in ordered(attachments.names):
        yield f"attach_name={profile} {pattern}"


def _keys(setting: str, names: list[str]) -> list[str]:
    return [name.lower().replace("-", "_") for name in _checked(setting, _OPTION, names)]


def _checked(setting: str, pattern: re.Pattern[str], names: list[str]) -> list[str]:
    wrong = [name for name in names if not pattern.fullmatch(name)]
    if wrong:
        what = "is not a valid name there; fix or remove it"
        raise as_one(InputError(f"group.{setting}: {name!r} {what}") for name in wrong)
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
