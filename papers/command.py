"""The commands ``python -m papers``, ``papers.asrpt``, ``papers.sjf_bco`` and ``papers.hare``."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from slurm_asrpt_cli._app.errors import run_app
from slurm_asrpt_cli._app.help import Tool, seldom
from slurm_asrpt_cli._app.progress import progress
from slurm_asrpt_cli._app.tables import safe
from slurm_asrpt_cli.sim.options import Processes, Retrain, retrain_seconds

from papers.asrpt import simulations as asrpt
from papers.asrpt.page import page as asrpt_page
from papers.asrpt.table2 import CASES, MODELS, Row, table2
from papers.hare import simulations as hare
from papers.hare.page import hare_page
from papers.seeded import Kept, OnProgress, Seeds
from papers.sjf_bco import simulations as sjf_bco
from papers.sjf_bco.page import bco_page
from slurm_asrpt.errors import EXIT_INTERRUPTED, InputError
from slurm_asrpt.files import replace_file

QUICK_CASES, QUICK_LIMIT_S, LIMIT_S = 5, 2.0, 60.0
"""Table II: cases with --quick, and seconds for each exact placement, with and without."""
GROUPS: Mapping[str, Sequence[str]] = {
    "asrpt": (*asrpt.FIGURES, "table2"),
    "bco": sjf_bco.FIGURES,
    "hare": hare.FIGURES,
}
"""The figures of each paper."""

Quick = Annotated[bool, typer.Option("--quick", help="A small run that only shows that everything works.")]
Divide = Annotated[int, typer.Option(min=1, metavar="N", help="Use 1/N of the jobs and servers.")]
Seed = Annotated[int, seldom(min=0, metavar="N", help="Seed of all random numbers.")]
NumberOfSeeds = Annotated[int | None, seldom("--seeds", min=1, metavar="N", help="Number of seeds, from --seed on.")]
Load = Annotated[float | None, seldom(metavar="LOAD", help="Scale the arrival times to this load.")]
Keep = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Keep the figures of each simulation here, and reuse them.")
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the page here, and pictures beside it.")
]


@dataclass(frozen=True)
class Request:
    """What a user asks for: the values of the options. load, seeds: None for the paper's."""

    quick: bool = False
    divide: int = 1
    seed: int = 0
    seeds: int | None = None
    load: float | None = None
    retrain_s: float = 0.0
    processes: int = 2
    keep: Path | None = None
    output: Path | None = None

    def checked(self) -> Request:
        """Raises InputError for values that cannot be used."""
        if self.output and (self.output.is_dir() or not self.output.resolve().parent.is_dir()):
            raise InputError(f"--output {self.output}: name a file in an existing directory")
        if self.keep and self.keep.exists() and not self.keep.is_dir():
            raise InputError(f"--keep {self.keep}: not a directory")
        if self.load is not None and not 0 < self.load < 1000:
            raise InputError(f"--load must be above 0, not {self.load:g}")
        return self

    def several(self, full: int, quick: int) -> Seeds:
        """The seeds: as many as asked for, else ``full``, or ``quick`` with --quick."""
        return Seeds(self.seed, self.seeds or (quick if self.quick else full), self.processes, Kept(self.keep))


def _asrpt(asked: Sequence[str], request: Request) -> str:
    divide = asrpt.QUICK if request.quick else request.divide
    base = asrpt.Jobs(seed=request.seed, divide=divide, load=request.load, retrain_s=request.retrain_s)
    results = asrpt.Results(Kept(request.keep))
    with _progress_bar("simulating") as on_progress:
        asrpt.run([name for name in asked if name in asrpt.FIGURES], base, results, request.processes, on_progress)
    rows = _table2(request) if "table2" in asked else []
    return asrpt_page(asked, base, results, rows)


def _table2(request: Request) -> list[Row]:
    cases, limit = (QUICK_CASES, QUICK_LIMIT_S) if request.quick else (CASES, LIMIT_S)
    numbers = itertools.count(1)
    with progress("placing", cases * len(MODELS)) as on_progress:
        return table2(request.seed, cases, limit, lambda: on_progress(next(numbers), ""))


def _sjf_bco(asked: Sequence[str], request: Request) -> str:
    seeds = request.several(sjf_bco.SEEDS, sjf_bco.QUICK_SEEDS)
    with _progress_bar("planning") as on_progress:
        points = sjf_bco.run(asked, replace(seeds, on_progress=on_progress))
    if request.output is None:
        return bco_page(asked, points, seeds)
    from papers.sjf_bco.plots import write_pictures  # matplotlib takes long to import

    return bco_page(asked, points, seeds, write_pictures(asked, points, request.output))


def _hare(asked: Sequence[str], request: Request) -> str:
    seeds, divide = request.several(hare.SEEDS, hare.QUICK_SEEDS), hare.QUICK if request.quick else request.divide
    with _progress_bar("simulating rounds") as on_progress:
        outcomes = hare.run(asked, replace(seeds, on_progress=on_progress), divide)
    return hare_page(asked, outcomes, seeds, divide)


_PAGES: Mapping[str, Callable[[Sequence[str], Request], str]] = {"asrpt": _asrpt, "bco": _sjf_bco, "hare": _hare}


@contextmanager
def _progress_bar(text: str) -> Iterator[OnProgress]:
    """A progress bar, for what runs simulations."""
    with progress(text, None) as show:
        yield lambda done, total, note: show(done, note, total)


def _reproduce(asked: Sequence[str], request: Request) -> None:
    """Run the simulations of these figures and write the page. Ctrl-C exits with code 130."""
    request.checked()
    try:
        pages = [
            _PAGES[group](mine, request)
            for group, figures in GROUPS.items()
            if (mine := [name for name in figures if name in asked])
        ]
    except KeyboardInterrupt:
        hint = f"finished simulations are in {safe(str(request.keep))}" if request.keep else "--keep DIR keeps results"
        print(f"{Path(sys.argv[0]).name}: interrupted; {hint}", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if request.output:
        replace_file(request.output, "\n".join(pages).encode(), mode=None)
        print(f"wrote {safe(str(request.output))}")
    else:
        print("\n".join(pages))


def _named(what: str, group: str = "") -> Sequence[str]:
    """The figures called ``what``; in a group also without the group's prefix. Raises InputError."""
    if group:
        groups: Mapping[str, Sequence[str]] = {"all": GROUPS[group], group: GROUPS[group]}
    else:
        groups = {"all": [name for names in GROUPS.values() for name in names], **GROUPS}
    for name in (what, f"{group}-{what}"):
        if name in groups["all"]:
            return [name]
    if what not in groups:
        raise InputError(f"no figure is called {what!r}; known: {', '.join((*groups['all'], *groups))}")
    return groups[what]


def reproduce_all(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="fig6 ... fig9, table2 or asrpt; bco-fig4 ... bco-fig7 or bco; hare-fig14 ... hare-fig27,"
            " hare-intro, hare-abstract, hare-load or hare; or all.",
            show_default=False,
        ),
    ],
    quick: Quick = False,
    divide: Divide = 1,
    seed: Seed = 0,
    seeds: NumberOfSeeds = None,
    load: Load = None,
    retrain: Retrain = "0",
    processes: Processes = 2,
    keep: Keep = None,
    output: Output = None,
) -> None:
    """Run the simulations of the papers again and compare the results.

    A full run takes minutes to hours; papers/README.md has the times.

    \b
    Examples:
      python -m papers fig6 --quick
      python -m papers hare-fig22 --quick
      python -m papers all --divide 5 --keep d -o page.md
    """
    retrain_s = retrain_seconds(retrain)
    _reproduce(_named(what), Request(quick, divide, seed, seeds, load, retrain_s, processes, keep, output))


def reproduce_asrpt(
    figure: Annotated[str, typer.Argument(metavar="FIGURE", help="fig6 ... fig9, table2, or all.", show_default=False)],
    quick: Quick = False,
    divide: Divide = 1,
    seed: Seed = 0,
    load: Load = None,
    retrain: Retrain = "0",
    processes: Processes = 2,
    keep: Keep = None,
    output: Output = None,
) -> None:
    """Run the simulations of the A-SRPT paper again and compare the results.

    \b
    Examples:
      python -m papers.asrpt fig6 --quick
      python -m papers.asrpt all --keep d -o page.md
    """
    retrain_s = retrain_seconds(retrain)
    _reproduce(_named(figure, "asrpt"), Request(quick, divide, seed, None, load, retrain_s, processes, keep, output))


def reproduce_sjf_bco(
    figure: Annotated[str, typer.Argument(metavar="FIGURE", help="fig4 ... fig7, or all.", show_default=False)],
    quick: Quick = False,
    seed: Seed = 0,
    seeds: NumberOfSeeds = None,
    processes: Processes = 2,
    keep: Keep = None,
    output: Output = None,
) -> None:
    """Run the simulations of the SJF-BCO paper again and compare the results.

    \b
    Examples:
      python -m papers.sjf_bco fig4 --quick
      python -m papers.sjf_bco all --seeds 100 -o page.md
    """
    request = Request(quick, seed=seed, seeds=seeds, processes=processes, keep=keep, output=output)
    _reproduce(_named(figure, "bco"), request)


def reproduce_hare(
    figure: Annotated[
        str,
        typer.Argument(metavar="FIGURE", help="fig14 ... fig27, intro, abstract, load, or all.", show_default=False),
    ],
    quick: Quick = False,
    divide: Divide = 1,
    seed: Seed = 0,
    seeds: NumberOfSeeds = None,
    processes: Processes = 2,
    keep: Keep = None,
    output: Output = None,
) -> None:
    """Run the simulations of Hare's paper again and compare the results.

    \b
    Examples:
      python -m papers.hare fig22 --quick
      python -m papers.hare all --divide 4 -o page.md
    """
    request = Request(quick, divide, seed, seeds, processes=processes, keep=keep, output=output)
    _reproduce(_named(figure, "hare"), request)


def main(module: str, command: Callable[..., None]) -> NoReturn:
    """Run one of the commands above as ``python -m MODULE``."""
    sys.argv[0] = f"python -m {module}"  # the name in help and errors
    app = Tool()
    app.command()(command)
    run_app(app)
