"""Models on disk: which are rejected, which are activated, and atomic updates of the hook's table."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_asrpt.config.settings import Settings, parse_settings
from slurm_asrpt.errors import InputError
from slurm_asrpt.history.store import History, Origin, Run
from slurm_asrpt.hook.group import owned
from slurm_asrpt.hook.table import parse_table, read_table
from slurm_asrpt.predict.model_store import KEPT_OTHERS, ModelError, active_name, list_models, load_model
from slurm_asrpt.predict.retrain import RetrainError, RetrainReport, activate, models_folder, retrain, rollback

GROUP = "0123456789abcdef"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    paths = {"state": str(tmp_path / "state"), "hook": str(tmp_path / "hook")}
    (tmp_path / "state").mkdir(mode=0o700)
    return parse_settings({"paths": paths, "predict": {"trees": 3}}, "test")


def ran(
    settings: Settings, iterations: int, count: int, first: int, cluster: str = "", origin: Origin = Origin.ASRPTD
) -> None:
    """``count`` completed runs, one a second from ``first`` on."""
    with History(settings.paths.state / "history.sqlite") as history:
        history.record(
            Run(
                f"{cluster}{at}",
                at,
                end_time=at,
                state="COMPLETED",
                group_id=GROUP,
                iterations=iterations,
                origin=origin,
            )
            for at in range(first, first + count)
        )


def learned(settings: Settings, now: float, force: bool = False) -> RetrainReport:
    return retrain(settings, now, force=force)


def table_says(settings: Settings) -> float:
    return read_table(settings.paths.hook / "table.txt")[owned(-1, GROUP)].iterations


@pytest.fixture
def two_models(settings: Settings) -> list[str]:
    """100, then 200 iterations."""
    ran(settings, 100, 5, 1)
    first = learned(settings, 10.0).model.name
    ran(settings, 300, 5, 11)
    return [first, learned(settings, 20.0).model.name]


def test_rollback_goes_back_one_model_and_activate_selects_any(settings: Settings, two_models: list[str]) -> None:
    assert table_says(settings) > 100
    assert rollback(settings).name == two_models[0]
    assert table_says(settings) == 100
    with pytest.raises(RetrainError, match="no older"):
        rollback(settings)
    assert activate(settings, two_models[1]).name == active_name(models_folder(settings)) == two_models[1]
    assert table_says(settings) > 100


def test_a_worse_model_is_stored_but_not_activated(settings: Settings) -> None:
    ran(settings, 100, 30, 1)
    good = learned(settings, 100.0).model.name
    ran(settings, 100, 30, 101)
    # an import of invented old runs
    ran(settings, 9000, 30, 1, cluster="imported")
    report = learned(settings, 200.0)
    assert "30 runs" in report.refused
    assert report.verdict.old == 0.0
    assert active_name(models_folder(settings)) == good
    assert table_says(settings) == 100
    infos = [listed.info for listed in list_models(models_folder(settings))]
    assert [bool(info and info.refused) for info in infos] == [False, True]

    forced = learned(settings, 300.0, force=True)
    assert forced.refused == ""
    assert active_name(models_folder(settings)) == forced.model.name
    assert rollback(settings).name == good  # not the rejected one


@pytest.mark.parametrize("first", [1, 101, 131])
def test_imported_runs_do_not_validate_a_model(settings: Settings, first: int) -> None:
    """False runs with end times before the active model, among the later true runs, and after them."""
    ran(settings, 100, 30, 1)
    good = learned(settings, 100.0).model.name
    ran(settings, 100, 30, 101)
    ran(settings, 9000, 200, first, cluster="file", origin=Origin.CSV)
    report = learned(settings, 400.0)
    assert (report.verdict.runs, report.verdict.reference, bool(report.refused)) == (30, good, True)
    assert table_says(settings) == 100


def test_true_runs_from_a_file_are_accepted(settings: Settings) -> None:
    ran(settings, 100, 30, 1)
    learned(settings, 100.0)
    ran(settings, 300, 30, 101)
    ran(settings, 300, 60, 1, cluster="file", origin=Origin.CSV)
    report = learned(settings, 200.0)
    assert (report.refused, table_says(settings)) == ("", 300)


def test_gradual_degradation_is_detected_against_an_older_model(settings: Settings) -> None:
    ran(settings, 100, 30, 1)
    first = learned(settings, 50.0).model.name
    ran(settings, 100, 15, 101)
    learned(settings, 150.0)
    ran(settings, 100, 15, 201)
    report = learned(settings, 250.0)
    assert report.verdict.reference == first
    assert report.verdict.runs == 30


def test_too_few_runs_reject_no_model(settings: Settings, two_models: list[str]) -> None:
    info = load_model(models_folder(settings), two_models[1]).info
    assert info.error is None
    assert info.refused == ""


def corrupt_data(folder: Path) -> None:
    data = (folder / "predictions.txt").read_bytes()
    (folder / "predictions.txt").write_bytes(data.replace(b"1", b"2", 1))


def corrupt_meta(folder: Path) -> None:
    (folder / "model.json").write_text("{")


def truncate(folder: Path) -> None:
    os.truncate(folder / "predictions.txt", 40)


def foreign_owner(folder: Path) -> None:
    os.chown(folder / "predictions.txt", 54321, 54321)


def foreign_folder(folder: Path) -> None:
    os.chown(folder, 54321, 54321)


def writable(folder: Path) -> None:
    (folder / "model.json").chmod(0o666)


def linked(folder: Path) -> None:
    (folder / "predictions.txt").rename(folder / "elsewhere")
    (folder / "predictions.txt").symlink_to("elsewhere")


def fifo(folder: Path) -> None:
    (folder / "model.json").unlink()
    os.mkfifo(folder / "model.json")


def of_another_format(folder: Path) -> None:
    raw = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(raw | {"format": 99}))


def with_changed_scores(folder: Path) -> None:
    raw = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(raw | {"error": 0.01}))


NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of files")


@pytest.mark.parametrize(
    "damage",
    [
        *(corrupt_data, corrupt_meta, truncate, writable, linked, fifo, of_another_format, with_changed_scores),
        *(pytest.param(give, marks=NEEDS_ROOT) for give in (foreign_owner, foreign_folder)),
    ],
)
def test_a_damaged_or_foreign_model_is_rejected_and_the_last_valid_one_is_kept(
    settings: Settings, two_models: list[str], damage: object
) -> None:
    assert callable(damage)
    before = (settings.paths.hook / "table.txt").read_bytes()
    damage(models_folder(settings) / two_models[0])
    with pytest.raises(ModelError, match=two_models[0]):
        activate(settings, two_models[0])
    with pytest.raises(RetrainError, match="no older good"):
        rollback(settings)
    assert active_name(models_folder(settings)) == two_models[1]
    assert (settings.paths.hook / "table.txt").read_bytes() == before
    listed = list_models(models_folder(settings))
    assert [bool(each.trouble) for each in listed] == [True, False]
    learned(settings, 30.0)  # continues: an unreadable model rejects no other


@pytest.mark.parametrize("name", ["", ".", "..", "../models", "no-such", "current", "/etc", "a\x1b[2J"])
def test_only_valid_model_names_are_accepted(settings: Settings, two_models: list[str], name: str) -> None:
    with pytest.raises(InputError, match="models list"):
        activate(settings, name)


def test_a_state_directory_that_others_can_write_is_rejected(settings: Settings, two_models: list[str]) -> None:
    settings.paths.state.chmod(0o777)
    with pytest.raises(ModelError, match="others can write"):
        activate(settings, two_models[0])


def test_readers_see_a_complete_table_while_models_change(settings: Settings, two_models: list[str]) -> None:
    tables = {load_model(models_folder(settings), name).data for name in two_models}
    seen: set[bytes] = set()
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.add((settings.paths.hook / "table.txt").read_bytes())

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for turn in range(60):
        activate(settings, two_models[turn % 2])
    stop.set()
    for reader in readers:
        reader.join()
    assert seen <= tables
    assert all(parse_table(data) for data in seen)


def test_the_active_model_is_never_pruned(settings: Settings, two_models: list[str]) -> None:
    activate(settings, two_models[0])
    few = settings.model_copy(update={"predict": settings.predict.model_copy(update={"keep_models": 1})})
    report = replace(learned(few, 30.0))
    names = {listed.name for listed in list_models(models_folder(settings))}
    assert names == {report.model.name}
    activate(settings, report.model.name)


def test_a_new_history_rejects_no_model(settings: Settings) -> None:
    ran(settings, 100, 30, 1)
    learned(settings, 100.0)
    (settings.paths.state / "history.sqlite").unlink()
    ran(settings, 100, 30, 101)
    report = learned(settings, 200.0)
    assert (report.refused, report.verdict.new) == ("", None)


def test_an_empty_model_does_not_replace_a_useful_one(settings: Settings) -> None:
    ran(settings, 100, 30, 1)
    learned(settings, 100.0)
    (settings.paths.state / "history.sqlite").unlink()
    assert "no runs to train on" in learned(settings, 200.0).refused
    assert table_says(settings) == 100
    assert learned(settings, 300.0, force=True).refused == ""


def test_an_unusable_only_model_is_replaced_with_a_message(settings: Settings) -> None:
    ran(settings, 100, 30, 1)
    first = learned(settings, 100.0)
    assert first.unjudged == ""
    (first.model / "predictions.txt").write_bytes(b"junk")
    ran(settings, 300, 60, 101)
    report = learned(settings, 200.0)
    assert (report.refused, report.verdict.reference) == ("", "")
    assert first.model.name in report.unjudged
    assert learned(settings, 300.0).unjudged == ""


@pytest.mark.parametrize("broken", [True, False])
def test_without_a_previous_model_imported_runs_must_not_make_predictions_worse(
    settings: Settings, broken: bool
) -> None:
    ran(settings, 100, 150, 1)
    if broken:
        (learned(settings, 160.0).model / "predictions.txt").write_bytes(b"junk")
    ran(settings, 9000, 300, 1, cluster="file", origin=Origin.CSV)
    report = learned(settings, 200.0)
    assert (report.verdict.runs, report.verdict.old, report.unjudged) == (30, 0.0, "")
    assert "a model without the imported files" in report.refused
    assert learned(settings, 300.0, force=True).refused == ""
    assert table_says(settings) == 9000


def test_without_a_previous_model_true_imported_runs_are_accepted(settings: Settings) -> None:
    ran(settings, 100, 150, 1)
    ran(settings, 100, 300, 1, cluster="file", origin=Origin.CSV)
    report = learned(settings, 200.0)
    assert (report.refused, report.verdict.new, report.verdict.old) == ("", 0.0, 0.0)


def test_rejected_models_do_not_displace_valid_ones(settings: Settings, two_models: list[str]) -> None:
    (settings.paths.state / "history.sqlite").unlink()
    few = settings.model_copy(update={"predict": settings.predict.model_copy(update={"keep_models": 2})})
    for turn in range(6):
        assert learned(few, 100.0 + turn).refused
    listed = list_models(models_folder(settings))
    assert [each.name for each in listed if each.info and not each.info.refused] == two_models
    assert len(listed) == 2 + KEPT_OTHERS


def test_the_next_model_is_compared_with_an_active_model_that_was_once_rejected(settings: Settings) -> None:
    ran(settings, 100, 30, 1)
    learned(settings, 100.0)
    ran(settings, 100, 30, 101)
    ran(settings, 9000, 30, 1, cluster="imported")
    refused = learned(settings, 200.0)
    assert refused.refused
    activate(settings, refused.model.name)
    ran(settings, 100, 30, 201)
    assert learned(settings, 300.0).verdict.reference == refused.model.name


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of files")
def test_files_created_by_root_belong_to_the_owner_of_the_state_directory(settings: Settings) -> None:
    os.chown(settings.paths.state, 12345, 12345)
    name = learned(settings, 10.0).model.name
    models = models_folder(settings)
    for path in (models, models / name, models / name / "model.json", settings.paths.state / "retrain.lock"):
        assert path.stat().st_uid == 12345, path
