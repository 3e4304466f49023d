"""asrpt-profile attach: define which jobs use which profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from slurm_asrpt_cli._app.options import ConfigOption, JsonOption
from slurm_asrpt_cli._app.tables import Column, safe, show_table

from slurm_asrpt.errors import InputError
from slurm_asrpt.files import replace_file
from slurm_asrpt.hook.attachments import (
    GROUP,
    JOB_NAME,
    Attachments,
    attach,
    format_attachments,
    ordered,
    read_attachments,
)
from slurm_asrpt.profile.documents import load_named

if TYPE_CHECKING:
    from slurm_asrpt.config.settings import Settings


def attach_command(
    profile: Annotated[str | None, typer.Argument(metavar="PROFILE", help="A name from asrpt-profile list.")] = None,
    group: Annotated[str | None, typer.Option(metavar="ID", help="Jobs of this group (see asrpt-admin group).")] = None,
    job_name: Annotated[
        str | None, typer.Option("--job-name", "-J", metavar="PATTERN", help="Jobs with this name; * matches any text.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the attached profile.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Attach a profile to jobs; without options, list them.

    For administrators. Applies to jobs whose --comment names
    no profile. A model without stages is cut into stages as
    the job's launcher says.

    \b
    Examples:
      asrpt-profile attach
      asrpt-profile attach llama-3-8b --job-name 'llama-*'
      asrpt-profile attach --remove --job-name 'llama-*'
    """
    from slurm_asrpt.config.settings import load_settings

    settings = load_settings(config)
    before = read_attachments(settings.paths.attachments)
    if group is None and job_name is None:
        if profile is not None or remove:
            raise InputError("give --group ID or --job-name PATTERN")
        _show(before, as_json)
        return
    kind, what = _target(group, job_name)
    if (profile is None) is not remove:
        raise InputError("give a profile, or --remove" if profile is None else "--remove takes no profile")
    if profile:
        load_named(profile, settings.paths.profiles)
    after = attach(before, kind, what, profile or "")
    if after != before:
        _write(after, settings)
    _tell(kind, what, profile or "", after != before, as_json)


def _target(group: str | None, job_name: str | None) -> tuple[str, str]:
    if group is not None and job_name is not None:
        raise InputError("give only one of --group and --job-name")
    return (GROUP, group) if group is not None else (JOB_NAME, job_name or "")


def _write(after: Attachments, settings: Settings) -> None:
    """Write the attachments if hook.conf can express them. Raises InputError."""
    from slurm_asrpt.hook.hook_conf import render_hook_conf

    render_hook_conf(settings.slurm.partitions, 0, 0.0, settings.group, after)
    path: Path = settings.paths.attachments
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: no such directory; create it, or set paths.attachments")
    try:
        replace_file(path, format_attachments(after).encode())
    except OSError as error:
        raise InputError(f"{path}: cannot write ({error.strerror}); run asrpt-profile attach as root") from None


def _tell(kind: str, what: str, profile: str, changed: bool, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"kind": kind, "what": what, "profile": profile or None, "changed": changed}))
    elif not changed:
        print(f"{kind} {safe(what)}: {f'already has profile {safe(profile)}' if profile else 'has no profile'}")
    else:
        now = f"jobs use profile {safe(profile)}" if profile else "jobs use no profile"
        print(f"{kind} {safe(what)}: {now} from asrptd's next cycle on")


def _show(attachments: Attachments, as_json: bool) -> None:
    rows = [(GROUP, *item) for item in sorted(attachments.groups.items())]
    rows += [(JOB_NAME, *item) for item in ordered(attachments.names)]
    if as_json:
        print(json.dumps([{"kind": kind, "what": what, "profile": profile} for kind, what, profile in rows]))
    elif rows:
        kinds, whats, profiles = zip(*rows, strict=True)
        columns = [Column("BY", kinds), Column("WHAT", list(map(safe, whats)), cap=40)]
        show_table([*columns, Column("PROFILE", list(map(safe, profiles)))])
    else:
        print("no profiles are attached")
