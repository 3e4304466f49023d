"""The state of a training after a round, and its checkpoint: an .npz file without pickle that numpy reads."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slurm_asrpt.errors import AsrptError
from slurm_asrpt.files import replacing
from slurm_asrpt.pool.arrays import Array, Arrays, Packed

LOSSES = "losses"
SIZES = "sizes"
STATE = "state/"


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What a training is after so many rounds. losses: the mean loss of each round."""

    state: Packed
    losses: tuple[float, ...] = ()

    @property
    def rounds(self) -> int:
        """Rounds done."""
        return len(self.losses)

    def after(self, state: Packed, loss: float) -> Snapshot:
        """The snapshot after one more round."""
        return Snapshot(state, (*self.losses, loss))


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A snapshot and the sizes of its training. ended: whether the training is complete."""

    snapshot: Snapshot
    tasks: int
    rounds: int
    ended: bool


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the file. Raises OSError."""
    snapshot = checkpoint.snapshot
    arrays: dict[str, Any] = {f"{STATE}{name}": array for name, array in snapshot.state.arrays().items()}
    arrays[LOSSES] = np.array(snapshot.losses, np.float64)
    arrays[SIZES] = np.array([checkpoint.tasks, checkpoint.rounds, checkpoint.ended], np.int64)
    with replacing(path) as file:
        np.savez(file, **arrays)


def read_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint, or None if there is none. Raises AsrptError for a damaged file."""
    try:
        with np.load(path, allow_pickle=False) as found:
            arrays: Arrays = dict(found)
        losses = tuple(arrays[LOSSES].astype(float).tolist())
        tasks, rounds, ended = arrays[SIZES].tolist()
    except FileNotFoundError:
        return None
    except (KeyError, ValueError, TypeError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise AsrptError(f"{path}: a damaged checkpoint; remove it to start this training again") from error
    state = {name.removeprefix(STATE): array for name, array in arrays.items() if name.startswith(STATE)}
    return Checkpoint(Snapshot(Packed.of(state), losses), tasks, rounds, bool(ended))


def weights(path: Path) -> dict[str, Array]:
    """The arrays of a checkpoint, for users. Raises AsrptError if there is none."""
    found = read_checkpoint(path)
    if found is None:
        raise AsrptError(f"{path}: no checkpoint")
    return found.snapshot.state.arrays()
