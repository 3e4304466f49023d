"""Measure the library's models (torch_models.py) on a GPU, one after the other, and write a profile of each.

    python -m slurm_asrpt.profile.library_tools.measured            # all without a profile of this GPU
    python -m slurm_asrpt.profile.library_tools.measured bert-large # this one

The profiles are stored in the library beside the computed ones, as bert-large-h100. Models that do not fit are skipped,
with the reason. Small models are measured completely; of wide ones three like layers, some with a part of their
mini-batch. The bytes between the slices of a layer, and those of experts, are computed: one GPU does not show them.
Needs torch.
"""

from __future__ import annotations

import argparse
import gc
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from slurm_asrpt.errors import AsrptError
from slurm_asrpt.profile.block_timing import MeasureOptions
from slurm_asrpt.profile.blocks import Block, UncutFile, format_uncut
from slurm_asrpt.profile.device_clock import device_name
from slurm_asrpt.profile.library_tools import torch_models
from slurm_asrpt.profile.library_tools.analytic import uncut
from slurm_asrpt.profile.library_tools.architectures import RECENT_MODELS, TABLE1_MODELS, Kind, Model
from slurm_asrpt.profile.measure import measure
from slurm_asrpt.profile.schema import UNCUT

COMMENT = "Written by python -m slurm_asrpt.profile.library_tools.measured; measure again, do not change this file."
LIKE = 3
"""Number of like layers to measure, as in section V-A of the paper."""

_COMPUTED = ("tensor_bytes", "expert_bytes", "routed_bytes")
_PER_SAMPLE = (
    "forward_s",
    "backward_s",
    "forward_spread_s",
    "backward_spread_s",
    "bytes_in",
    "bytes_out",
    "kept_bytes",
)
_SMALL_TEXT = {"tokens": 8, "hidden": 64, "heads": 16, "vocabulary": 50}


@dataclass(frozen=True)
class Plan:
    """How a model is measured. count: number of its like layers, 0: measure all. parts: of its mini-batch, one of
    which fits. small: sizes that fit on any machine, for trials."""

    make: Callable[..., torch_models.Made]
    count: int = 0
    parts: int = 1
    small: dict[str, int] = field(default_factory=dict)


PLANS = {
    "vgg19": Plan(torch_models.vgg19, small={"size": 32}),
    "resnet152": Plan(torch_models.resnet152, small={"size": 32}),
    "inception-v3": Plan(torch_models.inception_v3, small={"size": 75}),
    "bert-large": Plan(torch_models.bert_large, small=_SMALL_TEXT),
    "xlnet-large": Plan(torch_models.xlnet_large, small=_SMALL_TEXT),
    "t5-11b": Plan(torch_models.t5_11b, 24, small=_SMALL_TEXT | {"heads": 1, "feed": 64}),
    "gpt-6.7b": Plan(torch_models.gpt_6_7b, 32, small=_SMALL_TEXT),
    "gpt-13b": Plan(torch_models.gpt_13b, 40, small=_SMALL_TEXT),
    "gpt-175b": Plan(torch_models.gpt_175b, 96, small=_SMALL_TEXT),
    "llama-3-8b": Plan(torch_models.llama_3_8b, 32, 4, _SMALL_TEXT | {"feed": 64}),
    "llama-3-70b": Plan(torch_models.llama_3_70b, 80, 4, _SMALL_TEXT | {"feed": 64}),
    "vit-l16": Plan(torch_models.vit_l16, small={"size": 32, "hidden": 64}),
    "mixtral-8x7b": Plan(torch_models.mixtral_8x7b, 32, 4, _SMALL_TEXT | {"feed": 64}),
}


def measured(model: Model, device: str, repeats: int, small: bool = False) -> UncutFile:
    """The model's profile on this machine. Raises InputError, also if it does not fit."""
    plan = PLANS[model.key]
    sizes = {"batch": 2} | plan.small if small else {"batch": model.batch // plan.parts}
    images = model.kind is Kind.CONVOLUTIONS
    how = MeasureOptions(
        device=device,
        dtype="float32" if images else "bfloat16",
        optimiser="sgd" if images else "adamw",
        repeats=repeats,
        layers=(LIKE, plan.count) if plan.count else None,
    )
    origin = (
        f"python -m slurm_asrpt.profile.library_tools.measured {model.key}, "
        f"a model of the architecture of {model.source}"
    )
    found = measure(partial(plan.make, **sizes), f"{model.key}-{suffix(device)}", origin, how, lambda *_: None)
    return found if small else completed(found, model, plan.parts)


def suffix(device: str) -> str:
    """h100 for NVIDIA H100 80GB HBM3; cpu."""
    found = re.search(r"[A-Za-z]{1,4}[0-9]{1,4}[A-Za-z]*", device_name(device)) if device == "cuda" else None
    return found[0].lower() if found else device


def completed(found: UncutFile, model: Model, parts: int) -> UncutFile:
    """Scale to the whole mini-batch, and add the model's name and the computed figures."""
    computed = {block.name: block for block in uncut(model).blocks}
    blocks = tuple(_whole(block, computed.get(block.name), parts) for block in found.blocks)
    old = found.head.provenance
    notes = [old.formula, "float32 in TF32" if model.kind is Kind.CONVOLUTIONS else ""]
    if parts > 1:
        notes.append(f"measured with a mini-batch of {found.head.batch}, its seconds and activations times {parts}")
    notes.append("tensor_bytes, expert_bytes and routed_bytes computed from the architecture")
    provenance = replace(old, formula="; ".join(filter(None, notes)))
    head = replace(found.head, model=model.name, batch=found.head.batch * parts, provenance=provenance)
    return UncutFile(head, blocks, found.iteration_s * parts)


def _whole(block: Block, computed: Block | None, parts: int) -> Block:
    values: dict[str, Any] = {name: parts * getattr(block, name) for name in _PER_SAMPLE}
    return replace(block, **values | ({name: getattr(computed, name) for name in _COMPUTED} if computed else {}))


def write(model: Model, folder: Path, options: argparse.Namespace) -> str:
    """Measure and write one model; returns the outcome as text."""
    path = folder / f"{model.key}-{suffix(options.device)}.toml"
    if path.exists() and model.key not in options.models:
        return f"exists already: {path}"
    began = time.monotonic()
    try:
        found = measured(model, options.device, options.repeats, options.small)
    except AsrptError as error:
        return f"skipped: {error}"
    except Exception as error:  # on any error, go on with the other models
        return f"skipped: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    path.write_text(format_uncut(found, COMMENT), encoding="utf-8")
    blocks = f"{found.blocks_s * 1e3:.1f} ms, launched in {sum(b.launch_s for b in found.blocks) * 1e3:.1f} ms"
    whole = f", whole iteration {found.iteration_s * 1e3:.1f} ms" if found.iteration_s else ""
    return f"{blocks}{whole}, took {time.monotonic() - began:.0f} s: {path}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="measure again, even if its profile exists; default: all without a profile",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="default: the library")
    parser.add_argument("--repeats", type=int, default=10, metavar="N")
    parser.add_argument(
        "--small", action="store_true", help="use sizes that fit on any machine, for trials; needs --into"
    )
    options = parser.parse_args()
    known = {model.key: model for model in (*TABLE1_MODELS, *RECENT_MODELS)}
    if unknown := set(options.models) - set(known):
        parser.error(f"{', '.join(sorted(unknown))}: unknown; valid models: {', '.join(known)}")
    if options.small and not options.into:
        parser.error("--small: its figures must not go to the library; specify a directory with --into")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU here; --device cpu --small tries it without")
    torch.set_float32_matmul_precision("high")  # TF32, the default of convolutions
    for key in options.models or known:
        print(f"{key}: {write(known[key], options.into or UNCUT, options)}", flush=True)
        gc.collect()
        if options.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
