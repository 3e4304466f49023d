"""asrpt-sim what-if: replay the jobs that Slurm has run with other policies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from slurm_asrpt_cli._app.help import seldom
from slurm_asrpt_cli.sim.options import RETRAIN, Json, Retrain


def what_if(
    sacct: Annotated[bool, typer.Option("--sacct", help="Query sacct and sinfo on this machine.")] = False,
    since: Annotated[
        str,
        typer.Option(metavar="WHEN", help="Start: 30d, 2weeks or a date.  [default: 30days]", show_default=False),
    ] = "",
    dump: Annotated[Path | None, typer.Option(metavar="FILE", help="A file with the output of sacct.")] = None,
    partition: Annotated[str, typer.Option(metavar="PARTITIONS", help="Only these partitions.")] = "",
    nodes: Annotated[Path | None, typer.Option(metavar="FILE", help="A file with the output of sinfo.")] = None,
    servers: Annotated[int, typer.Option(min=0, metavar="N", help="Number of servers, instead of --nodes.")] = 0,
    gpus: Annotated[int, seldom("--gpus-per-server", min=1, metavar="N", help="GPUs per server, with --servers.")] = 8,
    limits: Annotated[
        Path | None, seldom(metavar="FILE", help="A file with the limits of QOS and accounts, of scontrol.")
    ] = None,
    no_limits: Annotated[bool, seldom("--no-limits", help="Simulate no limits of QOS and accounts.")] = False,
    slurm: Annotated[
        Path | None, seldom("--slurm", metavar="FILE", help="A file with Slurm's settings, of scontrol.")
    ] = None,
    policies: Annotated[
        str, typer.Option("--policies", "-p", metavar="POLICIES", help="Policies (comma-separated).")
    ] = "",
    history: Annotated[
        float,
        seldom(min=0, max=0.95, metavar="SHARE", help="Share of the jobs to learn a forest from; 0: medians."),
    ] = 0.0,
    retrain: Retrain = RETRAIN,
    seed: Annotated[int, seldom(min=0, metavar="N", help="Random seed of the forest.")] = 0,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="HTML", help="Write an HTML report.")] = None,
    as_json: Json = False,
) -> None:
    """Show what other policies would have done with Slurm's jobs.

    Changes nothing. Without options, prints how to create the
    input files.

    \b
    Examples:
      asrpt-sim what-if --sacct --since 30days -o report.html
      asrpt-sim what-if --dump jobs.txt --nodes nodes.txt
    """
    from slurm_asrpt_cli.sim.past_jobs import Source, replay_past_jobs

    source = Source(sacct, since, dump, partition, nodes, servers, gpus, limits, no_limits, slurm)
    replay_past_jobs(source, policies, history, retrain, seed, output, as_json)
