"""What the papers claim, what we measure, and a verdict: values for the page and for ``python -m papers.claims``.

Each paper's package has a function ``claims`` that returns its claims from its results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Literal

from papers import report
from papers.report import FAILS, HOLDS, PARTLY, Measured, Section, Table
from papers.seeded import plus_minus

Verdict = Literal["holds", "holds in a region", "does not hold", "cannot be tested"]
YES: Verdict = "holds"
REGION: Verdict = "holds in a region"
NO: Verdict = "does not hold"
UNTESTED: Verdict = "cannot be tested"
OF_PAGE: dict[str, Verdict] = {HOLDS: YES, PARTLY: REGION, FAILS: NO, report.UNTESTED: UNTESTED}
"""The verdicts of a page's sections."""
IN_PART = "in part: see its section"


@dataclass(frozen=True)
class Claim:
    """One claim of a paper beside our result.

    item: its figure, table or statement. ours, spread: our figure and its standard deviation over the seeds, or range.
    seeds: how many; 0 if nothing is random. region: where it holds, if it holds in a region; why not, if it cannot be
    tested. command: prints our figure.
    """

    paper: str
    item: str
    claim: str
    paper_figure: str
    ours: str
    spread: str
    seeds: int
    verdict: Verdict
    region: str
    command: str

    @property
    def figure(self) -> str:
        return f"{self.ours} ± {self.spread}" if self.spread else self.ours


@dataclass(frozen=True)
class Sample:
    """One cell of a page, which a test computes again. cell: in words; value: with this seed and divisor."""

    paper: str
    item: str
    cell: str
    seed: int
    divide: int
    value: float


def document(claims: Sequence[Claim], samples: Sequence[Sample] = ()) -> dict[str, Any]:
    """The JSON document of ``python -m papers.claims --json``."""
    found: dict[str, Any] = {"claims": [asdict(claim) for claim in claims]}
    return {**found, "samples": [asdict(sample) for sample in samples]} if samples else found


def claims_table(claims: Sequence[Claim]) -> Table:
    """One row for each claim, for the page."""
    head = ["item", "claim", "paper", "ours", "verdict", "command"]
    return Table(head, [_row(claim) for claim in claims], text=True)


def _row(claim: Claim) -> list[str]:
    where = f" ({claim.region})" if claim.region else ""
    return [
        f"{claim.paper}, {claim.item}",
        claim.claim,
        claim.paper_figure,
        claim.figure,
        f"**{claim.verdict}**{where}",
        f"`{claim.command}`",
    ]


def graded(good: Sequence[bool]) -> Verdict:
    """It holds everywhere, somewhere, or nowhere."""
    return YES if all(good) else REGION if any(good) else NO


def where(good: Sequence[bool], names: Sequence[str]) -> str:
    """The region of a claim that is true of some of these names; "" if it holds everywhere or nowhere."""
    found = [name for name, true in zip(names, good, strict=True) if true]
    return "; ".join(found) if 0 < len(found) < len(names) else ""


MAX_FIGURES = 4
"""A row of the table has so many figures of ours at most; the section has them all."""


def of_sections(
    paper: str, sections: Sequence[Section], seeds: int, module: str, figures: Sequence[str], options: str
) -> list[Claim]:
    """One claim for each section of a page. module, options: of the command that gives their figures.

    figures: their names for that command, as ``fig4``; a section without one is among ``all``.
    """
    found = []
    for section in sections:
        item = section.title.removeprefix(f"{paper}, ").partition(":")[0]
        name = item.lower().replace(". ", "")
        command = f"python -m {module} {name if name in figures else 'all'} {options}"
        found.append(_of_section(paper, item, section, seeds, command))
    return found


def _of_section(paper: str, item: str, section: Section, seeds: int, command: str) -> Claim:
    verdict, (first, *_) = OF_PAGE[section.verdict[0]], section.verdict[1]
    ours, spread = _joined(section.measured)
    printed = "; ".join(dict.fromkeys(each.paper for each in section.measured if each.paper))
    region = IN_PART if verdict == REGION else first if verdict == UNTESTED else ""
    return Claim(paper, item, section.claim, printed, ours or first, spread, seeds, verdict, region, command)


def _joined(measured: Sequence[Measured]) -> tuple[str, str]:
    """Our figures as text, and the spread if there is one figure; several have theirs in the text."""
    texts = [(each.what, f"{fmean(each.ours):.2f}", plus_minus(each.ours, 2, sign="")) for each in measured]
    if len(texts) == 1:
        ((what, mean, around),) = texts
        return f"{what} {mean}", around
    if len(texts) > MAX_FIGURES:
        texts = [texts[at] for at in _least_and_largest([fmean(each.ours) for each in measured])]
    rest = f" ({len(measured)} figures, the least and the largest)" if len(measured) > MAX_FIGURES else ""
    return "; ".join(f"{what} {mean}{around and f' ± {around}'}" for what, mean, around in texts) + rest, ""


def _least_and_largest(values: Sequence[float]) -> tuple[int, int]:
    """Their places."""
    places = range(len(values))
    return min(places, key=values.__getitem__), max(places, key=values.__getitem__)
