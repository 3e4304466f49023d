"""What asrpt-sim what-if does: it reads the jobs of Slurm, simulates them, and shows the answer."""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import typer
from slurm_asrpt_cli._app.known_site import known_site, limits_of
from slurm_asrpt_cli._app.options import check_folder
from slurm_asrpt_cli._app.progress import Told, progress
from slurm_asrpt_cli._app.shares import show_shares
from slurm_asrpt_cli._app.tables import Column, print_prose, print_table, terminal_width
from slurm_asrpt_cli._app.users import own_name
from slurm_asrpt_cli.sim.options import fit, print_json, retrain_seconds, say

from slurm_asrpt.config.settings import SlurmSettings, load_settings
from slurm_asrpt.errors import EXIT_INTERRUPTED, InputError
from slurm_asrpt.files import replace_file
from slurm_asrpt.reporting import what_if as whatif_page
from slurm_asrpt.sim import what_if as whatif
from slurm_asrpt.sim.what_if_remarks import remarks, unlike_slurm
from slurm_asrpt.traces import Trace, accounting

GIVES_WAY = (
    *("never_started", "mean_slowdown", "p90_wait_s", "max_wait_s"),
    *("later_than_real", "p50_wait_s", "mean_jct_s", "p99_wait_s", "jct_over_real"),
)
"""Figures that a narrow terminal drops, the least important first."""
SINCE = "30days"


class Source(NamedTuple):
    """Where the jobs, the servers and the rules of the site come from: the options of the command."""

    sacct: bool
    since: str
    dump: Path | None
    partition: str
    nodes: Path | None
    servers: int
    gpus: int
    limits: Path | None
    no_limits: bool
    slurm: Path | None


def replay_past_jobs(
    source: Source, policies: str, history: float, retrain: str, seed: int, output: Path | None, as_json: bool
) -> None:
    """Raises InputError."""
    names = whatif.checked_policies(policies) if policies else whatif.default_policies()
    if output:
        check_folder("--output", output)
    if source.limits and source.no_limits:
        raise InputError("give only one of --limits and --no-limits")
    again = retrain_seconds(retrain)
    live = load_settings().slurm if source.sacct else None
    trace = _jobs(live, source.dump, source.since, source.partition)
    past = whatif.replay(trace, _node_gpus(source, live), history, seed, again)
    past = _as_site(past, source, live)
    if source.sacct:
        past = replace(past, notes={**past.notes, "only_user": accounting.only_user(trace, own_name())})
    with progress("simulating", len(names) * len(past.table)) as bar:
        outcomes, interrupted = whatif.compare(past, names, _counted(bar))
    if output:
        page = whatif_page.page(past, outcomes, interrupted)
        replace_file(output, page.encode("utf-8", "backslashreplace"), mode=0o600)  # it has user names
    if as_json:
        print_json(whatif.document(past, outcomes, interrupted))
    else:
        _print(past, outcomes, output)
    if interrupted:
        say("interrupted; some policies are missing")
        raise typer.Exit(EXIT_INTERRUPTED)


def _jobs(live: SlurmSettings | None, dump: Path | None, since: str, partition: str) -> Trace:
    """The jobs, from sacct or from a dump of its output."""
    if partition:
        accounting.partition_argument(partition)
    if live and not dump:
        separator = f"|{secrets.token_hex(4)}|"
        begin = accounting.since_argument(since or SINCE, time.time())
        text = accounting.ask_sacct(live, accounting.sacct_fields(), begin, partition, separator)
        return accounting.parse_jobs(text, "sacct", separator)
    if dump and not live:
        if since:
            raise InputError("--since requires --sacct; of a file, all jobs are used")
        return _of_partitions(accounting.parse_jobs(accounting.read_text(dump), str(dump)), partition)
    fields = ",".join(accounting.sacct_fields())
    command = f"sacct --allusers --allocations --parsable2 --starttime=now-30days --format={fields}"
    raise InputError(f"give --sacct or --dump FILE; create the file with: SLURM_TIME_FORMAT=%s {command}")


def _of_partitions(trace: Trace, partition: str) -> Trace:
    """The jobs of these partitions; a dump may contain others."""
    if not partition:
        return trace
    kept = trace.jobs[trace.jobs["queue"].isin(partition.split(","))].reset_index(drop=True)
    if not len(kept):
        raise InputError(f"--partition {partition}: {trace.name} has no job in it")
    later_s = kept["submit_s"].iloc[0]
    kept["submit_s"] -= later_s
    left_out = {**trace.left_out, "in other partitions": len(trace) - len(kept)}
    first_at = trace.first_at + later_s if trace.first_at is not None else None
    return replace(trace, jobs=kept, left_out=left_out, first_at=first_at)


def _node_gpus(source: Source, live: SlurmSettings | None) -> list[int]:
    """GPUs of each server: from --servers, a file, or sinfo."""
    if source.servers and source.nodes:
        raise InputError("give only one of --nodes and --servers")
    if source.servers:
        return [source.gpus] * source.servers
    if source.nodes:
        return [node.gpus for node in accounting.parse_sinfo(accounting.read_text(source.nodes), str(source.nodes))]
    if live is None:
        raise InputError(
            f"--dump needs --servers N, or --nodes FILE; create the file with: {shlex.join(accounting.SINFO)}"
        )
    return [node.gpus for node in accounting.parse_sinfo(accounting.ask_sinfo(live, source.partition))]


def _as_site(past: whatif.Past, source: Source, live: SlurmSettings | None) -> whatif.Past:
    """The jobs with the Slurm and the limits of the site, as far as these are known."""
    site, trouble = known_site(source.slurm, live)
    if trouble:
        past = replace(past, notes={**past.notes, "limits_unread": trouble})
    if site:
        past = whatif.under_slurm(past, *site)
    limits = None if source.no_limits else limits_of(site, source.limits)
    return past if limits is None else whatif.under_limits(past, limits)


def _counted(bar: Told) -> Callable[[str, int, int], None]:
    """A callback that advances a bar over all policies by the jobs that have ended in one."""
    names: list[str] = []

    def told(name: str, done: int, jobs: int) -> None:
        if name not in names:
            names.append(name)
        bar((len(names) - 1) * jobs + done, name)

    return told


def _print(past: whatif.Past, outcomes: list[whatif.Outcome], output: Path | None) -> None:
    shown = whatif.ours(outcomes)
    shares, said = whatif.by_group(past, shown, outcomes) if shown else ({}, "")
    print_prose(said)
    for line in unlike_slurm(outcomes):
        print_prose(line)
    print()
    columns = [Column("POLICY", [each.name for each in outcomes])]
    for name in whatif_page.COLUMNS:
        if all(each.figures[name] is None for each in outcomes):
            continue  # without a simulated Slurm, no ratio to it
        cells = [whatif_page.cell(name, each.figures[name]) for each in outcomes]
        columns.append(Column(_title(name), cells, right=True))
    width = terminal_width()
    print_table(fit(columns, width, 1, [_title(name) for name in GIVES_WAY]) if width else columns, True, width)
    if known := [f"{each.name}: {whatif.WORDS[each.policy]}" for each in outcomes if each.policy in whatif.WORDS]:
        print_prose("; ".join(known))
    for group, found in shares.items():
        show_shares(group, found)
    print()
    for line in (*remarks(past), *past.notes["limits"], *([f"Written to {output}"] if output else [])):
        print_prose(line)


def _title(name: str) -> str:
    return whatif_page.COLUMNS[name].upper().replace(" ", "_")
