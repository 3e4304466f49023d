"""The Hugging Face callback in a real Trainer on the CPU; nothing is downloaded."""

from __future__ import annotations

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


def trainer(folder: Path, **options: Any) -> Any:
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
    return transformers.Trainer(model=Line(), args=arguments, train_dataset=rows(), callbacks=[ProgressCallback()])


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
