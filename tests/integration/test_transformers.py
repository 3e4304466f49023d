"""The Hugging Face callback in a real Trainer on the CPU; nothing is downloaded."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_asrpt.spool import Progress, read_losses, read_progress
from tests.benches.progress import new_process

torch = pytest.importorskip("torch", reason="needs the extra transformers: make test-integrations")
transformers = pytest.importorskip("transformers", reason="needs the extra transformers: make test-integrations")
pytest.importorskip("accelerate", reason="needs the extra transformers: make test-integrations")

ROWS, BATCH = 64, 8


class Line(torch.nn.Module):
    """Linear regression, with the loss in the output as the Trainer expects."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x: Any, labels: Any) -> dict[str, Any]:
        answer = self.layer(x)
        return {"loss": torch.nn.functional.mse_loss(answer, labels), "logits": answer}


def rows() -> list[dict[str, Any]]:
    return [{"x": x.reshape(1), "labels": (2 * x + 1).reshape(1)} for x in torch.linspace(0, 1, ROWS)]


def trainer(folder: Path, wait_s: float = 60.0, before: Sequence[Any] = (), **options: Any) -> Any:
    from slurm_asrpt.progress_transformers import ProgressCallback

    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=BATCH,
        learning_rate=0.1,
        logging_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )
    callbacks = [*before, ProgressCallback(wait_s=wait_s)]
    return transformers.Trainer(model=Line(), args=arguments, train_dataset=rows(), callbacks=callbacks)


def reported(spool: Path) -> Progress:
    found = read_progress(spool, "7")
    assert found is not None
    return found


def test_steps_total_and_a_falling_loss(spool: Path, tmp_path: Path) -> None:
    trainer(tmp_path, num_train_epochs=3, save_strategy="no").train()
    found = reported(spool)
    assert (found.done, found.total, found.start) == (24, 24, 0)
    losses = read_losses(spool, "7")
    assert losses[-1][1] < losses[0][1]


def test_a_checkpoint_continues_at_its_step(spool: Path, tmp_path: Path) -> None:
    trainer(tmp_path, max_steps=10, save_strategy="steps", save_steps=10).train()
    for path in (spool / "progress" / "7").iterdir():  # another job
        path.unlink()
    new_process()
    trainer(tmp_path, max_steps=16, save_strategy="no").train(resume_from_checkpoint=True)
    found = reported(spool)
    assert (found.done, found.total, found.start, found.ran) == (16, 16, 10, 6)


class KilledError(Exception):
    """The end of a run by a requeue."""


class Steps(transformers.TrainerCallback):  # type: ignore[misc,name-defined]
    """Which steps were done. asrptd sends its signal in step ``ask``; the job is killed in step ``kill``."""

    def __init__(self, ask: int = 0, kill: int = 0) -> None:
        self.done: list[int] = []
        self._ask, self._kill = ask, kill

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.done.append(state.global_step)
        if state.global_step == self._ask:
            os.kill(os.getpid(), signal.SIGUSR1)
        if state.global_step == self._kill:
            raise KilledError


def test_a_preempted_job_writes_a_checkpoint_and_continues_there(spool: Path, tmp_path: Path) -> None:
    from slurm_asrpt.progress_transformers import last_checkpoint

    first, again = Steps(ask=5, kill=8), Steps()
    assert last_checkpoint(tmp_path / "out") is None
    with pytest.raises(KilledError):
        trainer(tmp_path, wait_s=0.0, before=[first], max_steps=16, save_strategy="no").train()
    assert (spool / "progress" / "7" / "checkpoint").read_text() == "5\n"
    (tmp_path / "out" / "checkpoint-8").mkdir()  # killed while it wrote another one
    new_process()
    found = last_checkpoint(tmp_path / "out")
    assert found == str(tmp_path / "out" / "checkpoint-5")
    trainer(tmp_path, before=[again], max_steps=16, save_strategy="no").train(resume_from_checkpoint=found)
    assert again.done == list(range(6, 17))
    assert (reported(spool).done, reported(spool).total, reported(spool).start) == (16, 16, 0)


def test_all_checkpoints_are_reported(spool: Path, tmp_path: Path) -> None:
    trainer(tmp_path, max_steps=10, save_strategy="steps", save_steps=4).train()
    assert (spool / "progress" / "7" / "checkpoint").read_text() in ("8\n", "10\n")
