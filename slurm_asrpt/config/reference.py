"""The pages made from the settings, ``etc/asrpt.toml``, ``man/asrpt.toml.5`` and ``docs/settings.md``.

Write them with ``python -m slurm_asrpt.config.reference``.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from slurm_asrpt.config.location import DEFAULT_PATH, ENVIRONMENT_VARIABLE
from slurm_asrpt.config.settings import Settings
from slurm_asrpt.core.policies.registry import BUILT_IN, banded_policies, policies_with

WIDTH, MOST_ROFF = 100, 80

# A setting's unit is the end of its name.
UNITS = {"_bytes_per_s": "bytes per second", "_s": "seconds"}
TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "array": "list",
    "object": "table of numbers by name",
}
BOUNDS = {
    "minimum": "at least {:.12g}",
    "exclusiveMinimum": "above {:.12g}",
    "maximum": "at most {:.12g}",
    "exclusiveMaximum": "below {:.12g}",
    "minItems": "at least {:.12g} entry",
}


@dataclass(frozen=True)
class Setting:
    """One setting in words. kind: type, unit and bounds; default: as TOML."""

    name: str
    text: str
    kind: str
    default: str


def sections() -> Iterator[tuple[str, str, list[Setting]]]:
    """Each section: its name, its text and its settings."""
    for name, field in Settings.model_fields.items():
        section = field.annotation
        assert isinstance(section, type) and issubclass(section, BaseModel)  # noqa: S101, PT018  Settings is ours
        schema = section.model_json_schema()
        settings = [
            Setting(key, _text(name, key, sub), _kind(key, schema, schema["properties"][key]), _toml(_default(sub)))
            for key, sub in section.model_fields.items()
        ]
        yield name, (section.__doc__ or "").strip(), settings


def example() -> str:
    """``etc/asrpt.toml``: every setting with its default, commented out."""
    lines = [
        f"# Settings of slurm-asrpt. The file is {DEFAULT_PATH}, or named by ${ENVIRONMENT_VARIABLE} or --config.",
        "# Lines that begin with '#name =' show the defaults: take the '#' away to change one. man 5 asrpt.toml",
        "# Written by python -m slurm_asrpt.config.reference from slurm_asrpt/config/settings.py.",
    ]
    for name, text, settings in sections():
        lines += ["", f"# {text}", f"[{name}]"]
        for setting in settings:
            lines += ["", *_comment(setting.text), *_comment(f"({setting.kind})")]
            lines.append(f"#{setting.name} = {setting.default}")
    return "\n".join(lines) + "\n"


def manual() -> str:
    """``man/asrpt.toml.5`` in mdoc."""
    lines = [_HEAD.format(path=DEFAULT_PATH, variable=ENVIRONMENT_VARIABLE)]
    for name, text, settings in sections():
        lines += [f".Ss [{name}] section", roff(text), ".Bl -tag -width Ds"]
        for setting in settings:
            lines += [f".It Cm {setting.name}", roff(setting.text)]
            lines += [".br", roff(f"{setting.kind}; default: {setting.default}")]
        lines.append(".El")
    return tidy("\n".join(lines) + "\n" + _TAIL)


def markdown() -> str:
    """``docs/settings.md``: a table for each section."""
    lines = [_MARKDOWN_HEAD.format(path=DEFAULT_PATH, variable=ENVIRONMENT_VARIABLE)]
    for name, text, settings in sections():
        lines += [f"\n## [{name}]\n", text, "", "| Setting | Default | What it says |", "|---|---|---|"]
        for setting in settings:
            what = f"{setting.text} ({setting.kind})".replace("|", r"\|").replace("<", "&lt;")
            lines.append(f"| `{setting.name}` | `{setting.default.replace('|', chr(92) + '|')}` | {what} |")
    return "\n".join(lines) + "\n"


def roff(text: str) -> str:
    """``text`` as roff input: nothing in it is a macro or an escape, sentences begin on lines of their own."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("^", r"\(ha")
    text = re.sub(r"(?<!e\.g)\. ", ".\n", text)
    return "\n".join(rf"\&{line}" if line[:1] in ".'" else line for line in text.splitlines())


def tidy(page: str) -> str:
    """The same page with no long line in its prose, as mandoc wants it."""
    lines, literal = list[str](), False
    for line in page.splitlines():
        literal = line.startswith(".Bd") or (literal and not line.startswith(".Ed"))
        if literal or line[:1] in (".", "'") or len(line) <= MOST_ROFF:
            lines.append(line)
            continue
        wrapped = textwrap.wrap(line, MOST_ROFF - 2, break_on_hyphens=False, break_long_words=False)
        lines += [rf"\&{part}" if part[0] in ".'" else part for part in wrapped]
    return "\n".join(lines) + "\n"


def _text(section: str, key: str, field: FieldInfo) -> str:
    """What a setting says; in [policy] also which policies it is for, as they declare it."""
    takers: list[str] = []
    if section == "policy":
        takers = policies_with(key) if key != "fairshare_bands" else [n for n in banded_policies() if n in BUILT_IN]
    return (field.description or "") + (f" Policies: {', '.join(takers)}." if takers else "")


def _kind(name: str, schema: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    if "$ref" in entry:
        entry = schema["$defs"][entry["$ref"].rpartition("/")[2]]
    words = [_type(name, entry)]
    words += [text.format(entry[key]) for key, text in BOUNDS.items() if key in entry]
    return ", ".join(words)


def _type(name: str, entry: Mapping[str, Any]) -> str:
    choices = entry.get("enum") or _choices(entry.get("pattern", ""))
    if choices:
        return "one of " + ", ".join(choices)
    if entry.get("format") == "path":
        return "path"
    if entry["type"] == "array":
        return "list of " + ("paths" if entry["items"].get("format") == "path" else "texts")
    unit = next((unit for end, unit in UNITS.items() if name.endswith(end)), "")
    return TYPES[entry["type"]] + (f" of {unit}" if unit else "")


def _choices(pattern: str) -> list[str]:
    """The words of ``^(a|b)$``."""
    inner = pattern.removeprefix("^(").removesuffix(")$")
    return inner.split("|") if len(inner) == len(pattern) - 4 else []


def _default(field: FieldInfo) -> Any:
    return field.get_default(call_default_factory=True)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return json.dumps(value.value)
    if isinstance(value, float):
        return f"{value:g}" if value >= 1e6 else str(value)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(part)}" for key, part in value.items()) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return str(value) if isinstance(value, int) else json.dumps(str(value), ensure_ascii=False)


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, WIDTH - 2, break_on_hyphens=False, break_long_words=False)]


_HEAD = r""".\" Written by python -m slurm_asrpt.config.reference from slurm_asrpt/config/settings.py; change that.
.Dd November 22, 2026
.Dt ASRPT.TOML 5
.Os
.Sh NAME
.Nm asrpt.toml
.Nd settings of slurm-asrpt
.Sh DESCRIPTION
.Nm
holds the settings of
.Xr asrptd 8 ,
.Xr asrpt-admin 8
and
.Xr asrpt-status 1 .
It is a TOML file with one table per section.
Every setting may be left out, and the whole file too: the defaults are below.
An unknown section or setting is an error, so a misspelt name is never ignored.
.Pp
The file is the one named by
.Fl -config ,
else by the environment variable
.Ev {variable} ,
else
.Pa {path} ."""

_TAIL = r""".Sh FILES
.Bl -tag -width Ds
.It Pa /etc/slurm/asrpt.toml
The settings.
.It Pa etc/asrpt.toml
In the source tree: every setting with its default, commented out.
.El
.Sh EXAMPLES
A cluster with 100 Gbit/s network cards whose partitions
.Ql a100
and
.Ql h100
are handed over, still without writing anything to Slurm:
.Bd -literal -offset indent
[slurm]
partitions = ["a100", "h100"]

[daemon]
mode = "shadow"

[fabric]
inter_bytes_per_s = 12.5e9
.Ed
.Sh SEE ALSO
.Xr asrpt-status 1 ,
.Xr slurm.conf 5 ,
.Xr asrpt-admin 8 ,
.Xr asrptd 8
"""


_MARKDOWN_HEAD = """\
# Settings

Every setting of `{path}`, or of the file that `--config` or `${variable}` names. Each may be left
out, and so may the file; an unknown name is an error. An empty file means the defaults, this machine's folders among
them: no other file is read. asrptd reads it when it starts. The same in `man 5 asrpt.toml` and, ready to be edited, in
[etc/asrpt.toml](../etc/asrpt.toml).

Written by `python -m slurm_asrpt.config.reference` from `slurm_asrpt/config/settings.py`."""


def write(root: Path) -> None:
    """Write the files into the tree at ``root``."""
    (root / "etc" / "asrpt.toml").write_text(example(), encoding="utf-8")
    (root / "man" / "asrpt.toml.5").write_text(manual(), encoding="utf-8")
    (root / "docs" / "settings.md").write_text(markdown(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2])
