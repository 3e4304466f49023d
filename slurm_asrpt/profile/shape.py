"""Into which stages a model that is not cut yet is cut for a job. Standard library only.

What counts as unambiguous (docs/decisions/0016): the script says in numbers how many processes a launcher starts on
each node, or Megatron-LM's tensor or pipeline sizes, and what it says fits the GPUs that the job asks for. A name such
as ``llama-3-8b-tp4pp2dp2`` says all of it.
"""

from __future__ import annotations

import re

from slurm_asrpt.profile.blocks import UncutFile
from slurm_asrpt.profile.cut import Cut, even_cut
from slurm_asrpt.profile.sizes import Sizes

_SHAPE = re.compile(r"1gpu|(?:tp([1-9][0-9]{0,3}))?(?:pp([1-9][0-9]{0,3}))?(?:dp([1-9][0-9]{0,4}))?")  # Cut.suffix


def cut_for(document: UncutFile, sizes: Sizes, gpus: int) -> Cut:
    """The cut of a job whose script says ``sizes``. Raises ValueError where that is not clear or not possible."""
    if not (sizes.procs or sizes.tp or sizes.pp):
        raise ValueError("the script does not say in numbers how GPUs share it (man asrpt-profile, attach)")
    if sizes.procs and (sizes.procs * sizes.nodes != gpus if sizes.nodes else gpus % sizes.procs):
        nodes = f" on each of {sizes.nodes} nodes" if sizes.nodes else " a node"
        raise ValueError(f"a script starts {sizes.procs} processes{nodes}, which are not the job's {gpus} GPUs")
    tensor, stages = sizes.tp or 1, sizes.pp or 1
    if gpus % (tensor * stages):
        raise ValueError(f"{tensor} tensor slices in {stages} stages do not share {gpus} GPUs evenly")
    return even_cut(document, tensor, stages, gpus // (tensor * stages))


def cut_named(document: UncutFile, shape: str) -> Cut:
    """The cut into ``tp4pp2dp2`` or a part of that. Raises ValueError."""
    found = _SHAPE.fullmatch(shape)
    if not shape or not found:
        raise ValueError(f"{shape[:40]!r} is no shape; write it as tp4pp2dp2")
    return even_cut(document, *(int(size or 1) for size in found.groups()))


def split_name(name: str) -> tuple[str, str]:
    """(model, shape) of ``llama-3-8b-tp4``; (name, "") of a name without a shape."""
    model, _, shape = name.rpartition("-")
    return (model, shape) if model and shape and _SHAPE.fullmatch(shape) else (name, "")
