"""Pictures, tables and the HTML file of simulations."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from slurm_asrpt.errors import InputError
from slurm_asrpt.files import replace_file
from slurm_asrpt.reporting import style
from slurm_asrpt.reporting.simulation.digest import Digest, digest
from slurm_asrpt.reporting.simulation.grid import GRID, grid_keys
from slurm_asrpt.reporting.simulation.page import page
from slurm_asrpt.reporting.simulation.pictures import PICTURES, Picture
from slurm_asrpt.sim.results import load, read_meta
from slurm_asrpt.sim.scenario import Scenario, scenario_of
from slurm_asrpt.sim.sweep import describe, varying

PNG_DPI = 110


def write_report(
    folders: Sequence[Path], output: Path, progress: Callable[[int], None] = lambda done: None
) -> list[Path]:
    """Write the HTML file, and its pictures as PNG files beside it; these are returned.

    Results are read one at a time, so that memory does not grow with their number. Raises InputError for a folder that
    is no result.
    """
    if output.is_dir():
        raise InputError(f"{output}: is a folder; name a file for the report")
    scenarios = [scenario_of(read_meta(folder)["scenario"]) for folder in folders]
    chosen, keys = _drawn(scenarios), varying(scenarios)
    found: list[Digest] = []
    for number, folder in enumerate(folders):
        found.append(digest(load(folder), describe(scenarios[number], keys)))
        progress(number + 1)
    drawn = [found[number] for number in chosen]
    drawn = sorted(drawn, key=lambda d: (d.summary["mean_jct_s"] is None, d.summary["mean_jct_s"]))[: style.MOST]
    if len({d.scenario.policy for d in drawn}) == len(drawn):
        drawn = [replace(d, label=d.scenario.policy) for d in drawn]
    return _write(found, drawn, output)


def _drawn(scenarios: Sequence[Scenario]) -> list[int]:
    """The results that are compared in pictures: those of the workload that most policies ran; of equals, the first.

    If each workload has only one, all.
    """
    groups: dict[Scenario, list[int]] = {}
    for number, scenario in enumerate(scenarios):
        groups.setdefault(replace(scenario, policy=""), []).append(number)
    most = max(groups.values(), key=len)
    return most if len(most) > 1 else list(range(len(scenarios)))


def _write(found: Sequence[Digest], drawn: Sequence[Digest], output: Path) -> list[Path]:
    output.parent.mkdir(parents=True, exist_ok=True)
    images, written = [], []
    with style.looks():
        for picture, shown in _pictures(found, drawn):
            figure = picture.draw(shown)
            images.append((picture, _image(figure, "svg")))
            path = output.with_name(f"{output.stem}-{picture.name}.png")
            replace_file(path, _image(figure, "png"), mode=None)
            written.append(path)
    replace_file(output, page(found, drawn, images).encode("utf-8", errors="backslashreplace"), mode=None)
    return written


def _pictures(found: Sequence[Digest], drawn: Sequence[Digest]) -> list[tuple[Picture, Sequence[Digest]]]:
    """Each picture with the results that it shows; a policy has the same colour in all of them."""
    places = {d.scenario.policy: number for number, d in reversed(list(enumerate(drawn)))}
    in_order = sorted(found, key=lambda d: places.get(d.scenario.policy, len(drawn)))
    grid = [(GRID, in_order)] if grid_keys(found) else []
    return [*grid, *((picture, drawn) for picture in PICTURES)]


def _image(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    # no date: the same results make the same file
    figure.savefig(buffer, format=kind, dpi=PNG_DPI, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()
