"""The eight models of Hare's Table II on its four GPU types, and the origin of each number.

Seconds per batch: Table III has Hare's time to switch to a model, and its share of the task's time. Their ratio is the
task's time, which is taken as the mean over the testbed's GPUs (8 V100, 4 T4, 1 K80, 2 M60).

Speed relative to a K80: Fig. 1 has no numbers. The text says that ResNet50 has 2 on a T4 and 7 on a V100, and GraphSAGE
"about 2" on a V100 because its data arrives slowly. We assume that a share f of each model's K80 time scales with the
GPU: speed = 1 / (1 - f + f / speed of ResNet50), so f = 1 for ResNet50 and 7/12 for GraphSAGE. The other values of f
are assumptions (convolutions like ResNet50, recurrent and graph models in between), and so is 1.3 for an M60.

Synchronization: 4 bytes per parameter, sent and received at the NIC's rate. Numbers of parameters are from the models'
papers; VGG-19 has 20 million with the small classifier for CIFAR, and the graph models are tiny on Cora.
"""

from __future__ import annotations

from dataclasses import dataclass

TYPES = ("V100", "T4", "K80", "M60")
GPU_BOUND = {"V100": 7.0, "T4": 2.0, "K80": 1.0, "M60": 1.3}
"""Speed relative to a K80 of a model that is limited by the GPU only."""
TESTBED = {"V100": 8, "T4": 4, "K80": 1, "M60": 2}
GBIT = 25.0
"""The testbed's network, Gbit/s."""
BYTES = 4.0


@dataclass(frozen=True)
class Model:
    """kind: the paper's job type. scaling: f. switch_ms: of Hare, PipeSwitch, default. share: Hare's of a task."""

    name: str
    kind: str
    batch: int
    scaling: float
    parameters: float
    switch_ms: tuple[float, float, float]
    share: float

    def speed(self, gpu: str) -> float:
        """Speed relative to a K80."""
        return 1 / (1 - self.scaling + self.scaling / GPU_BOUND[gpu])

    def compute_s(self, gpu: str, batch: float = 1.0) -> float:
        """T^c, seconds. batch: factor on the model's batch size."""
        mean_s = self.switch_ms[0] / 1000 / self.share
        k80_s = mean_s * sum(TESTBED.values()) / sum(number / self.speed(kind) for kind, number in TESTBED.items())
        return batch * k80_s / self.speed(gpu)

    def sync_s(self, gbit: float = GBIT) -> float:
        """T^s, seconds, on any GPU: send the gradients and receive the model."""
        return 2 * BYTES * self.parameters / (gbit * 1e9 / 8)


MODELS = (
    Model("VGG19", "CV", 128, 1.0, 20.0e6, (2.77, 4.01, 3288.94), 0.0182),
    Model("ResNet50", "CV", 64, 1.0, 25.6e6, (2.04, 4.75, 5961.16), 0.0371),
    Model("InceptionV3", "CV", 32, 0.95, 23.8e6, (2.46, 5.03, 7807.43), 0.0143),
    Model("Bert_base", "NLP", 32, 0.95, 110e6, (5.03, 12.57, 9016.99), 0.0113),
    Model("Transformer", "NLP", 128, 0.9, 65e6, (5.79, 10.34, 5257.17), 0.0136),
    Model("DeepSpeech", "Speech", 8, 0.85, 38e6, (4.27, 8.91, 5125.64), 0.0125),
    Model("FastGCN", "Rec.", 128, 0.6, 0.02e6, (1.83, 2.86, 5327.24), 0.0453),
    Model("GraphSAGE", "Rec.", 16, 7 / 12, 0.02e6, (0.96, 2.42, 5213.54), 0.0336),
)
KINDS = ("CV", "NLP", "Speech", "Rec.")
SWITCHING = {"hare": 0, "pipeswitch": 1, "default": 2}


POOL_MS = {
    "pool-warm": (12.4, 8.23, 5.62, 12.5, 12.09, 0.38, 0.71, 0.41),
    "pool-process": (8948.54, 7639.48, 8373.6, 8898.23, 8875.71, 9058.03, 8400.45, 8374.68),
}
"""Ways of asrpt-pool to turn to another training, on an H200, in the order of MODELS (benchmarks/results/pool.md)."""
FREE = "none"


def switch_s(how: str) -> dict[str, float]:
    """Seconds to load a job of each model onto a GPU: a column of Table III, a way of asrpt-pool, or FREE.

    Raises KeyError for an unknown method.
    """
    if how == FREE:
        return {model.name: 0.0 for model in MODELS}
    if how in POOL_MS:
        return {model.name: ms / 1000 for model, ms in zip(MODELS, POOL_MS[how], strict=True)}
    column = SWITCHING[how]
    return {model.name: model.switch_ms[column] / 1000 for model in MODELS}
