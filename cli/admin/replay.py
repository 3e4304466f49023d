"""asrpt-admin snapshot and replay: save one decision of asrptd with its inputs, and repeat it offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from slurm_asrpt_cli._app.options import ConfigOption, JsonOption, check_folder
from slurm_asrpt_cli._app.tables import Column, fold_nodes, print_prose, safe, show_table
from slurm_asrpt_cli.admin.access import of_asrptd

from slurm_asrpt.daemon.leader import held
from slurm_asrpt.errors import EXIT_FAILURE, AsrptError, printable
from slurm_asrpt.files import replace_file
from slurm_asrpt.status.reason_texts import in_words
from slurm_asrpt.text import counted

if TYPE_CHECKING:
    from slurm_asrpt.config.settings import Settings

PATIENCE_S = 60.0
_OUTCOMES = {"start": "starts", "interrupt": "is preempted", "wait": "waits"}


def snapshot_command(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Output file.")] = Path(
        "snapshot.json"
    ),
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Save the inputs and decisions of asrptd's next cycle.

    Saves the policy with its settings and state, the free
    GPUs, the waiting jobs, and the decisions: what replay
    needs, and a good bug report. The file contains user
    names; only its owner can read it.

    \b
    Example:
      asrpt-admin snapshot -o today.json
    """
    from slurm_asrpt.audit import snapshot as snapshots

    check_folder("--output", output)
    settings = of_asrptd(config, trusted=True)
    data = _ask(settings)
    found = snapshots.from_bytes(data, str(settings.paths.state / snapshots.FILE_NAME))
    replace_file(output, data, mode=0o600)
    jobs, starts = len(found.inputs.get("jobs", ())), sum("start" in each for each in found.decisions)
    if as_json:
        print(json.dumps({"file": str(output), "digest": found.digest, "jobs": jobs, "starts": starts}))
    else:
        name = safe(str(output))
        print(f"{name}: {counted(jobs, 'waiting job')}, {counted(starts, 'start')}, inputs {found.digest}")
        print(f"asrpt-admin replay {name} repeats these decisions on any machine. It contains user names.")


def _ask(settings: Settings) -> bytes:
    """Raises AsrptError if asrptd is not running, or the state directory is not readable."""
    from slurm_asrpt.audit import snapshot as snapshots

    state = settings.paths.state
    try:
        if not held(state):
            raise AsrptError("asrptd is not running, so it decides nothing (systemctl start asrptd)")
        return snapshots.ask_for(state, PATIENCE_S + 3 * settings.daemon.interval_s, lambda: not held(state))
    except OSError as error:
        raise AsrptError(f"{error.filename or state}: {error.strerror}; run this as root") from error


def replay_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file from asrpt-admin snapshot.")],
    as_json: JsonOption = False,
) -> None:
    """Repeat the decisions of a snapshot offline.

    Does not contact Slurm and writes nothing. If a decision
    differs, prints the difference and exits with status 1:
    with another release, that is what has changed.

    \b
    Examples:
      asrpt-admin replay today.json
      asrpt-admin replay --json today.json
    """
    from slurm_asrpt.audit import snapshot as snapshots

    then = snapshots.read(file)
    now, others = snapshots.replay(then, str(file))
    changed = snapshots.difference(then.decisions, now)
    if as_json:
        same = {"same": not changed, "digest": then.digest, "release": then.release}
        outcome = {"decisions": now, "others": others, "difference": changed}
        print(json.dumps({"kind": "asrpt-admin replay", "schema": 1, **same, **outcome}))
    else:
        _show([*now, *others])
        made = f"made by release {safe(then.release)}" if then.release else "made by an unknown release"
        verdict = "different decisions" if changed else "the same decisions"
        print(f"inputs {then.digest}, {made}: {verdict}")
        for line in changed:
            print(printable(line))
    if changed:
        raise typer.Exit(EXIT_FAILURE)


def _show(decisions: list[dict[str, Any]]) -> None:
    if not decisions:
        print_prose("no job waits for the policy; a snapshot does not include jobs that Slurm holds or schedules")
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
