"""The SJF-BCO paper: the plans of its figures, and the verdicts."""

import pytest

from papers.report import FAILS, HOLDS, PARTLY
from papers.seeded import Seeds, direction
from papers.sjf_bco.page import VERDICTS, bco_page, bco_sections
from papers.sjf_bco.plots import write_pictures
from papers.sjf_bco.simulations import (
    FIGURES,
    IDLE,
    KAPPAS,
    LAMBDAS,
    PLANNED,
    SERVERS,
    Point,
    Setting,
    run,
    settings,
)
from papers.sjf_bco.workload import EXTRA, MIX, SIZES, paper_batch, time_range
from slurm_asrpt.core.timing.ring import iteration_time
from slurm_asrpt.errors import InputError


@pytest.mark.parametrize("extra", [EXTRA, 0.6])
def test_batches_are_as_in_the_paper(extra):
    batch = paper_batch(3, extra=extra)
    assert sorted(job.gpus for job in batch.jobs) == [gpus for gpus, number in MIX.items() for _ in range(number)]
    assert len(batch.jobs) == 160
    assert set(batch.servers.sizes) <= set(SIZES)
    assert len(batch.servers.sizes) == 20
    for job, ring, links in zip(batch.jobs, batch.rings, batch.links, strict=True):
        least, most = time_range(ring, batch.servers.sizes, links)
        alone = ring.computation + 2 * ring.gradient / ring.gpus * (ring.gpus - 1) / links.inter
        assert 1000 <= job.iterations <= 6000
        assert alone * (1 - 1e-9) >= 0.01
        assert alone <= 0.05 * (1 + 1e-9)
        assert alone * job.iterations * (1 + 1e-9) >= 50
        assert alone * job.iterations <= 300 * (1 + 1e-9)
        assert job.estimate == least * job.iterations
        assert most - alone <= extra * most * (1 + 1e-9)
        assert (most > least) == (job.gpus > 1)
        assert job.time((1,) * min(job.gpus, 20), (max(batch.servers.sizes),) * min(job.gpus, 20) * (job.gpus > 1)) <= (
            most * (1 + 1e-9)
        )
        assert job.time((job.gpus,), ()) == iteration_time(ring, 1, 0, links)


def test_seeds_determine_batches_and_smaller_clusters_are_prefixes_of_larger_ones():
    assert paper_batch(1).servers == paper_batch(1).servers != paper_batch(2).servers
    assert [job.estimate for job in paper_batch(1).jobs] == [job.estimate for job in paper_batch(1).jobs]
    assert paper_batch(1, 10).servers.sizes == paper_batch(1).servers.sizes[:10]
    assert len(paper_batch(0, jobs=200).jobs) == 200


def test_a_figure_is_simulated_and_described_in_a_page():
    calls = []
    points = run(["bco-fig7"], Seeds(5, 1, on_progress=lambda *words: calls.append(words)))
    assert calls[-1][:2] == (16, 16)
    text = bco_page(["bco-fig7"], points, Seeds(5, 1))
    assert "python -m papers.sjf_bco bco-fig7 --seed 5 --seeds 1" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 6
    assert all(line.count("|") == 6 for line in lines)


def flat(*values):
    """A point with three slightly different seeds."""
    return Point(*(tuple(value + more for more in (0.0, 1.0, 2.0)) for value in values), (1.0,) * 3, (1,) * 3)


def verdict(figure, value):
    """The verdict on figures in which each setting has makespan and mean ``value(setting)``."""
    return VERDICTS[figure]({one: flat(value(one), value(one)) for one in settings(figure)})


def test_changes_within_the_spread_of_seeds_do_not_count():
    assert direction([1, 2, 3], [1.5, 2.6, 3.4]) == 1
    assert direction([1, 2, 3], [0.5, 1.4, 2.6]) == -1
    assert direction([1, 2, 3], [3, 2, 1.1]) == 0
    assert direction([5], [5]) == 0


@pytest.mark.parametrize(
    ("ours", "by_size", "status"), [(80, 100, HOLDS), (150, 100, FAILS), (80, 80, PARTLY), (100, 80, FAILS)]
)
def test_fig4(ours, by_size, status):
    """It does not hold if only the order of the jobs makes the difference."""

    def value(one):
        return ours if one.planner == "sjf-bco" else by_size if one.by_size else 100

    assert verdict("bco-fig4", value)[0] == status


@pytest.mark.parametrize(
    ("row", "status"),
    [((90, 80, 70, 80, 90, 60), HOLDS), ((90, 80, 70, 60, 50, 40), PARTLY), ((10, 20, 30, 40, 50, 60), FAILS)],
)
def test_fig5(row, status):
    assert verdict("bco-fig5", lambda one: dict(zip(KAPPAS, row, strict=True))[one.kappa])[0] == status


@pytest.mark.parametrize(("steepest", "status"), [("ff", HOLDS), ("ls", PARTLY)])
def test_fig6(steepest, status):
    def value(one):
        return 1000 - one.servers * (20 if one.planner == steepest else 10)

    found, sentences = verdict("bco-fig6", value)
    assert found == status
    assert sentences[-1].endswith(f"{steepest}.")
    assert verdict("bco-fig6", lambda one: one.servers)[0] == FAILS
    assert SERVERS[0] == 10


@pytest.mark.parametrize(
    ("row", "status"), [((9, 8, 7, 6), PARTLY), ((9, 9, 8, 6), PARTLY), ((6, 7, 8, 9), FAILS), ((9, 9, 9, 9), FAILS)]
)
@pytest.mark.parametrize("reading", [PLANNED, IDLE])
def test_fig7(row, status, reading):
    def value(one):
        return 10 * dict(zip(LAMBDAS, row, strict=True))[one.factor] if one.reading == reading else 100 + one.factor

    assert verdict("bco-fig7", value)[0] == status


def test_fig7_holds_if_it_does_in_both_readings():
    assert verdict("bco-fig7", lambda one: 100 - one.factor)[0] == HOLDS


def test_the_measured_figures_are_ratios_per_seed():
    points = {one: flat(100 * one.factor, 1) for one in settings("bco-fig7")}
    (section,) = bco_sections(["bco-fig7"], points)
    assert section.measured[0].what == "makespan, lambda 8 over lambda 1, planned, 15%"
    assert section.measured[0].ours == pytest.approx((8.0, 801 / 101, 802 / 102))


def test_with_idle_gpus_the_makespan_falls_with_lambda_as_in_the_paper():
    """Fig. 7 of the committed page, two of its seeds."""
    points = run(["bco-fig7"], Seeds(0, 2))
    for seed in range(2):
        falls = [points[Setting(kappa=1, factor=factor, reading=IDLE)].makespan[seed] for factor in LAMBDAS]
        assert falls[0] > falls[-1]


def test_the_figures_have_the_papers_axes():
    assert {one.planner for one in settings("bco-fig4")} == {"sjf-bco", "ff", "ls", "rand"}
    assert {one.servers for one in settings("bco-fig6")} == set(SERVERS) >= {10, 20}
    assert Setting(kappa=1, factor=8.0) in settings("bco-fig7")
    assert len(FIGURES) == 4


def test_every_figure_is_drawn_from_its_own_points(tmp_path):
    """A setting that a figure omits, or shows without measurements, is an error."""
    for figure in FIGURES:
        asked = Asked({one: Point((400.0, 500.0 + number), (90.0, 100.0), (1.0, 1.0), (1, 1))
                       for number, one in enumerate(settings(figure))})  # fmt: skip
        assert write_pictures([figure], asked, tmp_path / "page.md") == {figure: f"page-{figure}.png"}
        assert asked.seen == set(settings(figure))
        assert (tmp_path / f"page-{figure}.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="cannot be written"):
        write_pictures([figure], asked, tmp_path / "nowhere" / "page.md")


class Asked(dict):
    """Records the requested keys."""

    def __getitem__(self, key):
        self.__dict__.setdefault("seen", set()).add(key)
        return super().__getitem__(key)
