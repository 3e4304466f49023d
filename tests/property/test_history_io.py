"""Export and import preserve runs with any text; other rows are counted and never cause a crash."""

from __future__ import annotations

import csv
import io
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.history.csv_json import (
    NAMES,
    Skipped,
    fallback_group,
    read_csv,
    read_json_lines,
    write_csv,
    write_json_lines,
)
from slurm_asrpt.history.importing import Importer, import_rows
from slurm_asrpt.history.store import History, Origin, Run, Source
from slurm_asrpt.hook.table import render_table
from slurm_asrpt.predict.communication import from_bytes, learn, to_bytes
from slurm_asrpt.predict.conformal import RunConformal
from slurm_asrpt.predict.predictors import examples_of, fit, training_samples
from tests.examples import examples

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        "=cmd|'/c calc'!A0",
        "'",
        "'=x",
        "''",
        "-1",
        "@",
        "\t",
        "\r",
        "\r\n",
        "a\r",
        "\0",
        '"',
        ',"',
        "\x1b[2J",
        "a\nb",
        "'a",
    ]
)
TIME = st.integers(0, 2**40)
COUNT = st.integers(0, 2**60)
REAL = st.floats(allow_nan=False, allow_infinity=False)
MEASURE = st.floats(0, allow_infinity=False)
GROUP = st.just("") | st.text("0123456789abcdef", min_size=16, max_size=16)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    start = draw(TIME)
    return Run(
        job_id=draw(TEXT.filter(bool)),
        start_time=start,
        submit_time=draw(TIME),
        end_time=draw(st.just(0) | st.integers(start, 2**41)),
        state=draw(TEXT),
        exit_code=draw(st.integers(-(2**31), 2**31)),
        user=draw(TEXT),
        uid=draw(st.integers(-(2**31), 2**32)),
        group_id=draw(GROUP),
        job_name=draw(TEXT),
        partition=draw(TEXT),
        gpus=draw(COUNT),
        nodes=draw(st.dictionaries(TEXT, COUNT, max_size=3)),
        profile=draw(TEXT),
        predicted_iterations=draw(COUNT),
        iterations=draw(COUNT),
        iterations_source=draw(st.sampled_from(Source)),
        alpha=draw(MEASURE),
        program=draw(GROUP),
        features=draw(st.dictionaries(TEXT, REAL, max_size=3)),
        predicted_low=draw(COUNT),
        predicted_high=draw(COUNT),
        predicted_by=draw(TEXT),
        reported_total=draw(COUNT),
        origin=draw(st.sampled_from(Origin)),
        account=draw(TEXT),
        tres=draw(TEXT),
        work_s=draw(COUNT),
        iterations_of=draw(TEXT),
        switches=draw(COUNT),
        link_s=draw(MEASURE),
    )


def distinct(found: list[Run]) -> dict[tuple[str, int], Run]:
    return {run.key: run for run in found}


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(runs(), max_size=5), st.booleans())
def test_export_and_import_preserve_runs(found: list[Run], as_csv: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "runs")
        with History(Path(folder, "one")) as one, table.open("w", encoding="utf-8", newline="") as file:
            one.record(found)
            (write_csv if as_csv else write_json_lines)(file, one.all_runs())
            before = list(one.all_runs())
        assert len(before) == len(distinct(found))
        with History(Path(folder, "two")) as two:
            for _ in range(2):
                into = Importer(two)
                import_rows(read_csv(table, {}) if as_csv else read_json_lines(table), into)
                assert into.counts.skipped == {}
            assert list(two.all_runs()) == before
            assert (into.counts.there, into.counts.added, into.counts.updated) == (len(before), 0, 0)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(runs(), min_size=1, max_size=3), st.data())
def test_exported_cells_are_never_spreadsheet_formulas(found: list[Run], data: st.DataObject) -> None:
    text = io.StringIO()
    write_csv(text, found)
    rows = list(csv.reader(io.StringIO(text.getvalue(), newline="")))
    assert rows[0] == list(NAMES)
    numbers = {"exit_code", "uid"}
    for row in rows[1:]:
        for name, cell in zip(NAMES, row, strict=True):
            assert name in numbers or cell[:1] not in tuple("=+-@\t\r")


@settings(max_examples=examples(150), deadline=None)
@given(st.binary(max_size=400), st.booleans(), st.booleans())
def test_any_bytes_are_read_as_rows_or_counted_as_skipped(raw: bytes, as_csv: bool, titled: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "table")
        titles = b"job_id,start_time,end_time,uid,nodes,alpha,state\n" * (titled or as_csv)
        table.write_bytes((titles if as_csv else titles + b'{"job_id": ""}\n') + raw)
        rows = list(read_csv(table, {}) if as_csv else read_json_lines(table))
        with History(Path(folder, "history")) as history:
            into = Importer(history)
            import_rows(rows, into)
            counts = into.counts
            assert counts.read == len(rows)
            assert counts.added + counts.updated + counts.there + counts.skipped.total() == len(rows)
            assert len(history.runs()) == counts.added
    assert all(isinstance(row, Run | Skipped) for row in rows)


CELL = TEXT | st.sampled_from(
    ["1", "1.5", "1e400", "nan", "-5", "2024-05-01", "10:00", "1-00:00:00", "{}", "[", '{"a":1}', "9" * 25]
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(CELL, CELL, CELL, CELL, CELL, CELL, CELL), max_size=4))
def test_any_cells_are_read_as_rows_or_counted_as_skipped(cells: list[tuple[str, ...]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(["id", "start", "elapsed", "gpus", "nodes", "iterations", "name"])
    writer.writerows(cells)
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "table")
        table.write_text(text.getvalue(), encoding="utf-8", newline="")
        rows = list(read_csv(table, {}))
        with History(Path(folder, "history")) as history:
            import_rows(rows, Importer(history))
    assert len(rows) == len(cells)


WILD = st.sampled_from([0, 1, -1, 7, 2**61, -(2**61), 0.5, -2.5, 1e300, 1e-300])
WILD_VALUES = {
    **dict.fromkeys(("group_id", "program", "profile", "iterations_of", "state", "user", "predicted_by"), TEXT | GROUP),
    **dict.fromkeys(
        ("uid", "gpus", "iterations", "work_s", "predicted_iterations", "predicted_high", "switches"), WILD
    ),
    **dict.fromkeys(("alpha", "link_s", "iteration_s", "speed"), WILD),
    "state": st.sampled_from(["COMPLETED", "FAILED", "TIMEOUT"]),
    "iterations_source": st.sampled_from(["reported", "elapsed", "none"]),
    "features": st.dictionaries(st.sampled_from(["epochs", "steps", "lr", "a:b,\n"]), WILD, max_size=2),
}


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.fixed_dictionaries({}, optional=WILD_VALUES), min_size=1, max_size=6))
def test_models_can_be_made_of_whatever_was_imported(found: list[dict[str, Any]]) -> None:
    """One row of a foreign file must not keep a site from learning."""
    lines = [
        json.dumps({"job_id": f"{at}", "start_time": 1000 * at, "end_time": 1000 * at + 900, **values})
        for at, values in enumerate(found, start=1)
    ]
    with tempfile.TemporaryDirectory() as folder, History(Path(folder, "history")) as history:
        table = Path(folder, "table")
        table.write_text("\n".join(lines), encoding="ascii")
        import_rows(read_json_lines(table), Importer(history))
        samples = training_samples(history.samples())
        assert all(sample.work > 0 for sample in samples)
        for name in ("expected", "typical", "forest", "median"):
            render_table(fit(name, examples_of(samples), trees=10, seed=0))
        beliefs = learn(history, Fabric(1e9, 1e10))
        assert all(math.isfinite(belief.rate) for belief in from_bytes(to_bytes(beliefs)).known.values())
        RunConformal.of_history(history, 0.0)


@given(st.integers(0, 10**6), st.text("abc", min_size=1, max_size=8), st.integers(0, 10**6))
def test_a_counter_in_the_job_name_does_not_split_a_substitute_group(uid: int, name: str, number: int) -> None:
    assert (
        fallback_group(uid, f"{name}-{number}", number)
        == fallback_group(uid, name, 1)
        != fallback_group(uid + 1, name, 1)
    )


@given(st.integers(-(10**6), 10**6), st.integers(0, 10**6))
def test_without_a_name_user_and_gpus_form_the_substitute_group(uid: int, gpus: int) -> None:
    others = {fallback_group(uid + 1, "", gpus), fallback_group(uid, "", gpus + 1), fallback_group(uid, "x", gpus)}
    assert fallback_group(uid, "", gpus) not in others
    assert len(others) == 3
