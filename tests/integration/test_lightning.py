"""The Lightning callback in a real Trainer on the CPU."""

from __future__ import annotations

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


def trainer(folder: Path, **options: Any) -> Any:
    from slurm_asrpt.progress_lightning import ProgressCallback

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    callbacks = [ProgressCallback()]
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
