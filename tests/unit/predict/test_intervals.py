"""The 10-90% interval has its coverage on jobs that it was not made from."""

from __future__ import annotations

import numpy as np
import pytest

from slurm_asrpt.predict.evaluation import evaluate_predictor
from slurm_asrpt.predict.predictors import Example, fit
from slurm_asrpt.sim.predictor_evaluation import cases_of_trace
from slurm_asrpt.sim.predictors import chains_of
from slurm_asrpt.traces.synthetic import pai_like

CHAIN = chains_of(["g"], ["u"], [1])[0]
GROUP = dict(CHAIN)["group"]


@pytest.mark.parametrize("name", ["expected", "typical", "forest"])
@pytest.mark.parametrize("seed", [1, 2])
def test_four_in_five_later_jobs_are_inside(name: str, seed: int) -> None:
    cases = cases_of_trace(pai_like(8000, 20, seed))
    found = evaluate_predictor(name, cases, 6400, None, 100, 0)
    assert 0.75 <= found.table_inside <= 0.85


@pytest.mark.parametrize("name", ["expected", "typical", "forest", "mean", "median", "last"])
def test_a_prediction_is_inside_its_interval(name: str) -> None:
    examples = [case.example for case in cases_of_trace(pai_like(2000, 5, 0))]
    entries = fit(name, examples, 10, 0)
    assert {key for example in examples for level, key in example.chain if level == "group"} <= set(entries)
    assert all(0 < entry.low <= entry.iterations <= entry.high for entry in entries.values())


def test_a_group_with_one_run_gets_the_width_of_similar_groups() -> None:
    dice = np.random.default_rng(0)
    chains = [chains_of([str(group)], [str(group)], [1])[0] for group in range(300)]
    # two runs each, which differ by a factor of about e
    examples = [Example(chain, float(1000 * np.exp(dice.normal()))) for chain in [*chains, *chains]]
    entries = fit("expected", [*examples, Example(CHAIN, 1000.0)], 10, 0)
    alone = entries[GROUP]
    assert alone.iterations == 1000
    # the difference of two draws has deviation 1.41, of which 80% lie within 1.28 deviations
    assert np.log(alone.high / 1000) == pytest.approx(1.8, abs=0.6)
    assert np.log(alone.low / 1000) == pytest.approx(-1.8, abs=0.6)


def test_constant_groups_have_a_narrow_interval() -> None:
    entry = fit("expected", [Example(CHAIN, 500.0)] * 200, 10, 0)[GROUP]
    assert (entry.low, entry.iterations, entry.high) == (500, 500, 500)


def test_intervals_per_epoch_are_per_epoch() -> None:
    examples = [Example(CHAIN, 10.0 * n, {"epochs": float(n)}) for n in (10, 20, 40, 80)] * 20
    entry = fit("expected", examples, 10, 0)[GROUP]
    assert (entry.unit, entry.iterations) == ("e", 10)
    assert 9 < entry.low <= entry.high < 11
