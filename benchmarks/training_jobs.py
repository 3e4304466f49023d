"""What the jobs of benchmarks.trainings run: python -m benchmarks.training_jobs plain --iterations 400

The small transformer of benchmarks.small_models, trained with AdamW on one batch, in a plain loop, by Lightning's
Trainer, or by that of transformers. Each reports its iterations to asrpt as its users would. Needs torch, and the
library of the trainer.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.small_models import transformer

RATE = 1e-3
BATCH, LENGTH = 8, 64


def plain(iterations: int) -> None:
    from slurm_asrpt import progress

    model, tokens, loss = transformer(BATCH, length=LENGTH)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE)
    for _ in progress.track(range(iterations), total=iterations):
        optimiser.zero_grad(set_to_none=True)
        loss(model(tokens)).backward()
        optimiser.step()


def lightning(iterations: int) -> None:
    from lightning.pytorch import LightningModule, Trainer

    from slurm_asrpt.progress_lightning import ProgressCallback

    made, tokens, loss = transformer(BATCH, length=LENGTH)

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = made

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return loss(self.model(batch))

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=RATE)

    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = Trainer(accelerator="cpu", devices=1, max_steps=iterations, callbacks=[ProgressCallback()], **quiet)
    trainer.fit(Module(), torch.utils.data.DataLoader(list(tokens) * iterations, batch_size=BATCH))


def transformers(iterations: int) -> None:
    from transformers import Trainer, TrainingArguments

    from slurm_asrpt.progress_transformers import ProgressCallback

    made, tokens, loss = transformer(BATCH, length=LENGTH)

    class Module(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = made

        def forward(self, words: Any) -> dict[str, Any]:
            return {"loss": loss(self.model(words))}

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=iterations,
            per_device_train_batch_size=BATCH,
            learning_rate=RATE,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        rows = [{"words": row} for row in tokens]
        Trainer(model=Module(), args=arguments, train_dataset=rows, callbacks=[ProgressCallback()]).train()


KINDS: dict[str, Callable[[int], None]] = {"plain": plain, "lightning": lightning, "transformers": transformers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("--iterations", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    KINDS[options.kind](options.iterations)


if __name__ == "__main__":
    main()
