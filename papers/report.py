"""The page that compares a paper's figures with ours, as Markdown: for each a claim, a verdict and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

if TYPE_CHECKING:
    from papers.claims import Claim

HOLDS, PARTLY, FAILS = "Holds here", "Holds in part", "Does not hold here"
UNTESTED = "Cannot be tested here"
Verdict = tuple[str, list[str]]
"""One of these, and sentences that give the reasons."""


@dataclass(frozen=True)
class Table:
    """head: titles of the columns; the first column is text, the others are figures unless ``text``."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: bool = False


@dataclass(frozen=True)
class Measured:
    """A figure of the paper beside ours. paper: as printed, "" if it prints none; ours: one value for each seed."""

    what: str
    paper: str
    ours: tuple[float, ...]


@dataclass(frozen=True)
class Section:
    """One figure or table of the paper. claim: what the paper says; picture: a file beside the page, or "".

    measured: the figures that the verdict is about. claims: if there are several, each with a verdict of its own; claim
    and the verdict's first part are then "".
    """

    title: str
    claim: str
    verdict: Verdict
    tables: Sequence[Table]
    picture: str = ""
    measured: tuple[Measured, ...] = ()
    claims: Sequence[Claim] = ()


def render(template: str, sections: Sequence[Section], **values: Any) -> str:
    """The page of a template in ``papers/templates``, which adds the introduction. values: what that needs."""
    environment = Environment(  # noqa: S701 (Markdown, of our own texts and figures)
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(values, sections=sections)
