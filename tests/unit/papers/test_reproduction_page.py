"""docs/reproduction.md is not stale: one cell of SJF-BCO and one of Hare, computed again."""

from pathlib import Path

import pytest

from papers.hare.simulations import figures
from papers.hare.simulations import run as run_hare
from papers.seeded import Seeds, spread
from papers.sjf_bco.simulations import IDLE, Setting

PAGE = (Path(__file__).parents[3] / "docs" / "reproduction.md").read_text(encoding="utf-8")


def cells(title: str, row: str) -> list[str]:
    """The cells of a row below a title of the page."""
    below = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    line = next(line for line in below.splitlines() if line.startswith(f"| {row} |"))
    return [cell.strip() for cell in line.split("|")[2:-1]]


def seeds_of(paper: str) -> int:
    """How many seeds the page of a paper has, from its command."""
    return int(PAGE.partition(f"python -m papers.{paper} all --seed 0 --seeds ")[2].partition("`")[0])


def test_a_cell_of_sjf_bco() -> None:
    setting = Setting(kappa=1, factor=8.0, reading=IDLE)
    found = [setting.measure(seed)[0] for seed in range(seeds_of("sjf_bco"))]
    assert cells("SJF-BCO, Fig. 7: lambda", "idle, 15%")[3] == spread(found)


@pytest.mark.parametrize("policy", ["hare-offline", "srtf"])
def test_a_cell_of_hare(policy: str) -> None:
    figure = figures()["hare-fig14"]
    found = run_hare(["hare-fig14"], Seeds(0, seeds_of("hare")))[figure.cell("testbed", policy)]
    assert cells("Hare, Fig. 14: the testbed", policy) == [spread(found.weighted)]


def test_a_cell_of_hlas() -> None:
    figure = figures()["hare-load"]
    cell = figure.cell("80 GPUs", "hlas")
    found = [cell.measure(seed)[0] for seed in range(seeds_of("hare"))]
    assert cells("Hare, HLAS-P by load, 100 jobs (not in the paper)", "hlas")[3] == spread(found)
