"""Models as blocks, not cut into stages yet: the costs of each block on one GPU. Standard library only.

The header is that of ``schema.py`` without allreduce, tensor, pipeline and micro_batches. All figures are for one
device that trains the whole mini-batch alone:

    iteration_s = 0.31               # optional: a whole iteration, measured as one

    [[block]]                        # once per block, in order; blocks are never split
    name = "layer1"
    forward_s = 0.0078               # seconds of the forward pass
    backward_s = 0.0157              # seconds of the backward pass
    bytes_out = 2097152              # activations handed to the next block

Optional, 0 by default:

    update_s                         # seconds of the optimizer's step, independent of the batch
    launch_s                         # the host's seconds to launch all that on a GPU, independent of the batch
    forward_spread_s, backward_spread_s  # interquartile range of the repeated measurements
    outliers                         # measurements beyond 1.5 of that range; the medians include them
    bytes_in                         # activations taken from other blocks
    kept_bytes                       # activations kept from the forward pass for the backward pass
    param_bytes, grad_bytes, optimiser_bytes  # memory of the block's parameters; gradients are all-reduced
    expert_bytes                     # part of param_bytes that belongs to experts; a replica only holds its share
    routed_bytes                     # tokens sent to experts, one way
    tied_bytes                       # parameters of the first block that a stage without it needs a copy of
    tensor_bytes                     # bytes that tensor slices all-reduce; 0: not sliced, each has the whole block
    peak_bytes                       # peak memory while the block ran, beyond the memory in use before
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from slurm_asrpt.errors import Collected
from slurm_asrpt.profile.header import HEAD_KEYS, Head, check_version, format_head, read_head
from slurm_asrpt.profile.toml_table import Table, quote

MAX_BLOCKS = 10_000


@dataclass(frozen=True)
class Block:
    """A part of a model that is never split; seconds and bytes as above."""

    name: str
    forward_s: float
    backward_s: float
    bytes_out: float
    update_s: float = 0.0
    launch_s: float = 0.0
    forward_spread_s: float = 0.0
    backward_spread_s: float = 0.0
    outliers: int = 0
    bytes_in: float = 0.0
    kept_bytes: float = 0.0
    param_bytes: float = 0.0
    grad_bytes: float = 0.0
    optimiser_bytes: float = 0.0
    expert_bytes: float = 0.0
    routed_bytes: float = 0.0
    tied_bytes: float = 0.0
    tensor_bytes: float = 0.0
    peak_bytes: float = 0.0

    @property
    def seconds(self) -> float:
        """Of a whole iteration."""
        return self.forward_s + self.backward_s + self.update_s


@dataclass(frozen=True)
class UncutFile:
    """A model as blocks. iteration_s: of a whole iteration; 0 if not measured."""

    head: Head
    blocks: tuple[Block, ...]
    iteration_s: float = 0.0

    @property
    def blocks_s(self) -> float:
        """The blocks' own times together."""
        return sum(block.seconds for block in self.blocks)

    @property
    def seconds(self) -> float:
        """Of an iteration: of its blocks, or of launching them where the GPU waits for the host."""
        return max(self.blocks_s, sum(block.launch_s for block in self.blocks))


_NEEDED = ("forward_s", "backward_s", "bytes_out")
_OPTIONAL = tuple(field.name for field in fields(Block) if field.name not in ("name", *_NEEDED))


def read_uncut(table: Table) -> UncutFile:
    """The model in a table. Raises InputError."""
    check_version(table)
    errors = Collected()
    with errors:
        table.only((*HEAD_KEYS, "iteration_s", "block"))
    with errors:
        head = read_head(table)
    with errors:
        iteration_s = table.number("iteration_s") if "iteration_s" in table else 0.0
    with errors:
        blocks = _blocks(table)
    errors.check()
    return UncutFile(head, blocks, iteration_s)


def _blocks(table: Table) -> tuple[Block, ...]:
    tables = table.children("block")
    if len(tables) > MAX_BLOCKS:
        raise table.error("block", f"{len(tables)} blocks, more than {MAX_BLOCKS}; join some")
    errors, blocks = Collected(), list[Block]()
    for entry in tables:
        with errors:
            blocks.append(_block(entry))
    errors.check()
    if sum(block.seconds for block in blocks) <= 0:
        raise tables[0].error("forward_s", "all seconds are 0; an iteration takes time")
    return tuple(blocks)


def _block(table: Table) -> Block:
    errors, outliers = Collected(), 0
    with errors:
        table.only(("name", *_NEEDED, *_OPTIONAL))
    with errors:
        name = table.text("name")
    with errors:
        outliers = table.count("outliers") if "outliers" in table else 0
    values = table.numbers((key for key in (*_NEEDED, *_OPTIONAL) if _is_read(key, table)), errors)
    with errors:
        if values.get("expert_bytes", 0.0) > values.get("param_bytes", 0.0) and _valid("param_bytes", table, values):
            raise table.error("expert_bytes", "must not exceed param_bytes, which includes it")
    with errors:
        if values.get("expert_bytes") and not values.get("routed_bytes") and _valid("routed_bytes", table, values):
            raise table.error("expert_bytes", "needs routed_bytes, the tokens sent to experts")
    errors.check()
    return Block(name=name, outliers=outliers, **values)


def _is_read(key: str, table: Table) -> bool:
    return key in _NEEDED or (key in table and key != "outliers")


def _valid(key: str, table: Table, values: Mapping[str, float]) -> bool:
    """Whether an optional key has a number, or is left out."""
    return key in values or key not in table


def format_uncut(document: UncutFile, comment: str = "") -> str:
    """``document`` as the text of a file, with ``comment`` at the top."""
    options = [f"iteration_s = {document.iteration_s:.9g}"] if document.iteration_s else []
    lines = format_head(document.head, options, comment)
    for block in document.blocks:
        lines += ["", "[[block]]", f"name = {quote(block.name)}"]
        lines += [f"{key} = {getattr(block, key):.9g}" for key in _NEEDED]
        lines += [f"{key} = {getattr(block, key):.9g}" for key in _OPTIONAL if getattr(block, key)]
    return "\n".join(lines) + "\n"
