"""Write the library of uncut models: the nine of Table I and some recent ones, block by block.

Run ``python -m slurm_asrpt.profile.library_tools.analytic`` after a change here or in ``architectures.py``. All figures
are analytic, for one GPU that trains the whole mini-batch of b samples alone; P, V, K, A, N of a layer as in
``architectures.py``, F and w of ``table1.PRECISIONS``:

    forward_s = b P / F, backward_s = 2 forward_s
    bytes_out = b V w, kept_bytes = b K w, tensor_bytes = b A w, routed_bytes likewise
    param_bytes = grad_bytes = N w, optimiser_bytes = the rest of the training state
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from slurm_asrpt.profile.blocks import Block, UncutFile, format_uncut
from slurm_asrpt.profile.header import Head, Provenance
from slurm_asrpt.profile.library_tools.architectures import RECENT_MODELS, TABLE1_MODELS, Layer, Model
from slurm_asrpt.profile.library_tools.table1 import DEVICE, PRECISIONS, Precision, write_files
from slurm_asrpt.profile.schema import UNCUT

COMMENT = "Written by python -m slurm_asrpt.profile.library_tools.analytic; change that, not this file."


def documents() -> Iterator[UncutFile]:
    """Every model of the library."""
    for model in (*TABLE1_MODELS, *RECENT_MODELS):
        yield uncut(model)


def uncut(model: Model) -> UncutFile:
    """The blocks of ``model`` as one GPU trains them."""
    precision = PRECISIONS[model.kind]
    head = Head(model.key, model.name, model.batch, DEVICE, _provenance(model, precision))
    return UncutFile(head, tuple(_block(model, layer, before, precision) for layer, before in _pairs(model)))


def _pairs(model: Model) -> Iterator[tuple[Layer, Layer | None]]:
    """Each layer with the previous one."""
    return zip(model.layers, (None, *model.layers), strict=False)


def _block(model: Model, layer: Layer, before: Layer | None, precision: Precision) -> Block:
    forward_s = model.batch * layer.flops / precision.flops_per_s
    params, activation = float(layer.params * precision.value_bytes), model.batch * precision.value_bytes
    return Block(
        name=layer.name,
        forward_s=forward_s,
        backward_s=2 * forward_s,
        bytes_in=float(activation * before.out) if before else 0.0,
        bytes_out=float(activation * layer.out),
        kept_bytes=activation * layer.kept,
        param_bytes=params,
        grad_bytes=params,
        optimiser_bytes=float(layer.params * (precision.state_bytes - 2 * precision.value_bytes)),
        expert_bytes=float(layer.experts * precision.value_bytes),
        routed_bytes=activation * layer.routed,
        tied_bytes=float(layer.tied * precision.value_bytes),
        tensor_bytes=activation * layer.sliced,
    )


def _provenance(model: Model, precision: Precision) -> Provenance:
    origin = (
        f"computed from the architecture ({model.source}): {model.params} parameters, "
        f"{model.flops:.6g} forward FLOPs per sample; mini-batch of {model.batch}"
    )
    formula = (
        f"forward_s = batch x FLOPs / {precision.flops_per_s:.3g} FLOP/s, an assumed speed; backward_s = 2 x forward_s"
        f"; activations = batch x values x {precision.value_bytes}; param_bytes = grad_bytes = parameters x "
        f"{precision.value_bytes}, {precision.state_bytes} bytes a parameter with the optimiser; {precision.name}"
    )
    return Provenance("analytic", origin, formula)


def write_library(folder: Path) -> int:
    """Write every model to ``folder``, remove obsolete ones, and return the number written."""
    return write_files(folder, {document.head.name: format_uncut(document, COMMENT) for document in documents()})


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else UNCUT
    print(f"{write_library(target)} models written to {target}")
