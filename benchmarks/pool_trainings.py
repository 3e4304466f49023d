"""Trainings for benchmarks.pool: the eight models of Hare's Table III, and small ones, on synthetic data; needs torch.

Of DeepSpeech, FastGCN and GraphSAGE, these have the layers and their sizes; graphs are dense samples.

python -m benchmarks.pool_trainings VGG19 --device cuda: one task in a process of its own, as `benchmarks.pool` times it
"""

from __future__ import annotations

import argparse
import copy
import subprocess
import sys
import time
from collections.abc import Callable
from functools import lru_cache, partial
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.small_models import cnn, transformer
from slurm_asrpt.pool import torch_training
from slurm_asrpt.pool.arrays import Packed
from slurm_asrpt.pool.torch_training import TorchTraining
from slurm_asrpt.pool.training import AHEAD, LAYERS, WARM, Switching
from slurm_asrpt.profile.library_tools.torch_models import CrossEntropy, bert_large, inception_v3, resnet50, vgg19


class Speech(nn.Module):
    """DeepSpeech 2: two convolutions over the spectrogram, five bidirectional GRUs, and a letter for each frame."""

    def __init__(self, width: int, letters: int) -> None:
        super().__init__()
        self.sound = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), stride=(2, 2), padding=(20, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), stride=(2, 1), padding=(10, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
        )  # fmt: skip
        self.memory = nn.GRU(32 * 41, width, num_layers=5, bidirectional=True, batch_first=True)
        self.letters = nn.Linear(2 * width, letters)

    def forward(self, x: Any) -> Any:
        found = self.sound(x)
        return self.letters(self.memory(found.flatten(1, 2).transpose(1, 2))[0])


class Graph(nn.Module):
    """Two layers over a sampled graph. own: beside its neighbors' mean, each node's own features count (GraphSAGE)."""

    def __init__(self, features: int, width: int, classes: int, own: bool) -> None:
        super().__init__()
        self.own = own
        self.first = nn.Linear(features * (1 + own), width)
        self.second = nn.Linear(width * (1 + own), classes)

    def forward(self, x: Any) -> Any:
        for layer in (self.first, self.second):
            x = layer(torch.cat([x, self._mean(x)], -1) if self.own else self._mean(x)).relu()
        return x

    @staticmethod
    def _mean(x: Any) -> Any:
        """Of neighbors: the eight nodes that follow, in a ring."""
        return torch.stack([x.roll(step, 0) for step in range(1, 9)]).mean(0)


def speech(batch: int = 8, frames: int = 400) -> Any:
    wanted = torch.randint(29, (batch * frames // 2,))
    return Speech(800, 29), torch.randn(batch, 1, 161, frames), CrossEntropy(wanted)


def small(batch: int = 256, size: int = 32) -> Any:
    """Convolutions of 0.3 million parameters, as one tries out on CIFAR."""
    layers: list[nn.Module] = []
    for before, after in ((3, 64), (64, 64), (64, 128), (128, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)]
    return nn.Sequential(*layers), torch.randn(batch, 3, size, size), CrossEntropy(torch.randint(10, (batch,)))


def graph(own: bool, batch: int = 4096) -> Any:
    return Graph(602, 256, 41, own), torch.randn(batch, 602), CrossEntropy(torch.randint(41, (batch,)))


MODELS: dict[str, Callable[[], Any]] = {
    "VGG19": vgg19,
    "ResNet50": resnet50,
    "Inception V3": inception_v3,
    "Bert_base": partial(bert_large, batch=8, tokens=384, hidden=768, heads=12, count=12),
    "Transformer": partial(transformer, batch=16, layers=12, width=512, words=32000, length=256),
    "DeepSpeech": speech,
    "FastGCN": partial(graph, own=False),
    "GraphSAGE": partial(graph, own=True),
    "cnn": cnn,
    "transformer": partial(transformer, batch=1, layers=8, width=512, length=8),
    "small": small,
}
"""Those of the paper first, then two for CPUs, and a small one for a GPU."""
PAPER, SMALL = list(MODELS)[:8], ["cnn", "transformer"]
SWITCHES = {"cpu": 12, "cuda": 6}


class Synthetic(TorchTraining):
    """A training of one of the models, always of the same batch, with momentum."""

    def __init__(self, model: str, tasks: int = 1, rounds: int = 1, seed: int = 0, device: str = "cpu") -> None:
        self.tasks, self.rounds, self.seed, self.device = tasks, rounds, seed, device
        self._name = model
        self.announce: Callable[[], object] = lambda: None

    def model(self) -> Any:
        module, self._inputs, self._criterion = self.made()
        return module

    def made(self) -> Any:
        return MODELS[self._name]()

    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.SGD(parameters, 1e-4, momentum=0.9)

    def data(self, round: int, task: int) -> Any:
        self.announce()
        return self._inputs

    def loss(self, model: Any, batch: Any) -> Any:
        return self._criterion(model(batch))


def train(training: Synthetic) -> dict[str, Any]:
    """The usual loop, all of it on the device. Returns the parameters."""
    module = training._made.to(training.device)
    optimizer = training.optimizer(module.parameters())
    batch = training.data(0, 0).to(training.device)
    for _ in range(training.rounds):
        for _ in range(training.tasks):
            loss = training.loss(module, batch) / training.tasks
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return {name: each.detach().cpu().numpy() for name, each in module.named_parameters()}


# What a switch costs


def timed_models(device: str) -> list[str]:
    """On a GPU the paper's models, else small ones."""
    return PAPER if device == "cuda" else SMALL


def process_ms(name: str, device: str, repetitions: int) -> float:
    """Milliseconds of a process of its own for one task: from its start until it has gone. The median."""
    command = [sys.executable, "-m", "benchmarks.pool_trainings", name, "--device", device]
    times = []
    for _ in range(repetitions):
        began = time.perf_counter()
        subprocess.run(command, check=True)
        times.append(time.perf_counter() - began)
    return round(median(times) * 1000, 2)


def turns_ms(name: str, device: str, quick: bool) -> dict[str, dict[str, float]]:
    """Milliseconds per switch between two trainings of a model, by way, and whether both fit."""
    found: dict[str, dict[str, float]] = {WARM: {}, LAYERS: {}, AHEAD: {}}
    repetitions = (3 if device == "cuda" else 5) if quick else 15
    size = sum(each.nbytes for each in _once(name)[0].parameters())
    limits = {name: 0, f"{name}, one fits": int(1.5 * size)}
    if quick and device == "cuda":
        del limits[name]  # nothing has to be copied
    for title, limit in limits.items():
        turns = {way: Turns(name, device, Switching(way, limit)) for way in found}
        for way, ms in alternating(turns, repetitions).items():
            found[way][title] = ms
        for each in turns.values():
            each.leave()
    return found


def alternating(turns: dict[str, Turns], repetitions: int) -> dict[str, float]:
    """The ways alternate, and each is compared with itself, as a machine's speed changes. The median counts."""
    found: dict[str, list[float]] = {way: [] for way in turns}
    for _ in range(repetitions):
        for way, each in turns.items():
            found[way].append(each.switch_ms())
    return {way: round(median(each), 2) for way, each in found.items()}


class Copied(Synthetic):
    """With a copy of a model that is there: to draw the first weights anew takes seconds."""

    def made(self) -> Any:
        return copy.deepcopy(_once(self._name))


@lru_cache(1)
def _once(name: str) -> Any:
    return MODELS[name]()


class Turns:
    """Two equal trainings in one process, as an executor has them."""

    def __init__(self, model: str, device: str, switching: Switching) -> None:
        torch_training.residency.cache_clear()  # the ways do not share one
        self._switches = SWITCHES[device]
        self._pair = [Copied(model, seed=seed, device=device) for seed in (0, 1)]
        self._states = []
        for training in self._pair:
            allocate = training.adopt(switching)
            self._states.append(Packed.of(training.initial(), allocate).arrays())
        self.switch_ms()

    def switch_ms(self) -> float:
        """(time(ABAB...) - time(AA...) - time(BB...)) / switches."""
        half = self._switches // 2
        both = self._run([0, 1] * half + [0])
        return (both - self._run([0] * (half + 1)) - self._run([1] * half)) / self._switches * 1000

    def _run(self, order: list[int]) -> float:
        self._compute(order[0], order[0])
        began = time.perf_counter()
        for which, next_one in zip(order, [*order[1:], order[-1]], strict=True):
            self._compute(which, next_one)
        return time.perf_counter() - began

    def _compute(self, which: int, next_one: int) -> None:
        training, other = self._pair[which], self._pair[next_one]
        training.announce = partial(other.prefetch, self._states[next_one])
        training.gradient(self._states[which], 0, 0)

    def leave(self) -> None:
        for training in self._pair:
            training.leave()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=list(MODELS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    training = Synthetic(options.model, device=options.device)
    training.gradient(training.initial(), 0, 0)


if __name__ == "__main__":
    main()
