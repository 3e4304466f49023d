"""The A-SRPT paper: its experiments as simulations, and the page."""

import json
import random
import re
from dataclasses import replace

import numpy as np
import pytest

from papers.asrpt import fig5_lab, simulations, table2
from papers.asrpt.claims import CLAIMS, claims, samples
from papers.asrpt.evidence import Evidence
from papers.asrpt.models import GPT_BYTES, MODEL_SETS, TABLE2, VGG_BYTES, heaviness, with_bytes
from papers.asrpt.page import asrpt_page, less
from papers.asrpt.simulations import BASELINES, COLUMNED, FIGURES, GATED, Column, Errors, Sim, cells, columns, run, view
from papers.asrpt.table2 import FABRIC, SERVER_GPUS, Placed, free_gpus, profiles
from papers.asrpt.workload import PRIOR, TESTBED_GPUS, TRUTH, Jobs, first_runs_s, make, shares
from papers.claims import NO, REGION, UNTESTED, YES
from papers.seeded import Kept, Seeds
from slurm_asrpt.core.placement.heavy_edge import heavy_edge
from slurm_asrpt.core.timing.pipeline import iteration_time

TINY = Jobs(divide=2000)
SMALL = Jobs(divide=200)
ONE = Seeds(0, 1)


def test_the_figures_have_the_papers_columns():
    names = {figure: [column.x for column in columns(figure, Jobs())] for figure in COLUMNED}
    assert names["fig6"] == ["37,500 jobs", "75,000 jobs", "112,500 jobs", "150,000 jobs"]
    assert (names["fig7"][0], names["fig7"][-1]) == ("80% on one GPU", "0% on one GPU")
    assert [column.workload.nic for column in columns("fig8", Jobs())] == [1, 5, 10, 25, 50]
    assert all(column.workload.single == 0 for column in columns("fig8", Jobs()))
    assert names["fig9"] == ["perfect", "forest", "median", "mean"]
    for figure in ("fig6", "map"):
        assert all({sim.policy for sim in column.others} >= set(BASELINES) for column in columns(figure, Jobs()))


def test_a_simulation_used_by_two_figures_runs_once():
    ten = next(column for column in columns("fig8", Jobs()) if column.x == "10 Gbit/s")
    assert ten.sims == columns("fig7", Jobs())[-1].sims


# workloads


def test_four_fifths_of_the_trace_are_history():
    workload = make(replace(TINY, jobs=150_000), 0)
    assert workload.notes["history_jobs"] == pytest.approx(0.8 * 758_223 / 2000, abs=1)
    assert len(workload.table) == 75
    assert Jobs().cluster.text == "250 x 8 GPUs"
    assert Jobs(divide=20).cluster.text == "12 x 8 GPUs"


def test_the_testbed_is_one_server_with_windows_of_the_same_trace():
    first, second = (make(replace(SMALL, testbed=number), 0) for number in (0, 1))
    assert [node.gpus for node in first.cluster.nodes] == [TESTBED_GPUS]
    assert len(first.table) == len(second.table) == 75
    assert first.table.submit[0] == second.table.submit[0] == 0
    assert first.table.gpus.max() <= 8
    assert first.table.groups != second.table.groups
    assert make(replace(SMALL, testbed=0), 1).table.groups != first.table.groups


@pytest.mark.parametrize("share", [0.0, 0.1, 0.6])
def test_the_share_of_unseen_jobs(share):
    natural = make(SMALL, 0).table
    table = make(replace(SMALL, unseen_share=share), 0).table
    unseen = table.predicted == 0
    assert unseen.mean() == pytest.approx(share, abs=0.05)
    assert len({group for group, gone in zip(table.groups, unseen, strict=True) if gone} & {
        group for group, gone in zip(table.groups, unseen, strict=True) if not gone}) == 0  # fmt: skip
    both = ~unseen & (natural.predicted > 0)
    assert np.array_equal(table.predicted[both], natural.predicted[both])
    assert np.array_equal(table.iterations, natural.iterations)


def test_unseen_jobs_get_a_prior_or_the_truth():
    natural, known, truth = (
        make(each, 0).table for each in (SMALL, replace(SMALL, unseen=PRIOR), replace(SMALL, unseen=TRUTH))
    )
    unseen = natural.predicted == 0
    assert unseen.any()
    assert np.array_equal(truth.predicted[unseen], natural.iterations[unseen])
    alpha = np.nan_to_num(natural.best_alphas(SMALL.cluster.nodes, SMALL.cluster.fabric), nan=1.0)
    assert (known.predicted * alpha)[unseen] == pytest.approx(first_runs_s(SMALL.divide, 0))
    assert shares(known, SMALL.cluster) == (0, 0)
    for table in (known, truth):
        assert np.array_equal(table.predicted[~unseen], natural.predicted[~unseen])


@pytest.mark.parametrize("models", [name for name in MODEL_SETS if name != "library"])
def test_other_models_leave_durations_and_errors_alone(models):
    library, other = make(SMALL, 0).table, make(replace(SMALL, models=models), 0).table
    nodes, fabric = SMALL.cluster.nodes, SMALL.cluster.fabric
    durations = [each.iterations * each.best_alphas(nodes, fabric) for each in (library, other)]
    assert durations[1] == pytest.approx(durations[0], nan_ok=True)
    assert other.predicted / other.iterations == pytest.approx(library.predicted / library.iterations)
    assert np.median(heaviness(other, SMALL.cluster)) < np.median(heaviness(library, SMALL.cluster)) / 2


def test_the_bytes_of_table2_give_the_papers_times():
    """VGG19: 88.11 ms over the cases of the first seed; GPT-175B: Heavy-Edge within the printed digits of the best."""
    times = {}
    for model, share in (("VGG19", VGG_BYTES), ("GPT-175B", GPT_BYTES)):
        draw, choices = random.Random(f"0 {model}"), profiles(table2.MODELS[model])
        found = []
        for _ in range(20):
            profile = draw.choice(choices)
            counts = free_gpus(profile.gpus, draw)
            servers = (SERVER_GPUS,) * len(counts)
            light = with_bytes(profile, share)
            alone = max(stage.forward_s + stage.backward_s for stage in light.stages)
            found.append((iteration_time(light, heavy_edge(light, counts), servers, FABRIC), alone))
        times[model] = np.mean(found, axis=0)
    assert times["VGG19"][0] == pytest.approx(0.08811, rel=0.01)
    assert times["GPT-175B"][0] / times["GPT-175B"][1] < 1.015


# simulations


def test_measured_figures_are_json_and_perfect_prediction_has_no_error():
    found = Sim(TINY, "asrpt-perfect").measure(0)
    assert json.loads(json.dumps(found)) == found
    assert found["mean_error"] == found["unseen"] == 0
    assert Sim(TINY, "asrpt").measure(0)["mean_error"] > 0
    assert found["mean_jct_s"] >= found["sound_s"] * (1 - 1e-9)


def test_prediction_errors_are_those_of_the_jobs_after_the_history():
    found = Errors("median", 200).measure(0)
    table = make(Jobs(jobs=758_223, predictor="median", divide=200), 0).table
    assert found["mean_error"] == pytest.approx(np.abs(table.iterations - table.predicted).mean())
    assert found["within_1"] <= found["within_10"] <= found["within_50"] <= 1 - found["unseen"]


def test_a_stored_run_is_resumed(tmp_path, monkeypatch):
    kept = replace(ONE, kept=Kept(tmp_path))
    first = run(["fig9"], TINY, kept)
    monkeypatch.setattr(Sim, "measure", lambda *_: pytest.fail("run again"))
    assert run(["fig9"], TINY, kept) == first
    next(tmp_path.glob("*.json")).write_text("{")
    with pytest.raises(pytest.fail.Exception):
        run(["fig9"], TINY, kept)


# the page


@pytest.fixture(scope="module")
def evidence():
    seeds = Seeds(0, 2)
    placed = table2.run(seeds, 2, 2.0)
    return Evidence(TINY, seeds, run(FIGURES, TINY, seeds), placed)


def test_all_figures_make_a_page(evidence):
    text = asrpt_page(list(CLAIMS), evidence)
    for title in ("Fig. 4", "Fig. 5", "Fig. 6", "Fig. 9", "Table II", "Where A-SRPT", "From A-SRPT"):
        assert f"## {title}" in text
    assert "python -m papers.asrpt all --seed 0 --seeds 2 --divide 2000" in text
    lines = [line for line in text.splitlines() if line.startswith("| wcs-workload |")]
    assert len(lines) == 5
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({row.count("|") for row in table.splitlines()}) == 1


def test_every_figure_has_claims_with_the_paper_figure_and_a_command(evidence):
    found = claims(list(CLAIMS), evidence)
    items = {claim.item for claim in found}
    assert items >= {*(f"Fig. {n}" for n in range(1, 10)), "Table I", "Table II", "Theorem 1"}
    assert {claim.verdict for claim in found} <= {YES, NO, REGION, UNTESTED}
    for claim in found:
        assert claim.ours or claim.verdict == UNTESTED
        assert claim.region or claim.verdict not in (REGION, UNTESTED)
        assert claim.command.startswith(("python -m papers.asrpt ", "pytest tests/", "asrpt-profile"))
        assert claim.seeds == 2 or not claim.command.startswith("python")
    assert {claim.item for claim in claims(["fig6"], evidence)} == {"Fig. 6"}


def test_samples_are_cells_of_the_page(evidence):
    found = {sample.item: sample for sample in samples(TINY, 0)}
    assert set(found) == set(CLAIMS) - {fig5_lab.FIGURE}  # which nothing simulates
    column = columns("fig6", TINY)[0]
    assert (
        found["fig6"].value
        == evidence.results[next(s for s in cells("fig6", TINY) if s in column.sims)][0]["mean_jct_s"]
    )


# verdicts


def measured(hours, **more):
    return {
        "mean_jct_s": hours * 3600, "mean_wait_s": hours * 1800, "placement_loss": 0.1, "load": 0.9, "single_gpu": 0.5,
        "unseen": 0.2, "unseen_work": 0.3, "sound_s": 1800.0, "mean_error": 10.0, "relative_error": 0.1,
        "within_10": 0.5, "heaviness": 2.0, "makespan_s": 1e5, **more,
    }  # fmt: skip


def evidence_of(figure, hours, errors=None):
    """Evidence of a figure. hours: of A-SRPT and of each other policy, per column; A-SRPT is best with τ = 100."""
    results = {}
    for number, column in enumerate(columns(figure, Jobs())):
        for sim in column.ours:
            worse = 0 if sim.tau == 100 else 1
            more = {"mean_error": errors[number]} if errors else {}
            results[sim] = [measured(hours(number, "asrpt") + worse, **more)] * 2
        for sim in column.others:
            results[sim] = [measured(hours(number, sim.policy))] * 2
    return Evidence(Jobs(), Seeds(0, 2), results, {})


def verdicts(figure, evidence):
    return [claim.verdict for claim in CLAIMS[figure](evidence)]


@pytest.mark.parametrize(
    ("ours", "verdict", "says"),
    [(1.0, YES, "75% less"), (3.5, NO, "12% less"), (4.0, NO, "1.00 times"), (50.0, NO, "12.50 times")],
)
def test_fig6(ours, verdict, says):
    """Baselines at 4 h, SPJF at 20 h: the claim is 31%."""
    found = evidence_of("fig6", lambda _, policy: ours if policy == "asrpt" else 20 if policy == "spjf" else 4)
    below, most, worst = CLAIMS["fig6"](found)
    assert (below.verdict, worst.verdict) == (verdict, YES if ours < 20 else worst.verdict)
    assert below.ours == says
    assert most.verdict == (YES if ours <= 1.8 else NO)
    assert found.views("fig6")[0].tau == 100


def test_a_claim_that_is_true_of_some_columns_holds_there():
    found = evidence_of("fig6", lambda number, policy: 1 + 9 * (number > 1) if policy == "asrpt" else 4)
    below = CLAIMS["fig6"](found)[0]
    assert (below.verdict, below.region) == (REGION, "37,500 jobs; 75,000 jobs")


def test_fig6_names_the_worst_baseline():
    found = evidence_of("fig6", lambda _, policy: 1 if policy == "asrpt" else 10 if policy == "spwf" else 4)
    assert verdicts("fig6", found)[-1] == NO
    assert CLAIMS["fig6"](found)[-1].ours == "spwf"


def test_fig7_requires_an_increasing_gain():
    growing = evidence_of("fig7", lambda number, policy: 5 - number if policy == "asrpt" else 8)
    shrinking = evidence_of("fig7", lambda number, policy: 2 + number if policy == "asrpt" else 8)
    assert (verdicts("fig7", growing), verdicts("fig7", shrinking)) == ([YES, YES], [YES, NO])


def test_fig8():
    good = evidence_of("fig8", lambda _, policy: {"asrpt": 1, "spjf": 100, "wcs-duration": 2}.get(policy, 3))
    bad = evidence_of("fig8", lambda _, policy: 2 if policy == "asrpt" else 1)
    assert verdicts("fig8", good) == [YES, YES, YES]
    assert verdicts("fig8", bad) == [NO, NO, NO]


@pytest.mark.parametrize(
    ("hours", "errors", "expected"),
    [
        ((1, 1.1, 1.2, 1.3), (0, 1, 2, 3), [YES, YES, YES]),
        ((1, 1.5, 1.6, 1.7), (0, 1, 2, 3), [NO, YES, YES]),
        ((1, 1.5, 1.4, 1.3), (0, 3, 2, 1), [NO, NO, NO]),
    ],
)
def test_fig9(hours, errors, expected):
    found = evidence_of("fig9", lambda number, policy: hours[number] if policy == "asrpt" else 9, errors)
    assert verdicts("fig9", found) == expected


def test_the_region_of_the_map():
    """Better at two points, and at a third one not by more than two standard errors."""
    names = [each.x for each in columns("map", Jobs())]
    found = evidence_of("map", lambda number, policy: 0.5 if number in (3, 5, 7) and policy == "asrpt" else 1)
    third = next(sim for sim in columns("map", Jobs())[7].ours if sim.tau == 100)
    found.results[third][:] = [measured(0.1), measured(1.1)]
    (outperforms,) = CLAIMS["map"](found)
    assert (outperforms.verdict, outperforms.region) == (REGION, f"{names[3]}; {names[5]}")
    none = evidence_of("map", lambda number, policy: 2 if policy == "asrpt" else 1)
    assert (CLAIMS["map"](none)[0].verdict, CLAIMS["map"](none)[0].region) == (NO, "")


def test_a_view_takes_the_least_mean_over_the_seeds():
    jobs = Jobs()
    ours = tuple(Sim(jobs, "asrpt", (("tau", tau),)) for tau in (1.0, 10.0, 100.0))
    others = (Sim(jobs, "spjf"), Sim(jobs, "spwf"))
    hours = dict(zip((*ours, *others), ((1, 9), (4, 4), (6, 6), (5, 3), (8, 8)), strict=True))
    found = view(Column("x", jobs, ours, others), {sim: [measured(each) for each in row] for sim, row in hours.items()})
    assert (found.tau, found.over("spjf")) == (10.0, [0.8, pytest.approx(4 / 3)])
    assert found.wins == 1  # below both baselines in the first seed only


def test_words_for_ratios():
    assert less([0.5, 0.7]) == "40% ± 14% less"
    assert less([2.0]) == "2.00 times"


# the steps from A-SRPT to asrpt-gated


def test_each_step_ends_every_job_and_the_last_is_asrpt_gated():
    for row in simulations.steps(SMALL).values():
        assert next(iter(row)) == "A-SRPT"
        assert row["+ the reservation"].policy == GATED
        for sim in row.values():
            found = sim.measure(0)
            assert found["ended"] == found["jobs"] - found["never_started"]
        break


def test_work_conservation_lets_jobs_pass_a_job_that_does_not_fit():
    jobs = replace(SMALL, single=0.3, load=2.0)
    plain, passing = (Sim(jobs, name, (("tau", 0.0),)).measure(0) for name in ("asrpt", "asrpt-conserving"))
    assert passing["utilisation_arriving"] > plain["utilisation_arriving"]


def test_resorting_with_no_iterations_known_is_the_order_of_submission():
    """Every job unseen: the workload is 0 for all, so that the two orders agree."""
    jobs = replace(SMALL, unseen_share=1.0, load=2.0)
    fifo, sorted_ = (Sim(jobs, name, (("tau", 0.0),)).measure(0) for name in ("asrpt-conserving", "asrpt-resorting"))
    assert sorted_["mean_jct_s"] == fifo["mean_jct_s"]
    ordered = Sim(replace(jobs, unseen_share=0.0), "asrpt-resorting", (("tau", 0.0),)).measure(0)
    assert ordered["mean_jct_s"] != fifo["mean_jct_s"]


def test_without_reservations_jobs_wait_differently():
    jobs = replace(SMALL, single=0.0, load=1.5)
    assert Sim(jobs, "asrpt-unreserved").measure(0)["mean_jct_s"] != Sim(jobs, GATED).measure(0)["mean_jct_s"]


# Table II


def test_free_gpus_fit_the_job_on_several_servers():
    for gpus in (2, 3, 16, 32):
        counts = free_gpus(gpus, random.Random(gpus))
        assert sum(counts) == gpus
        assert len(counts) > 1
        assert max(counts) <= 8


def test_placed():
    for model in table2.MODELS:
        found = Placed(model, 2, 2.0).measure(0)
        assert found[table2.EXACT] <= found[table2.HEAVY_EDGE] * (1 + 1e-9)
        assert found["cases"] == 2


@pytest.mark.parametrize(
    ("vgg", "gpt", "verdict"), [(1.05, 1.0, (YES, YES)), (1.2, 1.0, (NO, YES)), (1.2, 1.1, (NO, NO))]
)
def test_table2_verdict(vgg, gpt, verdict):
    took = {table2.HEAVY_EDGE_TOOK: 0.001, table2.EXACT_TOOK: 40.0}
    placed = {
        name: [{table2.HEAVY_EDGE: ratio, table2.REFINED: 1.0, table2.EXACT: 1.0, **took}] * 2
        for name, ratio in (("VGG19", vgg), ("GPT-175B", gpt))
    }
    found = CLAIMS["table2"](Evidence(Jobs(), Seeds(0, 2), {}, placed))
    assert (found[0].verdict, found[2].verdict) == verdict
    assert (found[1].verdict, found[3].verdict) == (YES, YES)


def test_table2_models_are_those_of_the_library():
    assert TABLE2 in MODEL_SETS
    assert all(profile.gpus >= 2 for prefix in table2.MODELS.values() for profile in profiles(prefix))
