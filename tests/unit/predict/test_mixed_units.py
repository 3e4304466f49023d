"""Errors and intervals of histories with and without profiles: all in seconds of work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm_asrpt.core.units import MAX_ITERATIONS, Unit
from slurm_asrpt.history.store import Run, Sample, Source, sample_of
from slurm_asrpt.hook.table import Answer
from slurm_asrpt.hook.tag import Tag, parse_tag
from slurm_asrpt.predict.evaluation import evaluate_predictor, evaluation_runs
from slurm_asrpt.predict.predictors import examples_of, fit, predictor_names
from slurm_asrpt.predict.validation import drift, predicted, relative_error

GROUP = "0123456789abcdef"
PROFILED = Sample(GROUP, 7, 4000, gpus=4, work_s=100, profile="quick")
PLAIN = Sample("f" * 16, 7, 100, gpus=4)


@pytest.mark.parametrize("name", predictor_names())
def test_predictors_learn_from_both_kinds_of_runs(name: str) -> None:
    entries = fit(name, examples_of([PROFILED, PLAIN] * 20), 10, 0)
    assert predicted(entries, [PROFILED, PLAIN]) == [100, 100]
    other = replace(PROFILED, profile="slow", iterations=1000)
    assert predicted(entries, [other, replace(PROFILED, profile="", iterations=100)]) == [100, 100]
    assert relative_error(predicted(entries, [PROFILED, PLAIN] * 20), [PROFILED, PLAIN] * 20) == 0


def test_evaluation_is_in_seconds() -> None:
    profiled = Run("1", 5, group_id=GROUP, uid=7, gpus=4, state="COMPLETED", iterations=4000, profile="quick")
    profiled = replace(profiled, iterations_source=Source.REPORTED, work_s=100, iterations_of="quick")
    runs = [
        replace(run, job_id=f"{at}-{run.job_id}", start_time=200 * at, end_time=200 * at + 100)
        for at in range(30)
        for run in (profiled, replace(profiled, job_id="2", iterations=120, work_s=120, profile="", iterations_of=""))
    ]
    cases = evaluation_runs(runs, {"COMPLETED"})
    found = evaluate_predictor("expected", cases, 40, None, 10, 0)
    assert found.mae == 0
    assert found.inside == 1


def test_drift_weighs_runs_by_their_work() -> None:
    run = Run("1", 5, 5, 105, "COMPLETED", group_id=GROUP, iterations=4000, predicted_iterations=4000, work_s=100)
    run = replace(run, iterations_of="quick", profile="quick")
    plain = replace(run, iterations=100, predicted_iterations=50, iterations_of="", profile="")
    assert drift([run, plain] * 20, 0.1).error == 0.25


def test_the_work_of_a_run_without_it_is_its_elapsed_time() -> None:
    run = Run("1", 5, 5, 105, iterations=4000, iterations_source=Source.ELAPSED, alpha=0.025, profile="quick")
    assert (sample_of(run).work, sample_of(run).profile) == (100, "quick")
    for alpha in (0.0, 1.0):  # the profile was not used
        assert (sample_of(replace(run, alpha=alpha, iterations=90)).work, sample_of(run).alpha) == (90, 0.025)
    assert sample_of(replace(run, profile="", iterations=90)).work == 90


def test_a_tag_in_seconds() -> None:
    tag = Tag(GROUP, 110, "quick", low=90, high=200, mean=120, level="user", unit=Unit.SECONDS)
    assert ";v=U" in tag.format()
    assert parse_tag(tag.format()) == tag
    in_iterations = tag.in_iterations(0.5)
    assert (in_iterations.iterations, in_iterations.low, in_iterations.high, in_iterations.mean) == (220, 180, 400, 240)
    assert parse_tag(in_iterations.format()) == in_iterations
    assert in_iterations.in_iterations(0.5) == in_iterations
    assert tag.in_iterations(0.0).iterations == 0
    assert tag.in_iterations(1e-12).high == MAX_ITERATIONS


def test_an_answer_in_seconds() -> None:
    assert Answer(200, 100, 400, "group", 240).in_seconds(0.5) == Answer(100, 50, 200, "group", 120, Unit.SECONDS)
    assert Answer(200, unit=Unit.SECONDS).in_seconds(0.5) == Answer(200, unit=Unit.SECONDS)
