"""asrpt-profile list, show, diff, validate and convert: manage profile files."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from slurm_asrpt_cli._app.options import ConfigOption, JsonOption
from slurm_asrpt_cli._app.tables import Column, safe, show_table
from slurm_asrpt_cli.profile.output import ProfileArgument, amount, folders, print_head, seconds, show_chart, write_text

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import Pipeline
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.errors import EXIT_BAD_INPUT, EXIT_FAILURE, AsrptError, InputError, error_lines, one_line
from slurm_asrpt.profile.blocks import Block, UncutFile
from slurm_asrpt.profile.cut import cut_file, even_cut
from slurm_asrpt.profile.documents import Document, differences, format_document, load_document, to_json, to_values
from slurm_asrpt.profile.header import MEASURED
from slurm_asrpt.profile.schema import ProfileFile, library_names, uncut_names


class Form(StrEnum):
    """How convert writes a profile."""

    TOML = "toml"
    JSON = "json"


FIGURES = ("gpus", "param_bytes", "iteration_s", "kind", "device")
"""Of a profile in a list, by their keys in JSON."""
ASSUMED = " (assumed, not measured)"
"""Ends the device of the shipped profiles that are computed."""
FAR_APART = 0.2
DOUBT = (
    f"the two times differ by more than {FAR_APART:.0%}: the machine was busy, or the blocks are so short that calling "
    "them takes longer; measure again on an idle machine, or with a larger --batch"
)


def list_command(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the available profiles: this site's, then the shipped ones.

    ITERATION is in the best placement, all GPUs on one server; for a
    model that is cut for each job (GPUS: any), on one GPU. FROM tells
    whether it was computed or measured, and for which GPU.

    \b
    Example:
      asrpt-profile list
    """
    from slurm_asrpt.config.settings import load_settings  # needs pydantic, as in ``folders``

    where = folders(config)
    site = sorted(path.stem for folder in where for path in folder.glob("*.toml"))
    found = {"site": site, "models": uncut_names(), "cut": library_names()}
    fabric = load_settings(config).fabric.to_core()
    rows = {kind: [_listed(name, where, fabric) for name in names] for kind, names in found.items()}
    if as_json:
        print(json.dumps(rows))
        return
    _print_listed([row for some in rows.values() for row in some], {row["name"] for row in rows["site"]})


def _listed(name: str, where: Sequence[Path], fabric: Fabric) -> dict[str, Any]:
    """A profile's figures: null if it cannot be read. gpus: null also for a model that is cut for each job.

    iteration_s: alpha with all GPUs on one server; of a model that is not cut, on one GPU. kind: computed or measured.
    """
    try:
        found = load_document(name, where)
    except InputError as error:
        return {"name": name, **dict.fromkeys(FIGURES), "error": one_line(error)}
    kind = MEASURED if found.head.provenance.kind == MEASURED else "computed"
    figures = (*_figures(found, fabric), kind, found.head.device)
    return {"name": name, **dict(zip(FIGURES, figures, strict=True))}


def _figures(found: Document, fabric: Fabric) -> tuple[int | None, float, float]:
    """GPUs, bytes of parameters, and seconds of an iteration."""
    if isinstance(found, UncutFile):
        size = sum(block.param_bytes for block in found.blocks)
        return None, size, found.iteration_s or found.seconds
    profile = found.profile
    size = profile.tensor * sum(stage.param_bytes for stage in profile.stages)
    together = iteration_time(profile, [0] * profile.gpus, [profile.gpus], fabric)
    return profile.gpus, size, together


def _print_listed(rows: Sequence[Mapping[str, Any]], site: Container[str]) -> None:
    show_table(
        [
            Column("PROFILE", [safe(row["name"]) for row in rows]),
            Column("GPUS", ["any" if row["gpus"] is None else str(row["gpus"]) for row in rows], right=True),
            Column("PARAMETERS", [amount(row["param_bytes"] or 0) for row in rows], right=True),
            Column("ITERATION", [seconds(row["iteration_s"] or 0) for row in rows], right=True),
            Column("FROM", [_origin(row, row["name"] in site) for row in rows]),
        ]
    )


def _origin(row: Mapping[str, Any], site: bool) -> str:
    if row.get("error"):
        return f"invalid: {safe(row['error'])}"
    device = row["device"].removesuffix(ASSUMED)
    return f"{'this site: ' if site else ''}{row['kind']}, {safe(device)}"


def show_command(profile: ProfileArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show a profile: origin, stages or blocks, and where the time goes.

    \b
    Examples:
      asrpt-profile show bert-large
      asrpt-profile show ./mine.toml --json
    """
    show(load_document(profile, folders(config)), as_json)


def show(document: Document, as_json: bool) -> None:
    """Print a profile."""
    if as_json:
        print(json.dumps(to_values(document)))
    elif isinstance(document, UncutFile):
        _show_blocks(document)
    else:
        _show_stages(document)


def _show_blocks(document: UncutFile) -> None:
    predicted, together = document.seconds, document.blocks_s
    launched = f"the host's time to launch it; the blocks take {seconds(together)}"
    total = f"{seconds(predicted)} per iteration, {launched if predicted > together else 'sum of the blocks'}"
    if document.iteration_s:
        total += f"; measured as a whole: {seconds(document.iteration_s)} ({predicted / document.iteration_s:.0%})"
    facts = {"time": total, "memory": _memory(document.blocks)}
    if document.iteration_s and abs(predicted / document.iteration_s - 1) > FAR_APART:
        facts["doubt"] = DOUBT
    print_head(document.head, facts)
    runs = [list(run) for _, run in groupby(document.blocks, lambda block: replace(block, name=""))]
    blocks = [run[0] for run in runs]  # figures of one block, but the time of all
    times = [sum(block.seconds for block in run) for run in runs]
    show_chart(
        [
            Column("BLOCK", [_names(run) for run in runs], cap=24),
            Column("FORWARD", [_spread(b.forward_s, b.forward_spread_s) for b in blocks], right=True),
            Column("BACKWARD", [_spread(b.backward_s, b.backward_spread_s) for b in blocks], right=True),
            Column("UPDATE", [seconds(b.update_s) for b in blocks], right=True),
            Column("OUT", [amount(b.bytes_out) for b in blocks], right=True),
            Column("KEPT", [amount(b.kept_bytes) for b in blocks], right=True),
            Column("PARAMS", [amount(b.param_bytes) for b in blocks], right=True),
        ],
        ("OUT", "KEPT", "UPDATE", "PARAMS"),
        [f"{time / together:.0%}" for time in times],
        times,
    )


def _names(run: Sequence[Block]) -> str:
    """The name of a block, or of blocks that are equal but for their names: ``32 x layer1-32``."""
    first, last = run[0].name, run[-1].name
    if len(run) == 1:
        return safe(first)
    number = last[len(last.rstrip("0123456789")) :]
    return safe(f"{len(run)} x {first}-{number or last}")


def _spread(middle: float, spread: float) -> str:
    return f"{seconds(middle)} ±{spread / 2 / middle:.0%}" if spread and middle else seconds(middle)


def _memory(blocks: tuple[Block, ...]) -> str:
    parts = {"parameters": "param_bytes", "gradients": "grad_bytes", "optimiser": "optimiser_bytes"}
    parts |= {"activations": "kept_bytes"}
    return ", ".join(f"{name} {amount(sum(getattr(b, key) for b in blocks))}" for name, key in parts.items())


def _show_stages(document: ProfileFile) -> None:
    profile = document.profile
    rows = {"gpus": str(profile.gpus), "tensor": str(profile.tensor) if profile.tensor > 1 else ""}
    rows |= {
        "pipeline": f"synchronous, {profile.micro_batches} micro-batches"
        if profile.pipeline is Pipeline.SYNCHRONOUS
        else ""
    }
    print_head(document.head, rows)
    stages = profile.stages
    show_chart(
        [
            Column("STAGE", [str(number) for number in range(1, len(stages) + 1)], right=True),
            Column("REPLICAS", [str(stage.replicas) for stage in stages], right=True),
            Column("FORWARD", [seconds(stage.forward_s) for stage in stages], right=True),
            Column("BACKWARD", [seconds(stage.backward_s) for stage in stages], right=True),
            Column("IN", [amount(stage.bytes_in) for stage in stages], right=True),
            Column("OUT", [amount(stage.bytes_out) for stage in stages], right=True),
            Column("GRADIENTS", [amount(stage.param_bytes) for stage in stages], right=True),
        ],
        ("IN", "OUT", "GRADIENTS"),
        [""] * len(stages),
        [stage.forward_s + stage.backward_s for stage in stages],
    )


def diff_command(
    one: Annotated[str, typer.Argument(metavar="PROFILE", help="A file or a name.")],
    two: Annotated[str, typer.Argument(metavar="PROFILE", help="The other profile.")],
    tolerance: Annotated[
        float, typer.Option(min=0, metavar="SHARE", help="Ignore relative differences up to this share.")
    ] = 0.0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how two profiles differ; exit status 1 if they do.

    \b
    Examples:
      asrpt-profile diff bert-large ./mine.toml
      asrpt-profile diff monday.toml today.toml --tolerance 0.05
    """
    where = folders(config)
    found = differences(load_document(one, where), load_document(two, where))
    found = [row for row in found if not _close(row[1], row[2], tolerance)]
    if as_json:
        print(json.dumps([{"key": key, "one": before, "two": after} for key, before, after in found]))
    elif found:
        show_table(
            [
                Column("WHAT", [key for key, _, _ in found]),
                Column("ONE", [_shown(before) for _, before, _ in found], cap=40),
                Column("TWO", [_shown(after) for _, _, after in found], cap=40),
                Column("CHANGE", [_change(before, after) for _, before, after in found], right=True),
            ]
        )
    if found:
        raise typer.Exit(EXIT_FAILURE)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _close(before: Any, after: Any, tolerance: float) -> bool:
    if not (_number(before) and _number(after)):
        return False
    return bool(abs(before - after) <= tolerance * max(abs(before), abs(after)))


def _shown(value: Any) -> str:
    return f"{value:.6g}" if _number(value) else textwrap.shorten(safe(str(value)), 40) if value is not None else "-"


def _change(before: Any, after: Any) -> str:
    return f"{after / before - 1:+.1%}" if _number(before) and _number(after) and before else ""


def validate_command(
    profiles: Annotated[list[str], typer.Argument(metavar="PROFILE", help="Files or names.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check profile files; print all errors, with line and fix.

    \b
    Example:
      asrpt-profile validate /etc/slurm/asrpt/profiles/*.toml
    """
    where = folders(config)
    found = {name: _problems(name, where) for name in profiles}
    if as_json:
        print(json.dumps({name: "\n".join(problems) for name, problems in found.items()}))
    else:
        for name, problems in found.items():
            print("\n".join(problems) or f"{safe(name)}: valid")
    if any(found.values()):
        raise typer.Exit(EXIT_BAD_INPUT)


def _problems(name: str, where: list[Path]) -> list[str]:
    try:
        load_document(name, where)
    except AsrptError as error:
        return error_lines(error)
    return []


def convert_command(
    profile: ProfileArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Output file; default: standard output.")
    ] = None,
    to: Annotated[Form | None, typer.Option(help="Default: by the output's suffix, else toml.")] = None,
    tensor: Annotated[int, typer.Option("--tp", min=1, max=1024, metavar="T", help="Tensor-parallel degree.")] = 1,
    stages: Annotated[int, typer.Option("--pp", min=1, max=1024, metavar="S", help="Pipeline stages.")] = 1,
    replicas: Annotated[
        int,
        typer.Option("--dp", min=0, max=10000, metavar="K", help="Data-parallel replicas; 0: do not cut into stages."),
    ] = 0,
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the new profile; default: the old one.")] = "",
    config: ConfigOption = None,
) -> None:
    """Write a profile as TOML or JSON, or a model cut into stages.

    \b
    Examples:
      asrpt-profile convert ./mine.toml -o mine.json
      asrpt-profile convert llama-3-8b --tp 8 --dp 2 -o l.toml
    """
    document = load_document(profile, folders(config))
    if replicas or tensor > 1 or stages > 1:
        document = _cut(document, tensor, stages, max(replicas, 1), name)
    elif name:
        raise InputError("--name requires --tp, --pp or --dp; to rename a profile, edit the file")
    form = to or (Form.JSON if output is not None and output.suffix == ".json" else Form.TOML)
    write_text(output, to_json(document) if form is Form.JSON else format_document(document))
    if output is not None:
        print(f"wrote {safe(str(output))}: {safe(document.head.name)}")


def _cut(document: Document, tensor: int, stages: int, replicas: int, name: str) -> ProfileFile:
    if isinstance(document, ProfileFile):
        raise InputError(f"{document.head.name}: already has stages; leave out --tp, --pp and --dp")
    try:
        return cut_file(document, even_cut(document, tensor, stages, replicas), name)
    except ValueError as error:
        raise InputError(f"{document.head.name}: {error}; choose other --tp, --pp and --dp") from None
