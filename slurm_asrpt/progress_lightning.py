"""For PyTorch Lightning: ``Trainer(callbacks=[ProgressCallback()])`` reports optimizer steps and loss to asrpt.

If the job's owner lets asrpt preempt it (``--comment=asrpt:interrupt=USR1``), the callback writes a checkpoint when the
signal comes, under the name from which Lightning resumes by itself in a job of Slurm. In jobs whose ranks srun starts,
Lightning's own handler for USR1 takes precedence: it writes the same checkpoint, and requeues the job.

Requires the extra ``lightning``, or an installed ``pytorch_lightning``.
"""

from __future__ import annotations

import math
from pathlib import PurePath
from typing import Any

from slurm_asrpt import progress
from slurm_asrpt.checkpoints import SIGNAL, WAIT_S, Checkpoints

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback


class ProgressCallback(Callback):
    """Iterations are ``trainer.global_step``, which checkpoints restore; accumulated gradients count once."""

    def __init__(self, signal_name: str = SIGNAL, wait_s: float = WAIT_S) -> None:
        """signal_name: as in --comment. wait_s: how long to wait for the requeue after a checkpoint."""
        self._signal, self._wait_s = signal_name, wait_s
        self._total: int | None = None
        self._checkpoints: Checkpoints | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._checkpoints = Checkpoints(self._signal, self._wait_s)
        if trainer.is_global_zero:
            self._total = _steps_of(trainer)
            progress.resume(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.is_global_zero:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            progress.report(trainer.global_step, self._total, loss)
        if self._checkpoints is not None and self._checkpoints.due():
            trainer.save_checkpoint(_resumed_from(trainer))
            self._checkpoints.written(trainer.global_step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        progress.flush()
        if self._checkpoints is not None:
            self._checkpoints.close()


def _resumed_from(trainer: Any) -> str:
    """Where Lightning looks for the checkpoint of a requeued job: the one with the highest number."""
    return str(PurePath(trainer.default_root_dir) / f"hpc_ckpt_{trainer.global_step}.ckpt")


def _steps_of(trainer: Any) -> int | None:
    """Optimizer steps of the whole training; None if unlimited or unknown."""
    try:
        steps = float(trainer.estimated_stepping_batches)
    except Exception:  # Lightning calls the user's data loaders, which may raise anything
        return None
    return int(steps) if math.isfinite(steps) and steps > 0 else None
