"""The eight models of Hare's Table II on its four types of GPU: where each number comes from.

Seconds a batch: Table III says how long Hare takes to switch to a model, and which share of the task's time that is;
one over the other is the task's time, which is taken as the mean over the testbed's GPUs (8 V100, 4 T4, 1 K80, 2 M60).

Speed over a K80: Fig. 1 is a picture; the text gives ResNet50 2 on a T4 and 7 on a V100, and GraphSAGE "about 2" on a
V100 because its data comes slowly. A share f of each model's K80 time is taken to scale with the GPU, the rest not:
speed = 1 / (1 - f + f / speed of ResNet50), so that f = 1 for ResNet50 and 7/12 for GraphSAGE. The other f are
assumptions (convolutions like ResNet50, recurrent and graph models in between), and so is 1.3 for an M60.

Synchronisation: 4 bytes a parameter, sent and fetched at the NIC's rate. Parameters are those of the models' papers;
VGG-19 has 20 million with the small classifier that CIFAR needs, and the graph models are tiny on Cora.
"""

from __future__ import annotations

from dataclasses import dataclass

TYPES = ("V100", "T4", "K80", "M60")
GPU_BOUND = {"V100": 7.0, "T4": 2.0, "K80": 1.0, "M60": 1.3}
"""Speed over a K80 of a model that is bound by the GPU alone."""
TESTBED = {"V100": 8, "T4": 4, "K80": 1, "M60": 2}
GBIT = 25.0
"""The testbed's network, Gbit/s."""
BYTES = 4.0


@dataclass(frozen=True)
class Model:
    """kind: the paper's type of job. scaling: f. switch_ms: Hare's, PipeSwitch's, default; share: Hare's, of a task."""

    name: str
    kind: str
    batch: int
    scaling: float
    parameters: float
    switch_ms: tuple[float, float, float]
    share: float

    def speed(self, gpu: str) -> float:
        """How many times as fast as on a K80."""
        return 1 / (1 - self.scaling + self.scaling / GPU_BOUND[gpu])

    def compute_s(self, gpu: str, batch: float = 1.0) -> float:
        """T^c, seconds. batch: times the model's own batch size."""
        mean_s = self.switch_ms[0] / 1000 / self.share
        k80_s = mean_s * sum(TESTBED.values()) / sum(number / self.speed(kind) for kind, number in TESTBED.items())
        return batch * k80_s / self.speed(gpu)

    def sync_s(self, gbit: float = GBIT) -> float:
        """T^s, seconds, whatever the GPU: gradients out and the model back."""
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


def switch_s(how: str) -> dict[str, float]:
    """Table III: seconds to bring a job of each model onto a GPU. Raises KeyError for an unknown way."""
    column = SWITCHING[how]
    return {model.name: model.switch_ms[column] / 1000 for model in MODELS}
