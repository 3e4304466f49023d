"""The commands ``python -m papers``, ``papers.claims``, ``papers.asrpt``, ``papers.sjf_bco`` and ``papers.hare``."""

from __future__ import annotations

import json
import os
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

from papers.asrpt import claims as asrpt_claims
from papers.asrpt import fig5_lab, table2
from papers.asrpt import simulations as asrpt
from papers.asrpt.evidence import Evidence
from papers.asrpt.page import asrpt_page
from papers.asrpt.workload import TESTBED_JOBS, Jobs
from papers.claims import Claim, Sample, claims_table, document
from papers.hare import claims as hare_claims
from papers.hare import simulations as hare
from papers.hare.page import hare_page
from papers.report import render
from papers.seeded import Kept, OnProgress, Seeds, code_version
from papers.sjf_bco import claims as bco_claims
from papers.sjf_bco import simulations as sjf_bco
from papers.sjf_bco.page import bco_page
from slurm_asrpt.errors import EXIT_INTERRUPTED, InputError
from slurm_asrpt.files import replace_file

KEPT = Path("build/reproduction")
"""Where ``papers.claims`` keeps the results of each simulation."""
GROUPS: Mapping[str, Sequence[str]] = {
    "asrpt": (*asrpt.FIGURES, fig5_lab.FIGURE, "table2"),
    "bco": sjf_bco.FIGURES,
    "hare": hare.FIGURES,
}
"""The figures of each paper."""

Quick = Annotated[bool, typer.Option("--quick", help="A small run that only shows that everything works.")]
Divide = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Use 1/N of the jobs and servers; else 1/20 (A-SRPT) or all (Hare)."),
]
Seed = Annotated[int, seldom(min=0, metavar="N", help="Seed of all random numbers.")]
NumberOfSeeds = Annotated[int | None, seldom("--seeds", min=1, metavar="N", help="Number of seeds, from --seed on.")]
Load = Annotated[float | None, seldom(metavar="LOAD", help="Scale the arrival times to this load.")]
Keep = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Keep the figures of each simulation here, and reuse them.")
]
LabSpeed = Annotated[float, seldom(min=1, max=1000, metavar="X", help="Clock of the labs of fig5-lab.")]
LabPort = Annotated[int, seldom(min=1024, max=65000, metavar="PORT", help="First port of the labs of fig5-lab.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the page here, and pictures beside it.")
]


@dataclass(frozen=True)
class Request:
    """What a user asks for: the values of the options. divide, load, seeds: None for the default."""

    quick: bool = False
    divide: int | None = None
    seed: int = 0
    seeds: int | None = None
    load: float | None = None
    retrain_s: float = 0.0
    processes: int = 2
    keep: Path | None = None
    output: Path | None = None
    speed: float = fig5_lab.SPEED
    port: int = fig5_lab.PORT

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
        kept = Kept(self.keep / code_version() if self.keep else None)
        return Seeds(self.seed, self.seeds or (quick if self.quick else full), self.processes, kept)

    @property
    def placements(self) -> tuple[int, float]:
        """Table II: cases, and seconds for each exact placement."""
        return (table2.QUICK_CASES, table2.QUICK_LIMIT_S) if self.quick else (table2.CASES, table2.LIMIT_S)


@dataclass(frozen=True)
class Part:
    """What a paper's simulations give: its part of the page, its claims, and cells that a test computes again."""

    page: str
    claims: Sequence[Claim]
    samples: Callable[[], Sequence[Sample]]


def _asrpt(asked: Sequence[str], request: Request) -> Part:
    base = Jobs(divide=request.divide or asrpt.DIVIDE, load=request.load, retrain_s=request.retrain_s)
    seeds = request.several(asrpt.SEEDS, asrpt.QUICK_SEEDS)
    with _progress_bar("simulating") as on_progress:
        shown = replace(seeds, on_progress=on_progress)
        results = asrpt.run([name for name in asked if name in asrpt.FIGURES], base, shown)
        placed = table2.run(shown, *request.placements) if "table2" in asked else {}
    lab = _lab_runs(request, seeds.first, play=list(asked) == [fig5_lab.FIGURE])
    evidence = Evidence(base, seeds, results, placed, fig5_lab.by_policy(lab))
    return Part(
        asrpt_page(asked, evidence),
        asrpt_claims.claims(asked, evidence),
        lambda: asrpt_claims.samples(base, seeds.first),
    )


def _lab_runs(request: Request, first_seed: int, play: bool) -> fig5_lab.Runs:
    """The kept runs of Fig. 5 on labs. play: play those that are missing; else they are shown as they are.

    Raises AsrptError.
    """
    file = request.keep / fig5_lab.FILE.name if play and request.keep else fig5_lab.FILE
    if not play:
        return fig5_lab.load(file)
    jobs = max(1, TESTBED_JOBS // (request.divide or 1))
    wanted = fig5_lab.runs(first_seed, request.seeds or 1, 1 if request.quick else fig5_lab.SETS, jobs)
    with _progress_bar("playing") as on_progress:
        return fig5_lab.play_missing(file, wanted, request.speed, request.port, request.processes, on_progress)


def _sjf_bco(asked: Sequence[str], request: Request) -> Part:
    seeds = request.several(sjf_bco.SEEDS, sjf_bco.QUICK_SEEDS)
    with _progress_bar("planning") as on_progress:
        points = sjf_bco.run(asked, replace(seeds, on_progress=on_progress))
    pictures: Mapping[str, str] = {}
    if request.output is not None:
        from papers.sjf_bco.plots import write_pictures  # matplotlib takes long to import

        pictures = write_pictures(asked, points, request.output)
    found = bco_claims.claims(asked, points, seeds)
    return Part(bco_page(asked, points, seeds, pictures), found, lambda: bco_claims.samples(seeds.first))


def _hare(asked: Sequence[str], request: Request) -> Part:
    seeds, divide = (
        request.several(hare.SEEDS, hare.QUICK_SEEDS),
        request.divide or (hare.QUICK if request.quick else 1),
    )
    with _progress_bar("simulating rounds") as on_progress:
        outcomes = hare.run(asked, replace(seeds, on_progress=on_progress), divide)
    found = hare_claims.claims(asked, outcomes, seeds, divide)
    page = hare_page(asked, outcomes, seeds, divide)
    return Part(page, found, lambda: hare_claims.samples(seeds.first, max(divide, hare.QUICK)))


_PARTS: Mapping[str, Callable[[Sequence[str], Request], Part]] = {"asrpt": _asrpt, "bco": _sjf_bco, "hare": _hare}


@contextmanager
def _progress_bar(text: str) -> Iterator[OnProgress]:
    """A progress bar, for what runs simulations."""
    with progress(text, None) as show:
        yield lambda done, total, note: show(done, note, total)


def _parts(asked: Sequence[str], request: Request) -> list[Part]:
    """Run the simulations of these figures. Ctrl-C exits with code 130."""
    request.checked()
    try:
        return [
            _PARTS[group](mine, request)
            for group, figures in GROUPS.items()
            if (mine := [name for name in figures if name in asked])
        ]
    except KeyboardInterrupt:
        hint = f"finished simulations are in {safe(str(request.keep))}" if request.keep else "--keep DIR keeps results"
        print(f"{Path(sys.argv[0]).name}: interrupted; {hint}", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _reproduce(asked: Sequence[str], request: Request) -> None:
    """Run the simulations of these figures and write the page, and their claims beside it."""
    parts = _parts(asked, request)
    claims = [claim for part in parts for claim in part.claims]
    text = "\n".join([_overview(claims), *(part.page for part in parts)] if len(parts) > 1 else [parts[0].page])
    if not request.output:
        print(text)
        return
    found = document(claims, [sample for part in parts for sample in part.samples()])
    replace_file(request.output, text.encode(), mode=None)
    replace_file(
        request.output.with_suffix(".json"), f"{json.dumps(found, indent=1, ensure_ascii=False)}\n".encode(), mode=None
    )
    print(f"wrote {safe(str(request.output))}")


def _overview(claims: Sequence[Claim]) -> str:
    """The table of all claims, before the papers' parts of the page."""
    return render("claims.md.j2", [], table=claims_table(claims))


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
            help="fig4 ... fig9, fig5-lab, table2, map, steps or asrpt; bco-fig4 ... bco-fig7 or bco; hare-fig14 ..."
            " hare-fig27, hare-intro, hare-abstract, hare-load, hare-switching or hare; or all.",
            show_default=False,
        ),
    ],
    quick: Quick = False,
    divide: Divide = None,
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
      python -m papers all --keep d -o page.md
    """
    retrain_s = retrain_seconds(retrain)
    _reproduce(_named(what), Request(quick, divide, seed, seeds, load, retrain_s, processes, keep, output))


def reproduce_asrpt(
    figure: Annotated[
        str,
        typer.Argument(
            metavar="FIGURE", help="fig4 ... fig9, fig5-lab, table2, map, steps, or all.", show_default=False
        ),
    ],
    quick: Quick = False,
    divide: Divide = None,
    seed: Seed = 0,
    seeds: NumberOfSeeds = None,
    load: Load = None,
    retrain: Retrain = "0",
    processes: Processes = 2,
    keep: Keep = None,
    output: Output = None,
    speed: LabSpeed = fig5_lab.SPEED,
    port: LabPort = fig5_lab.PORT,
) -> None:
    """Run the experiments of the A-SRPT paper again and compare the results.

    \b
    Examples:
      python -m papers.asrpt fig6 --quick
      python -m papers.asrpt all --keep d -o page.md
    """
    retrain_s = retrain_seconds(retrain)
    request = Request(quick, divide, seed, seeds, load, retrain_s, processes, keep, output, speed, port)
    _reproduce(_named(figure, "asrpt"), request)


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
        typer.Argument(
            metavar="FIGURE", help="fig14 ... fig27, intro, abstract, load, switching, or all.", show_default=False
        ),
    ],
    quick: Quick = False,
    divide: Divide = None,
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


@contextmanager
def _solver_on_stderr() -> Iterator[None]:
    """HiGHS prints its banner to standard output, below Python: there it would not be JSON."""
    sys.stdout.flush()
    before = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(before, 1)
        os.close(before)


def print_claims(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a Markdown table.")] = False,
    quick: Quick = False,
    divide: Divide = None,
    seed: Seed = 0,
    seeds: NumberOfSeeds = None,
    processes: Processes = 2,
    keep: Keep = KEPT,
) -> None:
    """Compare the claims of the papers with our results, each with a verdict.

    Results of each simulation are kept in build/reproduction, and an interrupted run resumes there.

    \b
    Examples:
      python -m papers.claims --quick
      python -m papers.claims --json
    """
    request = Request(quick, divide, seed, seeds, processes=processes, keep=keep)
    with _solver_on_stderr():
        claims = [claim for part in _parts(_named("all"), request) for claim in part.claims]
    print(json.dumps(document(claims), indent=1, ensure_ascii=False) if as_json else _overview(claims))


def main(module: str, command: Callable[..., None]) -> NoReturn:
    """Run one of the commands above as ``python -m MODULE``."""
    sys.argv[0] = f"python -m {module}"  # the name in help and errors
    app = Tool()
    app.command()(command)
    run_app(app)
