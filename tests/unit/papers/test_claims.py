"""Claims: from the sections of a page, as JSON, and as a table."""

import json

import pytest

from papers.claims import (
    IN_PART,
    NO,
    REGION,
    UNTESTED,
    YES,
    Claim,
    Sample,
    claims_table,
    document,
    graded,
    of_sections,
    where,
)
from papers.report import FAILS, HOLDS, PARTLY, Measured, Section
from papers.report import UNTESTED as NOT_TESTED

CLAIM = Claim("P", "Fig. 1", "is best", "10%", "12%", "2%", 5, REGION, "with few jobs", "python -m papers")


def test_verdicts_of_several_points():
    assert [graded(good) for good in ([True, True], [True, False], [False, False])] == [YES, REGION, NO]
    assert [where(good, "ab") for good in ([True, True], [True, False], [False, False])] == ["", "a", ""]


def test_the_document_and_the_table():
    assert json.loads(json.dumps(document([CLAIM]))) == {"claims": [CLAIM.__dict__]}
    sample = Sample("P", "fig1", "x", 0, 1, 2.5)
    assert document([], [sample])["samples"] == [sample.__dict__]
    row = ["P, Fig. 1", "is best", "10%", "12% ± 2%", "**holds in a region** (with few jobs)", "`python -m papers`"]
    assert list(claims_table([CLAIM]).rows) == [row]


@pytest.mark.parametrize(
    ("verdict", "expected", "region"),
    [(HOLDS, YES, ""), (PARTLY, REGION, IN_PART), (FAILS, NO, ""), (NOT_TESTED, UNTESTED, "Because.")],
)
def test_a_section_is_a_claim(verdict, expected, region):
    one = Measured("b over a", "2", (1.0, 3.0))
    sections = [
        Section("P, Fig. 4: things", "a is best", (verdict, ["Because.", "Also."]), [], measured=(one,)),
        Section("P, the abstract: more", "a is best", (verdict, ["Because."]), []),
        Section(
            "P, Fig. 5: both", "a is best", (verdict, ["Because."]), [], measured=(one, Measured("c", "", (1.0, 1.0)))
        ),
    ]
    first, second, third = of_sections("P", sections, 2, "papers.p", ["fig4"], "--seeds 2")
    assert first == Claim(
        "P",
        "Fig. 4",
        "a is best",
        "2",
        "b over a 2.00",
        "1.41",
        2,
        expected,
        region,
        "python -m papers.p fig4 --seeds 2",
    )
    assert (second.item, second.ours, second.command) == (
        "the abstract",
        "Because.",
        "python -m papers.p all --seeds 2",
    )
    assert (third.ours, third.spread) == ("b over a 2.00 ± 1.41; c 1.00 ± 0.00", "")


def test_a_row_of_many_figures_has_the_least_and_the_largest_and_each_of_the_papers_once():
    values = {"a": 3.0, "b": 1.0, "c": 4.0, "d": 5.0, "e": 2.0}
    many = tuple(Measured(name, "below 1", (value,)) for name, value in values.items())
    (found,) = of_sections("P", [Section("P, Fig. 4: x", "y", (HOLDS, [""]), [], measured=many)], 1, "papers.p", [], "")
    assert found.paper_figure == "below 1"
    assert found.ours == "b 1.00; d 5.00 (5 figures, the least and the largest)"
