"""Write the profile library: the nine models of the paper's Table I in several parallel configurations.

Run ``python -m slurm_asrpt.profile.library_tools.table1`` after a change here or in ``architectures.py``. All figures
are analytic, with P FLOPs per sample, a mini-batch of b samples and k replicas of a stage that share it:

    forward_s   = b P / (k F)     F: assumed effective FLOP/s, see PRECISIONS
    backward_s  = 2 forward_s     two products (input and weight gradients) per forward product; no recomputation
    bytes_out   = b V w / k       V: values per sample at the cut, w: bytes per value; bytes_in likewise
    param_bytes = N w             N: trainable parameters, so h is what an all-reduce of gradients moves
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_asrpt.core.job import JobProfile, Pipeline, Stage
from slurm_asrpt.profile.blocks import UncutFile
from slurm_asrpt.profile.cut import Cut, balanced_ends, job_profile
from slurm_asrpt.profile.header import MEASURED, Head, Provenance
from slurm_asrpt.profile.library_tools.architectures import TABLE1_MODELS, Kind, Layer, Model
from slurm_asrpt.profile.schema import LIBRARY, ProfileFile, format_profile

DEVICE = "NVIDIA A100 80 GB (assumed, not measured)"

# 80 GB minus 10 GB for activations, which the check below does not count.
STATE_BYTES_PER_GPU = 70e9

COMMENT = "Written by python -m slurm_asrpt.profile.library_tools.table1; change that, not this file."


@dataclass(frozen=True)
class Precision:
    """How a kind of model is trained.

    flops_per_s: effective FLOP/s of one GPU. value_bytes: of an activation, parameter or gradient in transit.
    state_bytes: per parameter, kept on the GPU (weights, gradients, optimizer).
    """

    name: str
    flops_per_s: float
    value_bytes: int
    state_bytes: int


# Assumptions, not measurements, for untuned PyTorch code and the few samples that a GPU sees in Table I's mini-batches;
# the A100's peaks are 156 TFLOP/s in TF32 and 312 in BF16. For scale: Narayanan et al. (SC 2021, Table 1) reach 44% of
# peak with tuned kernels. Memory: momentum SGD keeps three 4-byte values a parameter; Adam in mixed precision keeps 16
# bytes (Rajbhandari et al., ZeRO, SC 2020, section 3.1), of which 4 must be on the GPU.
PRECISIONS = {
    Kind.CONVOLUTIONS: Precision("TF32 with 4-byte values", 10e12, 4, 12),
    Kind.WIDTH_1024: Precision("BF16 with 2-byte values", 40e12, 2, 16),
    Kind.WIDE: Precision("BF16 with 2-byte values", 80e12, 2, 16),
}
OFFLOADED = Precision("BF16 with 2-byte values, optimiser state in host memory", 80e12, 2, 4)


@dataclass(frozen=True)
class Plan:
    """A parallel configuration: replicas per stage, and where the stages end (None: balance their work)."""

    suffix: str
    replicas: tuple[int, ...]
    ends: tuple[int, ...] | None = None
    offload: bool = False


def even(stages: int, replicas: int = 1, offload: bool = False) -> Plan:
    """``stages`` pipeline stages of ``replicas`` data-parallel replicas."""
    parts = ([f"pp{stages}"] if stages > 1 else []) + ([f"dp{replicas}"] if replicas > 1 else [])
    return Plan("".join(parts) or "1gpu", (replicas,) * stages, offload=offload)


def _vgg_split(conv: int) -> Plan:
    """Convolutions data-parallel, the fully connected layers on one GPU: PipeDream's plan (SOSP 2019, section 5)."""
    return Plan(f"conv{conv}fc1", (conv, 1), ends=(16, 19))


# A mini-batch of 4 (ResNet152, BERT, XLNet) goes to at most 4 replicas; Table I's 8 and 16 are wide enough for more.
_SMALL_BATCH = [even(s, k) for s, k in ((1, 1), (1, 2), (1, 4), (2, 1), (4, 1), (8, 1), (2, 2), (2, 4), (4, 2), (4, 4))]
_WIDE = [
    even(s, k) for s, k in ((1, 1), (1, 2), (1, 4), (1, 8), (1, 16), (2, 1), (4, 1), (2, 2), (2, 4), (4, 2), (4, 4))
]
_LARGE = [even(s, k) for s, k in ((4, 1), (8, 1), (16, 1), (4, 2), (4, 4), (8, 2))]

PLANS: dict[str, Sequence[Plan]] = {
    "vgg19": [*_WIDE, even(8), _vgg_split(3), _vgg_split(7), _vgg_split(15)],
    "resnet152": _SMALL_BATCH,
    "inception-v3": [*_WIDE, even(8)],
    "bert-large": _SMALL_BATCH,
    "xlnet-large": _SMALL_BATCH,
    "t5-11b": _LARGE,
    "gpt-6.7b": [even(2), even(2, 2), even(2, 4), even(2, 8), *_LARGE],
    "gpt-13b": _LARGE,
    "gpt-175b": [even(16, offload=True), even(32, offload=True), even(16, 2, offload=True), even(48), even(96)],
}


def documents() -> Iterator[ProfileFile]:
    """Every profile of the library."""
    for model in TABLE1_MODELS:
        for plan in PLANS[model.key]:
            yield build(model, plan)


def build(model: Model, plan: Plan) -> ProfileFile:
    """The profile of ``model`` under ``plan``. Raises ValueError if it cannot be trained so."""
    precision = OFFLOADED if plan.offload else PRECISIONS[model.kind]
    ends = plan.ends or balanced_ends(tuple(layer.flops for layer in model.layers), plan.replicas)
    starts = (0, *ends[:-1])
    stages = tuple(
        _stage(model, precision, replicas, start, end)
        for replicas, start, end in zip(plan.replicas, starts, ends, strict=True)
    )
    name = f"{model.key}-{plan.suffix}"
    _check_plan(name, model, precision, stages)
    head = Head(name, model.name, model.batch, DEVICE, _provenance(model, precision, ends))
    return ProfileFile(JobProfile(name, stages), head)


def measured(plan: Plan, document: UncutFile) -> JobProfile:
    """The same configuration by a measured profile of the model, whose times are balanced."""
    blocks = document.blocks
    work = tuple(block.forward_s + block.backward_s for block in blocks)
    ends = (*plan.ends[:-1], len(blocks)) if plan.ends else balanced_ends(work, plan.replicas)
    cut = Cut(ends, plan.replicas, pipeline=Pipeline.ASYNCHRONOUS)
    return job_profile(document, cut, f"{document.head.name}-{plan.suffix}")


def _stage(model: Model, precision: Precision, replicas: int, start: int, end: int) -> Stage:
    layers = model.layers[start:end]
    share = model.batch / replicas
    forward_s = share * sum(layer.flops for layer in layers) / precision.flops_per_s
    value = precision.value_bytes
    return Stage(
        replicas=replicas,
        forward_s=forward_s,
        backward_s=2 * forward_s,
        bytes_in=share * model.layers[start - 1].out * value if start else 0.0,
        bytes_out=share * layers[-1].out * value if end < len(model.layers) else 0.0,
        param_bytes=float(_params(layers, holds_first=start == 0) * value),
    )


def _params(layers: Sequence[Layer], holds_first: bool) -> int:
    return sum(layer.params + (0 if holds_first else layer.tied) for layer in layers)


def _check_plan(name: str, model: Model, precision: Precision, stages: Sequence[Stage]) -> None:
    widest = max(stage.replicas for stage in stages)
    if widest > model.batch:
        raise ValueError(f"{name}: a mini-batch of {model.batch} cannot be split over {widest} replicas")
    heaviest = max(stage.param_bytes for stage in stages) / precision.value_bytes * precision.state_bytes
    if heaviest > STATE_BYTES_PER_GPU:
        raise ValueError(f"{name}: {heaviest / 1e9:.0f} GB of training state do not fit on one GPU")


def _provenance(model: Model, precision: Precision, ends: Sequence[int]) -> Provenance:
    cuts = ", ".join(model.layers[end - 1].name for end in ends[:-1])
    origin = (
        f"computed from the architecture ({model.source}): {model.params} parameters, "
        f"{model.flops:.6g} forward FLOPs per sample; mini-batch of {model.batch} as in Table I of the A-SRPT paper"
    )
    formula = (
        f"forward_s = batch x FLOPs / (replicas x {precision.flops_per_s:.3g} FLOP/s), an assumed speed; "
        "backward_s = 2 x forward_s; "
        f"bytes at a cut = batch x values x {precision.value_bytes} / replicas; "
        f"param_bytes = parameters x {precision.value_bytes}; {precision.name}"
    )
    return Provenance("analytic", origin, formula + (f"; stages end after {cuts}" if cuts else ""))


def write_library(folder: Path) -> int:
    """Write every profile to ``folder``, remove obsolete ones, and return the number written."""
    return write_files(folder, {d.profile.name: format_profile(d, COMMENT) for d in documents()})


def write_files(folder: Path, texts: Mapping[str, str]) -> int:
    """Write these profiles by name, remove all others of ``folder`` that are not measured; returns the number
    written."""
    made = {f"{name}.toml": text for name, text in texts.items()}
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
    for path in folder.glob("*.toml"):
        if path.name not in made and f'kind = "{MEASURED}"' not in path.read_text(encoding="utf-8"):
            path.unlink()
    return len(made)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else LIBRARY
    print(f"{write_library(target)} profiles written to {target}")
