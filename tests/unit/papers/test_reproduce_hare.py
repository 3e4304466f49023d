"""The Hare paper: its jobs, the simulations of its figures, and the verdicts."""

import pytest

from papers.hare.introduction import introduction, mixed, model, tails, utilization
from papers.hare.models import MODELS, TESTBED, switch_s
from papers.hare.page import hare_page, hare_sections
from papers.hare.simulations import FIGURES, OFFLINE, ONLINE, SWITCHED, WAYS, Outcome, figures, run
from papers.hare.workload import FAMILIES, RoundOptions, curve_for, jobs_of
from papers.report import FAILS, HOLDS, PARTLY
from papers.seeded import Seeds


def test_models_are_as_in_table_iii_and_fig_1():
    by_name = {model.name: model for model in MODELS}
    assert by_name["ResNet50"].speed("V100") == pytest.approx(7)
    assert by_name["ResNet50"].speed("T4") == pytest.approx(2)
    assert by_name["GraphSAGE"].speed("V100") == pytest.approx(2)
    for each in MODELS:
        mean_s = sum(n * each.compute_s(gpu) for gpu, n in TESTBED.items()) / sum(TESTBED.values())
        assert switch_s("hare")[each.name] / mean_s == pytest.approx(each.share)
        assert each.compute_s("K80", batch=2) == pytest.approx(2 * each.compute_s("K80"))


def test_a_switch_costs_by_its_way():
    free, warm, process = (switch_s(way) for way in ("none", "pool-warm", "pool-process"))
    assert set(free.values()) == {0.0}
    assert set(warm) == set(process) == {each.name for each in MODELS}
    for name, default in switch_s("default").items():
        assert warm[name] < 0.1 * default < process[name]
    assert [warm["FastGCN"], warm["VGG19"], process["GraphSAGE"]] == pytest.approx([0.00071, 0.0124, 8.37468])


def test_all_schedulers_get_the_costs_of_a_column():
    cells = figures()["hare-switching"].cells
    assert {(cell.switching, cell.policy) for cell in cells} == {(w, p) for w in WAYS.values() for p in SWITCHED}
    assert {cell.switching for name, each in figures().items() if name != "hare-switching" for cell in each.cells} == {
        "hare"
    }


def test_columns_of_a_figure_differ_only_in_the_quantity_of_its_axis():
    slow, fast = (jobs_of(RoundOptions(jobs=40, seed=3, gbit=gbit)) for gbit in (10.0, 25.0))
    assert [(j.arrival_s, j.rounds, j.tasks, j.compute_s) for j in slow] == [
        (j.arrival_s, j.rounds, j.tasks, j.compute_s) for j in fast
    ]
    assert all(max(a.sync_s) == pytest.approx(2.5 * max(b.sync_s)) for a, b in zip(slow, fast, strict=True))
    fleet = RoundOptions(gpus=15, level="testbed").fleet
    assert dict(zip(fleet.types, fleet.counts, strict=True)) == TESTBED


def test_figures_have_the_papers_columns_and_schedulers():
    known = figures()
    assert ["hare-intro", *known] == list(FIGURES)
    assert list(known["hare-fig16"].columns) == [f"{n} GPUs" for n in (100, 120, 140, 160, 180)]
    assert {options.jobs for options in known["hare-fig16"].columns.values()} == {200}
    assert known["hare-fig23"].policies == ONLINE
    assert [dict(cell.settings)["groups"] for cell in known["hare-fig24"].cells[::2]] == [10, 20, 40, 80, 160]
    assert {figures(4)["hare-fig22"].columns["160 GPUs"].gpus} == {40}


def test_a_figure_is_simulated_and_described_in_a_page():
    calls = []
    found = run(["hare-fig14"], Seeds(5, 2, on_progress=lambda *words: calls.append(words)))
    assert calls[-1][:2] == (10, 10)
    text = hare_page(["hare-fig14"], found, Seeds(5, 2))
    assert "python -m papers.hare hare-fig14 --seed 5 --seeds 2" in text
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    assert [row.split(" |")[0].strip("| ") for row in rows] == ["weighted, s", *OFFLINE]


def invented(name, **means):
    """Results of a figure in which each policy has one value for all columns, or one per column."""
    figure = figures()[name]
    outcomes = {}
    for cell in figure.cells:
        column, row = next(
            (c, row) for c in figure.columns for row in figure.rows if figure.cell(c, *figure.rows[row]) == cell
        )
        given = means[row.replace("-", "_").replace(", ", "_")]
        value = given[list(figure.columns).index(column)] if isinstance(given, list) else given
        outcomes[cell] = Outcome(*([(value, value)] * 4), each=((value,), (value,)))
    return outcomes


UNKNOWN = {
    "gavel_fifo": 150.0,
    "sched_homo_unit": 150.0,
    "sched_allox_unit": 150.0,
    "2d_las": 200.0,
    "2d_las_released": 120.0,
    "hlas_whole": 150.0,
}
SWITCHING = {"2d_las": 150.0, "srtf": 120.0, "gavel_fifo": 500.0}
OTHERS = {"srtf": 250.0, "sched_homo": 300.0, "sched_allox": 200.0, "gavel_fifo": 400.0}


@pytest.mark.parametrize(
    ("name", "means", "status"),
    [
        ("hare-fig14", {"hare_offline": 100.0, **OTHERS}, HOLDS),
        ("hare-fig14", {"hare_offline": 150.0, **OTHERS}, PARTLY),
        ("hare-fig14", {"hare_offline": 250.0, **OTHERS}, FAILS),
        ("hare-fig16", {"hare_offline": 100.0, **OTHERS}, HOLDS),
        ("hare-fig16", {"hare_offline": 100.0, **OTHERS, "srtf": 150.0}, PARTLY),
        ("hare-fig17", {"hare_offline": [100.0, 90.0, 80.0, 75.0, 70.0], **OTHERS}, HOLDS),
        ("hare-fig17", {"hare_offline": [120.0, 115.0, 110.0, 105.0, 100.0], **OTHERS}, PARTLY),
        ("hare-fig18", {"hare_offline": [100.0, 90.0, 80.0], **OTHERS}, HOLDS),
        ("hare-fig18", {"hare_offline": [80.0, 90.0, 100.0], **OTHERS}, PARTLY),
        ("hare-fig21", {"hare_offline": 100.0, **OTHERS, "sched_homo": [100.0, 150.0, 200.0]}, HOLDS),
        ("hare-fig21", {"hare_offline": [150.0, 120.0, 100.0], **OTHERS}, FAILS),
        (
            "hare-fig26",
            {"hlas_p": 100.0, "hlas_l": 130.0, "hlas": 142.0, "gavel_fifo": 200.0, "hlas_known": 90.0},
            HOLDS,
        ),
        (
            "hare-fig26",
            {"hlas_p": 100.0, "hlas_l": 99.0, "hlas": 101.0, "gavel_fifo": 200.0, "hlas_known": 98.0},
            FAILS,
        ),
        ("hare-fig24", {"hlas": 100.0, "hlas_whole": [90.0, 80.0, 85.0, 90.0, 95.0]}, PARTLY),
        ("hare-fig24", {"hlas": 100.0, "hlas_whole": [70.0, 80.0, 85.0, 90.0, 95.0]}, HOLDS),
        ("hare-fig24", {"hlas": 100.0, "hlas_whole": [95.0, 90.0, 85.0, 80.0, 70.0]}, FAILS),
        ("hare-fig25", {"hlas": [1.0, 1.2, 1.5, 2.0, 2.9]}, HOLDS),
        ("hare-fig25", {"hlas": [1.0, 1.2, 1.5, 2.0, 3.1]}, FAILS),
        ("hare-abstract", {"hlas": 100.0, **UNKNOWN, "2d_las": 295.0}, HOLDS),
        ("hare-abstract", {"hlas": 100.0, **UNKNOWN}, PARTLY),
        (
            "hare-load",
            {"hlas_p": 100.0, "hlas_l": 120.0, "hlas": 142.0, "gavel_fifo": 300.0, "hlas_known": 90.0},
            HOLDS,
        ),
        (
            "hare-load",
            {"hlas_p": 100.0, "hlas_l": 110.0, "hlas": 115.0, "gavel_fifo": 300.0, "hlas_known": 90.0},
            PARTLY,
        ),
        ("hare-switching", {"hlas": [100.0, 102.0, 103.0, 200.0, 300.0, 3000.0], **SWITCHING}, HOLDS),
        ("hare-switching", {"hlas": [100.0, 102.0, 103.0, 104.0, 104.0, 104.0], **SWITCHING}, PARTLY),
        ("hare-switching", {"hlas": [100.0, 110.0, 103.0, 104.0, 104.0, 104.0], **SWITCHING}, FAILS),
        ("hare-load", {"hlas_p": 100.0, "hlas_l": 90.0, "hlas": 115.0, "gavel_fifo": 300.0, "hlas_known": 90.0}, FAILS),
    ],
)
def test_verdicts_follow_from_the_values(name, means, status):
    text = hare_page([name], invented(name, **means), Seeds(0, 2))
    assert f"**{status}.**" in text


def test_the_measured_figures_are_ratios_per_seed():
    (section,) = hare_sections(
        ["hare-fig26"],
        invented("hare-fig26", hlas_p=100.0, hlas_l=130.0, hlas=142.0, gavel_fifo=200.0, hlas_known=90.0),
    )
    by_name = {one.what: one for one in section.measured}
    assert by_name["hlas over hlas-p"].paper == "1.42"
    assert by_name["hlas over hlas-p"].ours == pytest.approx((1.42, 1.42))


def test_a_gang_on_mixed_gpus_is_as_slow_as_its_slowest_gpu():
    """Figs. 3 and 4."""
    slow, _, both, *_, fast = mixed()
    assert both.epoch_s == pytest.approx(slow.epoch_s)
    assert both.busy["V100"] == pytest.approx(both.busy["K80"] / 7)
    assert fast.epoch_s < slow.epoch_s / 2


def test_utilization_follows_from_the_speed():
    assert utilization(model("ResNet50"), "V100") == pytest.approx(1)
    assert utilization(model("GraphSAGE"), "V100") == pytest.approx(1 / 6)  # (7/12) / 7 of 1/2


def test_the_samples_have_heavy_tails():
    assert all(one.hill < 2 for one in tails())
    (section,) = [one for one in introduction() if "Figs. 7" in one.title]
    assert section.verdict[0] == HOLDS


@pytest.mark.parametrize("family", FAMILIES)
def test_a_loss_curve_starts_and_stops_where_it_should(family):
    curve = curve_for(40, 0.05, 2.0, 0.5, 0.0, 1, family)
    assert curve.loss(0) == pytest.approx(2.5)
    assert curve.loss(40) == pytest.approx(0.55)
    assert curve.loss(39) > 0.55
