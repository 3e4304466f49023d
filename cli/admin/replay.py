"""asrpt-admin snapshot and replay: one decision of asrptd in a file, and made again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from slurm_asrpt_cli._app.tables import Column, fold_nodes, print_prose, safe
from slurm_asrpt_cli.admin.common import ConfigOption, JsonOption, of_asrptd, show_table

from slurm_asrpt.audit import snapshot as snapshots
from slurm_asrpt.config.settings import Settings
from slurm_asrpt.core.reasons import in_words
from slurm_asrpt.daemon.leader import held
from slurm_asrpt.errors import EXIT_FAILURE, AsrptError, printable
from slurm_asrpt.files import replace_file

PATIENCE_S = 60.0
_OUTCOMES = {"start": "starts", "interrupt": "is interrupted", "wait": "waits"}


def add_commands(app: typer.Typer) -> None:
    """Put snapshot and replay into asrpt-admin."""
    app.command("snapshot")(snapshot_command)
    app.command("replay")(replay_command)


def snapshot_command(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to.")] = Path("snapshot.json"),
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write down what asrptd decides from in its next cycle.

    The policy and its settings, its state, the free GPUs
    and the waiting jobs, and what was decided: all that
    asrpt-admin replay needs, and a good bug report. The
    file holds users' names; only its owner may read it.

    \b
    Example:
      asrpt-admin snapshot -o today.json
    """
    settings = of_asrptd(config, trusted=True)
    data = _ask(settings)
    found = snapshots.from_bytes(data, str(settings.paths.state / snapshots.FILE_NAME))
    replace_file(output, data, mode=0o600)
    jobs, starts = len(found.inputs.get("jobs", ())), sum("start" in each for each in found.decisions)
    if as_json:
        print(json.dumps({"file": str(output), "digest": found.digest, "jobs": jobs, "starts": starts}))
    else:
        print(f"{safe(str(output))}: jobs waiting: {jobs}, starts: {starts}, inputs {found.digest}")


def _ask(settings: Settings) -> bytes:
    """Raises AsrptError where no asrptd decides, or the state folder is not ours."""
    state = settings.paths.state
    try:
        if not held(state):
            raise AsrptError("asrptd does not run, so nothing is decided (systemctl start asrptd)")
        return snapshots.ask_for(state, PATIENCE_S + 3 * settings.daemon.interval_s, lambda: not held(state))
    except OSError as error:
        raise AsrptError(f"{error.filename or state}: {error.strerror}; run this as root") from error


def replay_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What asrpt-admin snapshot has written.")],
    as_json: JsonOption = False,
) -> None:
    """Make the decision of a snapshot again, offline.

    Slurm is not asked and nothing is written. Exit status
    1, and the difference, if it comes out differently:
    with another release, that is what has changed.

    \b
    Examples:
      asrpt-admin replay today.json
      asrpt-admin replay --json today.json
    """
    then = snapshots.read(file)
    now, others = snapshots.replay(then, str(file))
    changed = snapshots.difference(then.decisions, now)
    if as_json:
        same = {"same": not changed, "digest": then.digest, "release": then.release}
        outcome = {"decisions": now, "others": others, "difference": changed}
        print(json.dumps({"kind": "asrpt-admin replay", "schema": 1, **same, **outcome}))
    else:
        _show([*now, *others])
        made = f"made by release {safe(then.release)}" if then.release else "made by a release that it does not name"
        verdict = "other decisions than then" if changed else "the same decisions as then"
        print(f"inputs {then.digest}, {made}: {verdict}")
        for line in changed:
            print(printable(line))
    if changed:
        raise typer.Exit(EXIT_FAILURE)


def _show(decisions: list[dict[str, Any]]) -> None:
    if not decisions:
        print_prose(
            "no job waits for the policy; those that Slurm holds, or that are left to it, are not in a snapshot"
        )
        return
    jobs = [safe(str(each["job"])) for each in decisions]
    outcome = [next(word for key, word in _OUTCOMES.items() if key in each) for each in decisions]
    show_table([Column("JOBID", jobs), Column("", outcome), Column("WHAT", [safe(_what(each)) for each in decisions])])


def _what(decision: dict[str, Any]) -> str:
    if "interrupt" in decision:
        return f"for job {decision['interrupt']}"
    if "start" in decision:
        return f"{fold_nodes(decision['start']['gpus'])}, alpha {decision['start']['alpha']:.4g} s"
    return in_words(decision["wait"]["reason"], decision["wait"]["facts"])
