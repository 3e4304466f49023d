"""For PyTorch Lightning: ``Trainer(callbacks=[ProgressCallback()])`` reports optimizer steps and loss to asrpt.

Requires the extra ``lightning``, or an installed ``pytorch_lightning``.
"""

from __future__ import annotations

import math
from typing import Any

from slurm_asrpt import progress

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback


class ProgressCallback(Callback):
    """Iterations are ``trainer.global_step``, which checkpoints restore; accumulated gradients count once."""

    def __init__(self) -> None:
        self._total: int | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero:
            self._total = _steps_of(trainer)
            progress.resume(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.is_global_zero:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            progress.report(trainer.global_step, self._total, loss)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        progress.flush()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        progress.flush()


def _steps_of(trainer: Any) -> int | None:
    """Optimizer steps of the whole training; None if unlimited or unknown."""
    try:
        steps = float(trainer.estimated_stepping_batches)
    except Exception:  # Lightning calls the user's data loaders, which may raise anything
        return None
    return int(steps) if math.isfinite(steps) and steps > 0 else None
