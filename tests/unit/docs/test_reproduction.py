"""docs/reproduction.md: no row is missing, none is stale. ``make reproduction`` writes it and the JSON beside it."""

import json
from functools import cache
from pathlib import Path

import pytest

from papers.asrpt import claims as asrpt
from papers.asrpt.workload import Jobs
from papers.claims import NO, REGION, UNTESTED, YES, Claim, Sample, claims_table
from papers.hare import claims as hare
from papers.sjf_bco import claims as sjf_bco

DOCS = Path(__file__).parents[3] / "docs"
FOUND = json.loads((DOCS / "reproduction.json").read_text(encoding="utf-8"))
CLAIMS = [Claim(**claim) for claim in FOUND["claims"]]
SAMPLES = [Sample(**sample) for sample in FOUND["samples"]]
ITEMS = {
    "A-SRPT": {*(f"Fig. {n}" for n in range(1, 10)), "Table I", "Table II", "Theorem 1"},
    "SJF-BCO": {f"Fig. {n}" for n in range(4, 8)},
    "Hare": {f"Fig. {n}" for n in range(14, 28)},
}
"""The figures and tables of each paper."""


@pytest.mark.parametrize("paper", ITEMS)
def test_every_figure_and_table_has_a_claim(paper: str) -> None:
    assert {claim.item for claim in CLAIMS if claim.paper == paper} >= ITEMS[paper]


def test_the_page_has_the_claims() -> None:
    page = (DOCS / "reproduction.md").read_text(encoding="utf-8")
    for row in claims_table(CLAIMS).rows:
        assert f"| {' | '.join(row)} |" in page
    assert {claim.verdict for claim in CLAIMS} <= {YES, NO, REGION, UNTESTED}


@cache
def again(paper: str, seed: int, divide: int) -> dict[str, Sample]:
    """The samples of a paper, computed by the code of today."""
    found = {
        "A-SRPT": lambda: asrpt.samples(Jobs(divide=divide), seed),
        "SJF-BCO": lambda: sjf_bco.samples(seed),
        "Hare": lambda: hare.samples(seed, divide),
    }[paper]()
    return {sample.item: sample for sample in found}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample.paper} {sample.item}")
def test_a_cell_of_each_figure_is_what_the_code_gives_today(sample: Sample) -> None:
    today = again(sample.paper, sample.seed, sample.divide)[sample.item]
    assert today.cell == sample.cell
    assert today.value == pytest.approx(sample.value, rel=1e-6), "make reproduction"
