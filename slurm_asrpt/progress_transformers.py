"""For Hugging Face: ``Trainer(..., callbacks=[ProgressCallback()])`` reports optimizer steps and loss to asrpt.

If the job's owner lets asrpt preempt it (``--comment=asrpt:interrupt=USR1``), the callback has the Trainer write a
checkpoint when the signal comes. ``trainer.train(resume_from_checkpoint=last_checkpoint(args.output_dir))`` continues.

Requires the extra ``transformers``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from slurm_asrpt import progress
from slurm_asrpt.checkpoints import SIGNAL, WAIT_S, Checkpoints

STATE_NAME = "trainer_state.json"
"""The Trainer writes it after everything else in a checkpoint."""


class ProgressCallback(TrainerCallback):
    """Iterations are ``state.global_step``, which checkpoints restore; the loss is the one that the Trainer logs."""

    def __init__(self, signal_name: str = SIGNAL, wait_s: float = WAIT_S) -> None:
        """signal_name: as in --comment. wait_s: how long to wait for the requeue after a checkpoint."""
        self._signal, self._wait_s = signal_name, wait_s
        self._checkpoints: Checkpoints | None = None
        self._asked = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._checkpoints = Checkpoints(self._signal, self._wait_s)
        if state.is_world_process_zero:
            progress.resume(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            progress.report(state.global_step, state.max_steps)
        if self._checkpoints is not None and self._checkpoints.due():
            control.should_save = self._asked = True

    def on_save(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self._asked and self._checkpoints is not None:
            self._asked = False
            self._checkpoints.written(state.global_step)
        elif state.is_world_process_zero:
            progress.checkpointed(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and logs and "loss" in logs:
            progress.report(state.global_step, state.max_steps, loss=logs["loss"])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        progress.flush()
        if self._checkpoints is not None:
            self._checkpoints.close()


def last_checkpoint(output_dir: str | Path) -> str | None:
    """The newest complete checkpoint of a Trainer, or None: one that was cut off has no state."""
    found = Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*/{STATE_NAME}")
    numbers = {int(number): path.parent for path in found if (number := path.parent.name.rpartition("-")[2]).isdigit()}
    return str(numbers[max(numbers)]) if numbers else None
