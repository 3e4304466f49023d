"""For Hugging Face: ``Trainer(..., callbacks=[ProgressCallback()])`` reports optimizer steps and loss to asrpt.

Requires the extra ``transformers``.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from slurm_asrpt import progress


class ProgressCallback(TrainerCallback):
    """Iterations are ``state.global_step``, which checkpoints restore; the loss is the one that the Trainer logs."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            progress.resume(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            progress.report(state.global_step, state.max_steps)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and logs and "loss" in logs:
            progress.report(state.global_step, state.max_steps, loss=logs["loss"])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        progress.flush()
