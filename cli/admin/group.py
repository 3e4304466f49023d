"""asrpt-admin group: the recurrence group of a job script, and why."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from slurm_asrpt_cli._app.options import ConfigOption, JsonOption
from slurm_asrpt_cli._app.submission import read_script
from slurm_asrpt_cli._app.users import find_user

from slurm_asrpt.errors import InputError, printable
from slurm_asrpt.hook.job_script import directives, gpus_asked, job_name
from slurm_asrpt.hook.tag import render_features

if TYPE_CHECKING:
    from slurm_asrpt.config.settings import Settings
    from slurm_asrpt.hook.group import Dissected


def group_command(
    scripts: Annotated[list[Path], typer.Argument(metavar="SCRIPT", help="Job scripts.")],
    diff: Annotated[bool, typer.Option("--diff", help="Show why two scripts are in different groups.")] = False,
    name: Annotated[
        str | None, typer.Option("--job-name", "-J", metavar="NAME", help="Job name; default: as sbatch finds it.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="USER", help="User name or ID; default: you.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the recurrence group of job scripts, and why.

    Each line shows the words that count; below it are the words
    that a rule ignores.

    \b
    Examples:
      asrpt-admin group train.sh
      asrpt-admin group --diff monday.sh tuesday.sh
    """
    from slurm_asrpt.config.settings import load_settings

    if diff and len(scripts) != 2:
        raise InputError(f"--diff compares two scripts, not {len(scripts)}; give two")
    settings = load_settings(config)
    uid, _ = find_user(user)
    found = [_dissect(path, name, uid, settings) for path in scripts]
    if diff:
        _show_diff(scripts, found, as_json)
    elif as_json:
        print(json.dumps([{"script": str(path)} | asdict(e) for path, e in zip(scripts, found, strict=True)]))
    else:
        for path, dissected in zip(scripts, found, strict=True):
            _show(path, dissected)


def _dissect(path: Path, name: str | None, uid: int, settings: Settings) -> Dissected:
    from slurm_asrpt.hook.group import dissect, parse_comment

    script = read_script(path)
    hints = parse_comment(os.fsencode(directives(script).get("comment", "")))
    job = os.fsencode(name or job_name(script, path))
    return dissect(uid, job, script, hints.dataset.encode(), gpus_asked(script), settings.group)


def _show(path: Path, dissected: Dissected) -> None:
    rows = {
        "group": dissected.group,
        "job name": dissected.job_name,
        "dataset hint": dissected.dataset,
        "program": ", ".join(dissected.programs),
        "features": render_features(dissected.features),
        "sizes": dissected.sizes,
    }
    print(f"{printable(str(path))}:")
    for key, value in [*rows.items(), *((f"key {level}", key) for level, key in dissected.keys.items())]:
        if value:
            print(f"  {key + ':':<14}{printable(value)}")
    print("  words that count, and words that do not:")
    for line in dissected.lines:
        print(f"    {printable(line.counts) or '(nothing)'}")
        for rule, words in groupby(line.set_aside, key=itemgetter(0)):
            print(f"      {rule}: {printable(' '.join(word for _, word in words))}")


def _show_diff(paths: list[Path], found: list[Dissected], as_json: bool) -> None:
    from slurm_asrpt.hook.group import differences

    one, two = found
    reasons = differences(one, two)
    if as_json:
        groups = {str(path): dissected.group for path, dissected in zip(paths, found, strict=True)}
        print(json.dumps({"same": one.group == two.group, "groups": groups, "differences": reasons}))
        return
    for path, dissected in zip(paths, found, strict=True):
        print(f"{dissected.group}  {printable(str(path))}")
    if one.group == two.group:
        print("same group: their differences, if any, do not count")
        return
    print("different groups, because of:")
    for what, text in reasons:
        print(printable(text) if what == "line" else f"{what}: {printable(text)}")
