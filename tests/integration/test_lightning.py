"""The Lightning callback in a real Trainer on the CPU."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_asrpt.spool import Progress, read_losses, read_progress
from tests.benches.progress import new_process

torch = pytest.importorskip("torch", reason="needs the extra lightning: make test-integrations")
lightning = pytest.importorskip("lightning.pytorch", reason="needs the extra lightning: make test-integrations")

ROWS, BATCH = 64, 8


def model() -> Any:
    class Line(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    torch.manual_seed(0)
    return Line()


def loader() -> Any:
    x = torch.linspace(0, 1, ROWS).unsqueeze(1)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, 2 * x + 1), batch_size=BATCH)


def trainer(folder: Path, wait_s: float = 60.0, before: Sequence[Any] = (), **options: Any) -> Any:
    from slurm_asrpt.progress_lightning import ProgressCallback

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    callbacks = [*before, ProgressCallback(wait_s=wait_s)]
    return lightning.Trainer(accelerator="cpu", callbacks=callbacks, default_root_dir=folder, **quiet, **options)


def reported(spool: Path) -> Progress:
    found = read_progress(spool, "7")
    assert found is not None
    return found


def test_steps_total_and_a_falling_loss(spool: Path, tmp_path: Path) -> None:
    trainer(tmp_path, max_epochs=3, enable_checkpointing=False).fit(model(), loader())
    found = reported(spool)
    assert (found.done, found.total, found.start) == (24, 24, 0)
    losses = read_losses(spool, "7")
    assert [step for step, _ in losses][-1] == 24
    assert losses[-1][1] < losses[0][1]


def test_accumulated_gradients_are_one_iteration(spool: Path, tmp_path: Path) -> None:
    trainer(tmp_path, max_epochs=1, accumulate_grad_batches=4, enable_checkpointing=False).fit(model(), loader())
    assert (reported(spool).done, reported(spool).total) == (2, 2)


def test_a_checkpoint_continues_at_its_step(spool: Path, tmp_path: Path) -> None:
    first = trainer(tmp_path, max_steps=10, enable_checkpointing=False)
    first.fit(model(), loader())
    first.save_checkpoint(tmp_path / "model.ckpt")
    for path in (spool / "progress" / "7").iterdir():  # another job
        path.unlink()
    new_process()
    trainer(tmp_path, max_steps=16, enable_checkpointing=False).fit(
        model(), loader(), ckpt_path=str(tmp_path / "model.ckpt")
    )
    found = reported(spool)
    assert (found.done, found.total, found.start, found.ran) == (16, 16, 10, 6)


def test_a_failed_training_has_reported_its_last_step(spool: Path, tmp_path: Path) -> None:
    class Failing(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 5:
                raise RuntimeError("out of memory")

    training = trainer(tmp_path, max_epochs=3, enable_checkpointing=False)
    training.callbacks.append(Failing())
    with pytest.raises(RuntimeError, match="out of memory"):
        training.fit(model(), loader())
    assert reported(spool).done == 5


class Steps(lightning.Callback):  # type: ignore[misc,name-defined]
    """Which steps were done. asrptd sends its signal in step ``ask``; the job is killed in step ``kill``."""

    def __init__(self, ask: int = 0, kill: int = 0) -> None:
        self.done: list[int] = []
        self._ask, self._kill = ask, kill

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self.done.append(trainer.global_step)
        if trainer.global_step == self._ask:
            os.kill(os.getpid(), signal.SIGUSR1)
        if trainer.global_step == self._kill:
            raise KilledError


class KilledError(Exception):
    """The end of a run by a requeue."""


def test_a_preempted_job_writes_a_checkpoint_and_resumes_by_itself(
    spool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job with tasks whose command srun does not start, as with ``exec python train.py`` in the script."""
    for name, value in {"NTASKS": "1", "JOB_NAME": "train", "JOB_ID": "7", "NODEID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # trap '' USR1
    first, again = Steps(ask=5, kill=8), Steps()
    options = {"max_steps": 16, "enable_checkpointing": False}
    try:
        with pytest.raises(KilledError):
            trainer(tmp_path, wait_s=0.0, before=[first], **options).fit(model(), loader())
        assert (spool / "progress" / "7" / "checkpoint").read_text() == "5\n"
        new_process()
        trainer(tmp_path, before=[again], **options).fit(model(), loader())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert again.done == list(range(6, 17))
    assert (reported(spool).done, reported(spool).total, reported(spool).start) == (16, 16, 0)
