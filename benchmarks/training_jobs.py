"""What the jobs of benchmarks.trainings run: python -m benchmarks.training_jobs plain --iterations 400

A transformer of benchmarks.small_models or, on a GPU, ResNet50, trained with AdamW on one batch, in a plain loop, by
Lightning's Trainer, or by that of transformers. Each reports its iterations to asrpt as its users would. Needs torch,
and the library of the trainer. The trainers have not been run on GPUs.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.small_models import MODELS
from slurm_asrpt.profile.library_tools.torch_models import resnet50

RATE = 1e-3


def cpu() -> Any:
    """The model that is trained on a CPU, for asrpt-profile run."""
    return MODELS["cpu"]["transformer"]()


def cuda() -> Any:
    """The model that is trained on a GPU."""
    return MODELS["cuda"]["gpt2-small"]()


def cuda_images() -> Any:
    """The other one."""
    return resnet50()


FACTORIES = {"text": {"cpu": cpu, "cuda": cuda}, "images": {"cuda": cuda_images}}
"""By what they train on, and device."""


def plain(iterations: int, device: str, make: Callable[[], Any]) -> None:
    from slurm_asrpt import progress

    model, tokens, loss = make()
    model, tokens = model.to(device), tokens.to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE)
    for _ in progress.track(range(iterations), total=iterations):
        optimiser.zero_grad(set_to_none=True)
        loss(model(tokens)).backward()
        optimiser.step()


def lightning(iterations: int, device: str, make: Callable[[], Any]) -> None:
    from lightning.pytorch import LightningModule, Trainer

    from slurm_asrpt.progress_lightning import ProgressCallback

    made, tokens, loss = make()

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = made

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return loss(self.model(batch))

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=RATE)

    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = Trainer(accelerator=device, devices=1, max_steps=iterations, callbacks=[ProgressCallback()], **quiet)
    trainer.fit(Module(), torch.utils.data.DataLoader(list(tokens) * iterations, batch_size=len(tokens)))


def transformers(iterations: int, device: str, make: Callable[[], Any]) -> None:
    from transformers import Trainer, TrainingArguments

    from slurm_asrpt.progress_transformers import ProgressCallback

    made, tokens, loss = make()

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
            per_device_train_batch_size=len(tokens),
            learning_rate=RATE,
            use_cpu=device == "cpu",
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        rows = [{"words": row} for row in tokens]
        Trainer(model=Module(), args=arguments, train_dataset=rows, callbacks=[ProgressCallback()]).train()


Training = Callable[[int, str, Callable[[], Any]], None]
KINDS: dict[str, Training] = {"plain": plain, "lightning": lightning, "transformers": transformers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--on", choices=list(FACTORIES), default="text")
    options = parser.parse_args()
    torch.set_num_threads(1)
    KINDS[options.kind](options.iterations, options.device, FACTORIES[options.on][options.device])


if __name__ == "__main__":
    main()
