"""asrpt-sim reproduce: the paper's simulations, run again, as a page that compares."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from slurm_asrpt_cli._app.help import seldom
from slurm_asrpt_cli._app.progress import progress
from slurm_asrpt_cli._app.tables import safe
from slurm_asrpt_cli.sim.options import Processes, Retrain, retrain_seconds, say

from papers.asrpt.page import page
from papers.asrpt.simulations import FIGURES, QUICK, Jobs, Results, run
from papers.asrpt.table2 import CASES, MODELS, Row, table2
from papers.hare import simulations as hare
from papers.hare.page import hare_page
from papers.seeded import Kept, Seeds
from papers.sjf_bco import simulations as bco
from papers.sjf_bco.page import bco_page
from slurm_asrpt.errors import EXIT_INTERRUPTED, InputError
from slurm_asrpt.files import replace_file

OURS = (*FIGURES, "table2")
WHAT = (*OURS, *bco.FIGURES, *hare.FIGURES)
_QUICK_CASES, _QUICK_LIMIT_S, _LIMIT_S = 5, 2.0, 60.0


def add_commands(app: typer.Typer) -> None:
    """Put reproduce into asrpt-sim."""
    app.command()(reproduce)


def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="fig6 ... fig9, table2; bco-fig4 ... bco-fig7 or bco; hare-fig14 ... hare-fig27 or hare; or all.",
            show_default=False,
        ),
    ],
    quick: Annotated[bool, typer.Option("--quick", help=f"--divide {QUICK}: shows that it works.")] = False,
    divide: Annotated[int, typer.Option(min=1, metavar="N", help="1/N of jobs and servers.")] = 1,
    seed: Annotated[int, seldom(min=0, metavar="N", help="For all that is random.")] = 0,
    seeds: Annotated[int | None, seldom(min=1, metavar="N", help="bco, hare: this many from --seed.")] = None,
    load: Annotated[float | None, seldom(metavar="LOAD", help="Scale the arrival times to this load.")] = None,
    retrain: Retrain = "0",
    processes: Processes = 2,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep each simulation's figures here, and do not run it again.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the page here, pictures beside it."),
    ] = None,
) -> None:
    """Run the papers' simulations again and compare.

    Takes minutes to hours in full.

    \b
    Examples:
      asrpt-sim reproduce fig6 --quick
      asrpt-sim reproduce hare-fig22 --quick
      asrpt-sim reproduce all --divide 5 --keep d -o page.md
    """
    asked = _asked(what)
    if output and (output.is_dir() or not output.resolve().parent.is_dir()):
        raise InputError(f"--output {output}: name a file in a folder that is there")
    if keep and keep.exists() and not keep.is_dir():
        raise InputError(f"--keep {keep}: is not a folder")
    if load is not None and not 0 < load < 1000:
        raise InputError(f"--load must be above 0, not {load:g}")
    base = Jobs(seed=seed, divide=QUICK if quick else divide, load=load, retrain_s=retrain_seconds(retrain))
    kept = Kept(keep)
    results = Results(kept)
    try:
        with progress("simulating", None) as told:
            figures = [name for name in asked if name in FIGURES]
            run(figures, base, results, processes, lambda done, total, note: told(done, note, total))
        rows = _table2(seed, quick) if "table2" in asked else []
        number = seeds or (bco.QUICK_SEEDS if quick else bco.SEEDS)
        batches = _batches(asked, Seeds(seed, number, processes, kept), output)
        number = seeds or (hare.QUICK_SEEDS if quick else hare.SEEDS)
        rounds = _rounds(asked, Seeds(seed, number, processes, kept), hare.QUICK if quick else divide)
    except KeyboardInterrupt:
        say(f"interrupted; {f'what is done is kept in {safe(str(keep))}' if keep else '--keep DIR keeps what is done'}")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    pages = [page(asked, base, results, rows)] if set(asked) & set(OURS) else []
    text = "\n".join([*pages, *batches, *rounds])
    if output:
        replace_file(output, text.encode(), mode=None)
        print(f"wrote {safe(str(output))}")
    else:
        print(text)


def _asked(what: str) -> list[str]:
    groups = {"all": WHAT, "bco": bco.FIGURES, "hare": hare.FIGURES}
    if what not in (*WHAT, *groups):
        raise InputError(f"nothing of the papers is called {what!r}; known: {', '.join((*WHAT, *groups))}")
    return list(groups.get(what, (what,)))


def _batches(asked: Sequence[str], seeds: Seeds, output: Path | None) -> list[str]:
    """The page of the SJF-BCO paper, if any of its figures are asked for; pictures stand beside it in files."""
    figures = [name for name in asked if name in bco.FIGURES]
    if not figures:
        return []
    with progress("planning", None) as told:
        points = bco.run(figures, replace(seeds, told=lambda done, total, note: told(done, note, total)))
    if output is None:
        return [bco_page(figures, points, seeds)]
    from papers.sjf_bco.plots import write_pictures  # matplotlib takes long to import

    return [bco_page(figures, points, seeds, write_pictures(figures, points, output))]


def _rounds(asked: Sequence[str], seeds: Seeds, divide: int) -> list[str]:
    """The page of Hare's paper, if any of its figures are asked for."""
    figures = [name for name in asked if name in hare.FIGURES]
    if not figures:
        return []
    with progress("simulating rounds", None) as told:
        found = hare.run(figures, replace(seeds, told=lambda done, total, note: told(done, note, total)), divide)
    return [hare_page(figures, found, seeds, divide)]


def _table2(seed: int, quick: bool) -> list[Row]:
    cases, limit = (_QUICK_CASES, _QUICK_LIMIT_S) if quick else (CASES, _LIMIT_S)
    numbers = itertools.count(1)
    with progress("placing", cases * len(MODELS)) as told:
        return table2(seed, cases, limit, lambda: told(next(numbers), ""))
