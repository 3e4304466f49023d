"""The claims of Hare's paper, from the sections of its page, and cells that a test computes again."""

from __future__ import annotations

from collections.abc import Sequence

from papers.claims import Claim, Sample, of_sections
from papers.hare.page import hare_sections
from papers.hare.simulations import FIGURES, Outcomes, figures
from papers.seeded import Seeds

PAPER = "Hare"


def claims(asked: Sequence[str], outcomes: Outcomes, seeds: Seeds, divide: int = 1) -> list[Claim]:
    """One for each section of the page."""
    options = seeds.text if divide == 1 else f"{seeds.text} --divide {divide}"
    names = [name.removeprefix("hare-") for name in FIGURES]
    return of_sections(PAPER, hare_sections(asked, outcomes, divide), seeds.number, "papers.hare", names, options)


def samples(seed: int, divide: int = 1) -> list[Sample]:
    """The first cell of each figure with one seed: its mean completion time, seconds."""
    cells = {name: figure.cells[0] for name, figure in figures(divide).items()}
    return [Sample(PAPER, name, cell.label, seed, divide, float(cell.measure(seed)[0])) for name, cell in cells.items()]
