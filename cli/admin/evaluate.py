"""asrpt-admin evaluate: compare predictors on the history or on a trace."""

from __future__ import annotations

from typing import Annotated

import typer
from slurm_asrpt_cli._app.help import seldom
from slurm_asrpt_cli._app.options import ConfigOption, JsonOption
from slurm_asrpt_cli.sim.options import AUTO, SeldomColumns, SeldomFormat, SeldomProcessors

HISTORY = "history"


def evaluate(
    data: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help=f"{HISTORY}, or a trace: a file, a directory, pai-like[:jobs[:days]], philly, itp or helios.",
        ),
    ] = HISTORY,
    fmt: SeldomFormat = AUTO,
    column: SeldomColumns = None,
    processors_as_gpus: SeldomProcessors = False,
    train: Annotated[float, typer.Option(metavar="SHARE", help="Share of the jobs to learn from (the first).")] = 0.8,
    judge: Annotated[
        float, seldom(metavar="SHARE", help="Share of the jobs to test on (the next); 1: all others.")
    ] = 1.0,
    rolling: Annotated[bool, typer.Option("--rolling", help="Also test with retraining every --retrain.")] = False,
    retrain: Annotated[str, seldom(metavar="TIME", help="Seconds, or 30min, 1h, 1d.")] = "1d",
    predictor: Annotated[list[str] | None, seldom(metavar="NAME", help="Only this predictor; may be repeated.")] = None,
    learn_from: Annotated[
        list[str] | None, seldom(metavar="STATE", help="Learn only from runs in this state; may be repeated.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=0, metavar="N", help="Jobs to simulate; 0: none.")] = 3000,
    load: Annotated[float, seldom(min=0.01, max=100, metavar="LOAD", help="Load of the simulated cluster.")] = 1.0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare predictors on unseen jobs.

    They learn from the first jobs and predict the others.

    \b
    Examples:
      asrpt-admin evaluate --rolling
      asrpt-admin evaluate --data pai-like:20000 --json
    """
    from slurm_asrpt_cli.admin.evaluation import Source, Trial, evaluate_predictors

    source = Source("" if data == HISTORY else data, fmt, column or [], processors_as_gpus, learn_from or [])
    trial = Trial(predictor or [], train, judge, rolling, retrain, jobs, load)
    evaluate_predictors(source, trial, config, as_json)
