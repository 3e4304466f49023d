"""The claims of the SJF-BCO paper, from the sections of its page, and cells that a test computes again."""

from __future__ import annotations

from collections.abc import Sequence

from papers.claims import Claim, Sample, of_sections
from papers.seeded import Seeds
from papers.sjf_bco.page import bco_sections
from papers.sjf_bco.simulations import FIGURES, Points, settings

PAPER = "SJF-BCO"


def claims(asked: Sequence[str], points: Points, seeds: Seeds) -> list[Claim]:
    """One for each section of the page."""
    names = [name.removeprefix("bco-") for name in FIGURES]
    return of_sections(PAPER, bco_sections(asked, points), seeds.number, "papers.sjf_bco", names, seeds.text)


def samples(seed: int) -> list[Sample]:
    """The first point of each figure with one seed: its makespan, slots."""
    points = {name: settings(name)[0] for name in FIGURES}
    return [Sample(PAPER, name, point.label, seed, 1, float(point.measure(seed)[0])) for name, point in points.items()]
