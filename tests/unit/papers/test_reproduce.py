"""The A-SRPT paper: the simulations of its figures, and the verdicts."""

import json
import random
import re
from dataclasses import replace

import pytest

from papers.asrpt import simulations
from papers.asrpt.page import VERDICTS, page, views
from papers.asrpt.simulations import BASELINES, FIGURES, Jobs, Results, Sim, columns, make, measure, run
from papers.asrpt.table2 import Row, free_gpus, table2
from papers.report import FAILS, HOLDS, PARTLY
from papers.seeded import Kept

TINY = Jobs(divide=2000)


def test_the_figures_have_the_papers_columns():
    names = {figure: [column.x for column in columns(figure, Jobs())] for figure in FIGURES}
    assert names["fig6"] == ["37,500 jobs", "75,000 jobs", "112,500 jobs", "150,000 jobs"]
    assert (names["fig7"][0], names["fig7"][-1]) == ("80% on one GPU", "0% on one GPU")
    assert [column.workload.nic for column in columns("fig8", Jobs())] == [1, 5, 10, 25, 50]
    assert all(column.workload.single == 0 for column in columns("fig8", Jobs()))
    assert names["fig9"] == ["perfect", "forest", "median", "mean", "forest-sklearn"]
    for column in columns("fig6", Jobs()):
        assert {sim.policy for sim in column.others} >= set(BASELINES)
        assert {dict(sim.settings).get("delay") for sim in column.ours} == {None, "block", "aside"}


def test_a_simulation_used_by_two_figures_runs_once():
    ten = next(column for column in columns("fig8", Jobs()) if column.x == "10 Gbit/s")
    none_single = columns("fig7", Jobs())[-1]
    assert ten.ours == none_single.ours
    assert ten.others == none_single.others


def test_four_fifths_of_the_trace_are_history():
    workload = make(replace(TINY, jobs=150_000))
    assert workload.notes["history_jobs"] == pytest.approx(0.8 * simulations.TRACE_JOBS / 2000, abs=1)
    assert len(workload.table) == 75
    assert Jobs().cluster.text == "250 x 8 GPUs"
    assert Jobs(divide=20).cluster.text == "12 x 8 GPUs"


def test_measured_figures_are_json_and_perfect_prediction_has_no_error():
    found = measure(Sim(TINY, "asrpt-perfect"))
    assert json.loads(json.dumps(found)) == found
    assert found["mean_error"] == 0
    assert measure(Sim(TINY, "asrpt"))["mean_error"] > 0
    assert found["mean_jct_s"] >= found["sound_s"] * (1 - 1e-9)


def test_a_stored_run_is_resumed(tmp_path, monkeypatch):
    first = Results(Kept(tmp_path))
    run(["fig9"], TINY, first)
    text = page(["fig9"], TINY, first)
    monkeypatch.setattr(simulations, "measure", lambda sim: pytest.fail("run again"))
    calls = []
    again = Results(Kept(tmp_path))
    run(["fig9"], TINY, again, on_progress=lambda *words: calls.append(words))
    assert page(["fig9"], TINY, again) == text
    assert not calls
    next(tmp_path.glob("*.json")).write_text("{")
    with pytest.raises(pytest.fail.Exception):
        run(["fig9"], TINY, Results(Kept(tmp_path)))


def test_all_figures_make_a_page():
    results = Results()
    run(["fig7"], TINY, results)
    text = page(["fig7"], TINY, results)
    assert "## Fig. 7" in text
    assert re.search(rf"\*\*({HOLDS}|{PARTLY}|{FAILS})\.\*\*", text)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.count("|") == 7 for line in lines)
    assert sum(line.startswith("| wcs-workload |") for line in lines) == 1


# verdicts


def measured(hours, **more):
    seconds = hours * 3600
    return {
        "mean_jct_s": seconds, "mean_wait_s": seconds / 2, "placement_loss": 0.1, "load": 0.9, "single_gpu": 0.5,
        "unseen": 0.2, "sound_s": 1800.0, "mean_error": 10.0, "relative_error": 0.1, "within_10_percent": 0.5,
        "total_completion_s": 10 * seconds, **more,
    }  # fmt: skip


def figure_data(figure, hours):
    """Data of a figure. hours: of A-SRPT and of each baseline, per column; A-SRPT is best with tau = 10."""
    results = Results()
    for number, column in enumerate(columns(figure, Jobs())):
        for sim in column.ours:
            ours = hours(number, "asrpt")
            results.found[sim] = measured(ours if dict(sim.settings)["tau"] == 10 else ours + 1)
        for sim in column.others:
            results.found[sim] = measured(hours(number, sim.policy))
    return views(figure, Jobs(), results)


@pytest.mark.parametrize(
    ("ours", "status", "says"),
    [(1.0, HOLDS, "75% lower"), (3.5, PARTLY, "12% lower"), (4.0, FAILS, "the same"), (50.0, FAILS, "12.5 times as")],
)
def test_fig6(ours, status, says):
    """Baselines at 4 h, SPJF at 10 h: the claim is 31%."""
    found = figure_data("fig6", lambda _, policy: ours if policy == "asrpt" else 10 if policy == "spjf" else 4)
    verdict, sentences = VERDICTS["fig6"](found)
    assert verdict == status
    assert says in sentences[0]
    assert "τ = 10" in found[0].setting
    smaller = any(sentence.startswith("The gain is smaller than in the paper") for sentence in sentences)
    assert smaller == (status != HOLDS)


def test_fig6_holds_only_with_spjf_as_the_worst():
    found = figure_data("fig6", lambda _, policy: 1 if policy == "asrpt" else 10 if policy == "spwf" else 4)
    assert VERDICTS["fig6"](found)[0] == PARTLY


def test_fig7_requires_an_increasing_gain():
    growing = figure_data("fig7", lambda number, policy: 5 - number * 0.5 if policy == "asrpt" else 8)
    shrinking = figure_data("fig7", lambda number, policy: 2 + number * 0.5 if policy == "asrpt" else 8)
    assert VERDICTS["fig7"](growing)[0] == HOLDS
    assert VERDICTS["fig7"](shrinking)[0] == PARTLY


def test_fig8():
    good = figure_data("fig8", lambda _, policy: 1 if policy == "asrpt" else 100 if policy == "spjf" else 2)
    some = figure_data("fig8", lambda number, policy: 1 if policy == "asrpt" else 2 if number == 0 else 0.9)
    bad = figure_data("fig8", lambda _, policy: 2 if policy == "asrpt" else 1)
    assert [VERDICTS["fig8"](found)[0] for found in (good, some, bad)] == [HOLDS, PARTLY, FAILS]


@pytest.mark.parametrize(
    ("hours", "errors", "status"),
    [
        ((1, 1.1, 1.2, 1.3, 1.0), (0, 1, 2, 3, 0.5), HOLDS),
        ((1, 1.5, 1.6, 1.7, 1.0), (0, 1, 2, 3, 0.5), PARTLY),
        ((1, 1.5, 1.4, 1.3, 1.0), (0, 3, 2, 1, 0.5), FAILS),
    ],
)
def test_fig9(hours, errors, status):
    found = figure_data("fig9", lambda number, policy: hours[number] if policy == "asrpt" else 9)
    found = [replace(v, best={**v.best, "mean_error": e}) for v, e in zip(found, errors, strict=True)]
    assert VERDICTS["fig9"](found)[0] == status


def test_an_optimum_at_the_edge_of_the_grid_is_reported():
    found = figure_data("fig6", lambda _, policy: 1 if policy == "asrpt" else 9)
    assert not any("largest τ" in sentence for sentence in VERDICTS["fig6"](found)[1])
    edged = [replace(view, setting="τ = 1000, aside") for view in found]
    assert any("In 4 of 4 columns, A-SRPT's best τ" in sentence for sentence in VERDICTS["fig6"](edged)[1])


# Table II


def test_free_gpus_fit_the_job_on_several_servers():
    for gpus in (2, 3, 16, 32):
        counts = free_gpus(gpus, random.Random(gpus))
        assert sum(counts) == gpus
        assert len(counts) > 1
        assert max(counts) <= 8


def test_table2():
    done = []
    rows = table2(cases=2, limit_s=2.0, on_progress=lambda: done.append(1))
    assert [row.model for row in rows] == ["VGG19", "GPT-175B"]
    assert len(done) == 4
    assert all(row.exact <= row.heavy_edge * (1 + 1e-9) for row in rows)
    assert "## Table II" in page(["table2"], Jobs(), Results(), rows)


@pytest.mark.parametrize(("vgg", "gpt", "status"), [(1.05, 1.0, HOLDS), (1.2, 1.0, PARTLY), (1.2, 1.1, FAILS)])
def test_table2_verdict(vgg, gpt, status):
    rows = [Row(name, 20, ratio, 0.001, 1.0, 1.0, 1.0, 0) for name, ratio in (("VGG19", vgg), ("GPT-175B", gpt))]
    assert f"**{status}.**" in page(["table2"], Jobs(), Results(), rows)
