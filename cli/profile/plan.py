"""asrpt-profile plan: the fastest ways to distribute a model over GPUs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from slurm_asrpt_cli._app.help import seldom
from slurm_asrpt_cli._app.options import ConfigOption, JsonOption
from slurm_asrpt_cli._app.tables import Column, print_prose, safe, show_table
from slurm_asrpt_cli.profile.output import LEAST_CELLS, ProfileArgument, amount, fitting, folders, seconds, write_text

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import Pipeline
from slurm_asrpt.errors import AsrptError, InputError
from slurm_asrpt.profile.blocks import UncutFile
from slurm_asrpt.profile.cut import cut_file
from slurm_asrpt.profile.documents import load_uncut
from slurm_asrpt.profile.schema import format_profile
from slurm_asrpt.text import counted

if TYPE_CHECKING:
    from slurm_asrpt.profile.plan_costs import Machines
    from slurm_asrpt.profile.planner import Plan

MAX_GPUS = 1024
DEFAULT_PER_NODE = 8

_NODES = re.compile(r"([0-9]{1,5})x([0-9]{1,4})")
_AMOUNT = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([kKMGTP]?)(B|b|B/s|bit/s|b/s)?")
_FACTORS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


class PlanError(AsrptError):
    """No plan fits."""


def plan_command(
    profile: ProfileArgument,
    gpus: Annotated[
        int, typer.Option("--gpus", "-g", min=1, max=MAX_GPUS, metavar="N", help="Maximum number of GPUs.")
    ],
    memory: Annotated[
        str, typer.Option("--memory-per-gpu", metavar="BYTES", help="Memory of a GPU, e.g. 80G.")
    ] = "80G",
    nodes: Annotated[str, typer.Option(metavar="MxG", help="M servers with G GPUs; default: as few as needed.")] = "",
    inter: Annotated[
        str, seldom(metavar="RATE", help="Network bandwidth per second: 10Gb (bits) or 1.25GB; default: asrpt.toml's.")
    ] = "",
    intra: Annotated[
        str, seldom(metavar="RATE", help="Bandwidth between GPUs of a server, e.g. 300GB; default: asrpt.toml's.")
    ] = "",
    pipeline: Annotated[Pipeline, seldom(help="Pipeline schedule.")] = Pipeline.SYNCHRONOUS,
    best: Annotated[int, typer.Option("--best", "-n", min=1, max=40, metavar="N", help="Number of plans to list.")] = 5,
    write: Annotated[
        Path | None, typer.Option("--write", "-w", metavar="FILE", help="Write the profile of the best plan.")
    ] = None,
    name: Annotated[str, seldom(metavar="NAME", help="With --write: its name; default: model and shape.")] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the fastest ways to distribute a model over GPUs.

    Combines data, pipeline and tensor parallelism.

    \b
    Examples:
      asrpt-profile plan llama-3-70b -g 64 --nodes 8x8
      asrpt-profile plan ./mine.toml -g 8 -w mine-8.toml
    """
    from slurm_asrpt.profile.planner import plans  # needs numpy, which --help need not wait for

    document = load_uncut(profile, folders(config))
    machines = _machines(gpus, memory, nodes, _fabric(inter, intra, config))
    found = plans(document, machines, pipeline, best)
    if not found:
        raise PlanError(_too_large(document, machines))
    if write is not None:
        write_text(write, format_profile(cut_file(document, found[0].cut, name or found[0].profile.name)))
    if as_json:
        print(json.dumps([_values(plan) for plan in found]))
    else:
        _show(found, document)
        if write is not None:
            print()
            print_prose(f"wrote the first plan to {write}; asrptd finds it in a directory of paths.profiles")


def _fabric(inter: str, intra: str, config: Path | None) -> Fabric:
    from slurm_asrpt.config.settings import load_settings

    given = load_settings(config).fabric
    return Fabric(
        inter=read_amount("--inter", inter) if inter else given.inter_bytes_per_s,
        intra=read_amount("--intra", intra) if intra else given.intra_bytes_per_s,
    )


def _machines(gpus: int, memory: str, nodes: str, fabric: Fabric) -> Machines:
    from slurm_asrpt.profile.plan_costs import Machines

    servers, per_node = -(-gpus // DEFAULT_PER_NODE), min(DEFAULT_PER_NODE, gpus)
    if nodes:
        found = _NODES.fullmatch(nodes)
        servers, per_node = (int(found[1]), int(found[2])) if found else (0, 0)
        if not servers * per_node:
            raise InputError(f"--nodes {safe(nodes)}: write servers x GPUs per server, such as 8x8")
        if servers * per_node < gpus:
            raise InputError(f"--nodes {nodes}: has {servers * per_node} GPUs, fewer than --gpus {gpus}")
    return Machines(gpus, per_node, read_amount("--memory-per-gpu", memory), fabric)


def read_amount(option: str, text: str) -> float:
    """Bytes, or bytes per second: 80G, 300GB, 1.25GB/s; bits with a lowercase b: 10Gb, 10Gbit/s. Raises InputError."""
    found = _AMOUNT.fullmatch(text)
    value = float(found[1]) * _FACTORS[found[2]] if found else 0.0
    if not found or not value > 0 or not (found[2] or found[3]):
        unit = " with its unit" if found and value > 0 else ""
        raise InputError(f"{option} {safe(text)}: write an amount{unit}, such as 80G, 300GB (bytes) or 10Gb (bits)")
    return value / 8 if (found[3] or "").startswith("b") else value


def _too_large(document: UncutFile, machines: Machines) -> str:
    least = sum(b.param_bytes + b.grad_bytes + b.optimiser_bytes for b in document.blocks)
    return (
        f"{document.head.name}: no plan fits; parameters, gradients and optimizer need {amount(least)}, "
        f"{counted(machines.gpus, 'GPU')} have {amount(machines.gpus * machines.memory)}; "
        "raise --gpus or --memory-per-gpu"
    )


def _values(plan: Plan) -> dict[str, object]:
    cut = plan.cut
    return {
        "plan": cut.suffix,
        "gpus": cut.gpus,
        "iteration_s": plan.iteration_s,
        "tensor": cut.tensor,
        "pipeline": cut.pipeline.value,
        "micro_batches": cut.micro_batches,
        "stages": [{"end": end, "replicas": k} for end, k in zip(cut.ends, cut.replicas, strict=True)],
        "bottleneck_stage": plan.bottleneck + 1,
        "compute": plan.compute,
        "communication": plan.communication,
        "bubble": plan.bubble,
        "memory_bytes": list(plan.memory),
    }


def _show(found: list[Plan], document: UncutFile) -> None:
    assumed = "" if document.head.provenance.kind == "measured" else "; computed, not measured"
    print_prose(f"{safe(document.head.name)}, mini-batch of {document.head.batch}{assumed}")
    shown = fitting(
        [
            Column("PLAN", [plan.cut.suffix for plan in found]),
            Column("GPUS", [str(plan.cut.gpus) for plan in found], right=True),
            Column("ITERATION", [seconds(plan.iteration_s) for plan in found], right=True),
            Column("MICRO", [str(plan.cut.micro_batches) for plan in found], right=True),
            Column("COMPUTE", [f"{plan.compute:.0%}" for plan in found], right=True),
            Column("COMM", [f"{plan.communication:.0%}" for plan in found], right=True),
            Column("BUBBLE", [f"{plan.bubble:.0%}" for plan in found], right=True),
            Column("MEMORY", [amount(max(plan.memory)) for plan in found], right=True),
        ],
        ("MICRO", "COMPUTE"),
        LEAST_CELLS,
    )
    show_table([*shown, Column("SLOWEST", [_stage(plan, document) for plan in found])])


def _stage(plan: Plan, document: UncutFile) -> str:
    """Number and first and last block of the slowest stage."""
    ends = (0, *plan.cut.ends)
    first, last = document.blocks[ends[plan.bottleneck]], document.blocks[ends[plan.bottleneck + 1] - 1]
    return safe(f"{plan.bottleneck + 1}: {first.name}..{last.name}")[:30]
