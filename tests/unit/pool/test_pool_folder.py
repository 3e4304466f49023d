"""The directory of a pool: checkpoints, added trainings, the lock."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slurm_asrpt.errors import AsrptError, InputError
from slurm_asrpt.pool.arrays import Packed
from slurm_asrpt.pool.folder import CHECKPOINT, PoolFolder
from slurm_asrpt.pool.snapshot import Checkpoint, Snapshot, read_checkpoint, weights, write_checkpoint
from slurm_asrpt.pool.sweep import Spec

STATE = Packed.of({"layer/w": np.arange(6, dtype=np.float32).reshape(2, 3), "steps": np.array(7), "losses": np.ones(2)})
SPEC = Spec("a", "m:F", {"lr": 0.1})


@pytest.fixture
def folder(tmp_path: Path) -> PoolFolder:
    made = PoolFolder(tmp_path / "pool")
    made.make()
    return made


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT
    assert read_checkpoint(path) is None
    losses = (0.1, float("nan"), 1 / 3)
    write_checkpoint(path, Checkpoint(Snapshot(STATE, losses), 4, 9, True))
    found = read_checkpoint(path)
    assert found is not None
    assert (found.tasks, found.rounds, found.ended) == (4, 9, True)
    assert found.snapshot.state.same(STATE)
    np.testing.assert_array_equal(found.snapshot.losses, losses)
    np.testing.assert_array_equal(weights(path)["layer/w"], STATE.arrays()["layer/w"])


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"noise" * 100])
def test_a_damaged_checkpoint_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / CHECKPOINT
    path.write_bytes(content)
    with pytest.raises(AsrptError, match="a damaged checkpoint"):
        read_checkpoint(path)


def test_a_checkpoint_with_objects_is_not_unpickled(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT
    with path.open("wb") as file:
        np.savez(file, losses=np.array([print], dtype=object))
    with pytest.raises(AsrptError, match="a damaged checkpoint"):
        read_checkpoint(path)


def test_a_checkpoint_is_of_one_training(folder: PoolFolder) -> None:
    assert folder.prepare(SPEC) is None
    folder.save("a", Checkpoint(Snapshot(STATE), 1, 2, False))
    assert folder.prepare(SPEC) is not None
    with pytest.raises(InputError, match="other settings than its checkpoint"):
        folder.prepare(Spec("a", "m:F", {"lr": 0.2}))


def test_added_trainings_are_seen_once_and_stay(folder: PoolFolder) -> None:
    seen: set[str] = set()
    folder.add([SPEC])
    assert folder.added(seen) == (SPEC,)
    assert folder.added(seen) == ()
    other = Spec("b", "m:F", {})
    folder.add([other])
    assert folder.added(seen) == (other,)
    assert folder.added(set()) == (SPEC, other)


@pytest.mark.parametrize(
    "text", ["{", '{"a": 1}', "[1]", '[{"name": "b"}]', '[{"name": "b", "uses": "m:F", "wiht": {}}]']
)
def test_a_damaged_file_of_added_trainings_is_told_and_left_out(folder: PoolFolder, text: str) -> None:
    folder.add([SPEC])
    (folder.path / "added" / "0.json").write_text(text)
    told: list[str] = []
    assert folder.added(set(), told.append) == (SPEC,)
    assert len(told) == 1
    assert "0.json" in told[0]


def test_one_driver_at_a_time(folder: PoolFolder) -> None:
    assert not folder.running
    with folder.locked():
        assert folder.running
        with pytest.raises(InputError, match="another asrpt-pool runs this pool"), folder.locked():
            pass
        assert folder.running
    assert not folder.running


def test_a_stop_is_taken_once(folder: PoolFolder) -> None:
    folder.ask_to_stop()
    assert [folder.take_stop(), folder.take_stop()] == [True, False]


def test_only_the_owner_enters(folder: PoolFolder) -> None:
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_a_pool_that_has_not_run_has_no_status(folder: PoolFolder) -> None:
    with pytest.raises(AsrptError, match="has not run yet"):
        folder.read_status()
