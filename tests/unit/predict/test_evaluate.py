"""Evaluating predictors in order of time, and asrpt-admin evaluate."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from slurm_asrpt_cli.admin import app
from typer.testing import CliRunner

from slurm_asrpt.errors import InputError
from slurm_asrpt.history.store import History, Run, Source
from slurm_asrpt.hook.table import Answer
from slurm_asrpt.predict.evaluation import EvaluationRun, evaluate_predictor, score
from slurm_asrpt.predict.predictors import Example, predictor_names
from slurm_asrpt.sim.predictors import chains_of

DAY = 86400


def case(group: str, iterations: float, submit: float) -> EvaluationRun:
    chain = chains_of([group], ["u"], [1])[0]
    return EvaluationRun(Example(chain, iterations), submit, submit + iterations)


def test_running_jobs_are_not_learned() -> None:
    cases = [case("a", 10, 0), case("a", 500, 1), case("b", 1, 20), case("a", 10, 20)]
    found = evaluate_predictor("last", cases, 3, None, 10, 0)
    assert (found.mae, found.near, found.unseen) == (0, 1, 0)


def test_rolling_evaluation_keeps_learning_and_once_does_not() -> None:
    cases = [case("a", 10, 0), case("b", 100, 50), case("b", 100, 500), case("b", 100, 900)]
    once, rolling = (evaluate_predictor("median", cases, 1, every, 10, 0) for every in (None, 100))
    assert (once.unseen, once.mae) == (1, 100)
    assert rolling.unseen == pytest.approx(1 / 3)
    assert rolling.mae == pytest.approx(100 / 3)


def test_runs_that_are_not_learned_are_still_evaluated() -> None:
    silent = replace(case("a", 10, 0), trains=False)
    assert evaluate_predictor("last", [silent, case("a", 10, 20)], 1, None, 10, 0).unseen == 1


def test_scores() -> None:
    answers = [Answer(100, 50, 120, "group"), Answer(100, 100, 100, "group"), Answer()]
    told = [answers[0], Answer(100, 100, 400, "group"), Answer()]
    found = score(answers, told, [110, 300, 50])
    assert found.mae == pytest.approx((10 + 200 + 50) / 3)
    assert found.near == pytest.approx(1 / 3)
    assert found.unseen == pytest.approx(1 / 3)
    assert (found.inside, found.table_inside) == (1, 0.5)
    assert (found.width, found.table_width) == pytest.approx(((2.4 + 4) / 2, (2.4 + 1) / 2))
    assert math.isnan(score([Answer()], [Answer()], [5]).inside)


def test_only_runs_that_had_ended_adjust_the_intervals() -> None:
    """All runs suddenly take three times as long: jobs submitted before the first one ends cannot know."""
    before = [case("a", 100 + place % 7, 1000.0 * place) for place in range(100)]
    drifted = [case("a", 300, 200_000 + 10.0 * place) for place in range(100)]
    for count, expected in ((29, 0.0), (100, 0.7)):
        found = evaluate_predictor("expected", [*before, *drifted[:count]], 100, None, 10, 0)
        assert found.table_inside == 0
        assert found.inside == pytest.approx(expected, abs=0.02)


def test_a_subset_can_be_evaluated(config: str) -> None:
    judged = ["--data", "pai-like:400:2", "--jobs", "0", "--predictor", "last", "--config", config, "--json"]
    found = json.loads(run("--train", "0.5", "--judge", "0.2", *judged)[1])
    assert (found["judged"], found["predictors"][1]["once"]["jobs"]) == (80, 80)
    assert json.loads(run("--train", "0.9", "--judge", "0.2", *judged)[1])["judged"] == 40


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["evaluate", *args])
    if isinstance(result.exception, InputError):
        return 2, str(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "asrpt.toml").write_text(f'[paths]\nstate = "{tmp_path}"\nhook = "{tmp_path}"\n[predict]\ntrees = 5\n')
    return str(tmp_path / "asrpt.toml")


def test_a_state_that_no_run_has_is_an_error(config: str, tmp_path: Path) -> None:
    with History(tmp_path / "history.sqlite") as history:
        history.record(Run(str(i), i, state=state) for i, state in enumerate(("COMPLETED", "FAILED"), start=1))
    code, text = run("--learn-from", "failed", "--learn-from", "foo", "--config", config)
    assert code == 2
    assert text == "--learn-from FOO: no run has this state; states found: COMPLETED, FAILED"


def test_every_predictor_is_compared_with_the_forest(config: str) -> None:
    code, text = run("--data", "pai-like:400:2", "--jobs", "50", "--rolling", "--config", config, "--json")
    assert code == 0
    rows = {row["predictor"]: row for row in json.loads(text)["predictors"]}
    assert set(rows) == set(predictor_names()) - {"forest-sklearn"}
    for row in rows.values():
        assert row["once"]["jobs"] == row["rolling"]["jobs"] == 80
        assert set(row["completion_s"]) == {"asrpt", "asrpt-gated"}
    assert rows["expected"]["once"]["unseen"] == 0 < rows["forest"]["once"]["unseen"]


def test_the_table_has_one_line_per_predictor(config: str) -> None:
    code, text = run("--data", "pai-like:200:2", "--jobs", "0", "--predictor", "last", "--config", config)
    lines = text.splitlines()
    assert code == 0
    assert [line.split()[0] for line in lines] == ["PREDICTOR", "forest", "last"]
    assert lines[0].split() == ["PREDICTOR", "MAE", "/FOREST", "NEAR", "UNSEEN", "INSIDE"]


def test_rolling_results_are_in_a_second_table(config: str) -> None:
    code, text = run("--data", "pai-like:200:2", "--jobs", "20", "--rolling", "--predictor", "last", "--config", config)
    assert code == 0
    once, rolling = ([line.split() for line in part.splitlines()] for part in text.split("\n\n"))
    assert [line[0] for line in once] == ["PREDICTOR", "forest", "last"]
    assert [line[0] for line in rolling] == ["ROLLING", "forest", "last"]
    assert rolling[0][1:] == once[0][1:6]
    assert max(map(len, text.splitlines())) <= 80


def test_evaluate_uses_the_history_by_default(config: str, tmp_path: Path) -> None:
    runs = [
        Run(str(i), i * 3600, i * 3600, i * 3600 + 60, state, uid=1, user="u", group_id="0" * 16, gpus=1, iterations=60,
            iterations_source=Source.ELAPSED)
        for i, state in enumerate(["COMPLETED", "COMPLETED", "FAILED", "CANCELLED"] * 20, start=1)
    ]  # fmt: skip
    with History(tmp_path / "history.sqlite") as history:
        history.record(runs)
    code, text = run("--predictor", "expected", "--jobs", "10", "--config", config, "--json")
    assert code == 0
    found = json.loads(text)["predictors"][1]
    assert (found["predictor"], found["once"]["jobs"], found["once"]["mae"], found["once"]["inside"]) == (
        "expected",
        12,
        0,
        1,
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--data", "pai-like:200", "--predictor", "oracle"], "valid names: expected"),
        (["--data", "pai-like:200", "--train", "1"], "between 0 and 1"),
        (["--data", "pai-like:20"], "too few"),
        (["--data", "pai-like:200", "--judge", "0"], "above 0"),
        (["--data", "pai-like:200", "--judge", "0.01"], "2 to test on"),
        (["--data", "nowhere.csv"], "nowhere.csv"),
        (["--data", "pai-like:200", "--rolling", "--retrain", "soon"], "--retrain"),
        (["--data", "pai-like:200", "--rolling", "--retrain", "0"], "above 0"),
        (["--data", "pai-like:200", "--learn-from", "foo"], "states found: none"),
    ],
)
def test_bad_input_is_one_line_with_the_remedy(args: list[str], words: str, config: str) -> None:
    code, text = run(*args, "--config", config)
    assert code == 2
    assert words in text
    assert "\n" not in text
