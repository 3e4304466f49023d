"""Writes the report of simulations: an HTML file, and its plots as PNG files beside it."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from slurm_asrpt.errors import InputError
from slurm_asrpt.files import replace_file
from slurm_asrpt.reporting import plot_style
from slurm_asrpt.reporting.simulation.page import page
from slurm_asrpt.reporting.simulation.plots import GRID, PICTURES, Picture, grid_keys
from slurm_asrpt.reporting.simulation.result_digest import Digest, digest
from slurm_asrpt.sim.results import load, read_meta
from slurm_asrpt.sim.scenario import Scenario, scenario_of
from slurm_asrpt.sim.sweep import describe, varying

PNG_DPI = 110


def write_report(
    folders: Sequence[Path], output: Path, progress: Callable[[int], None] = lambda done: None
) -> list[Path]:
    """Write the HTML file, and its plots as PNG files beside it; returns the PNG files.

    Reads one result at a time, so that memory does not grow with their number. progress: called with the number of
    results read. Raises InputError for a directory that is not a result.
    """
    if output.is_dir():
        raise InputError(f"{output}: is a directory; name a file for the report")
    scenarios = [scenario_of(read_meta(folder)["scenario"]) for folder in folders]
    chosen, keys = _drawn(scenarios), varying(scenarios)
    found: list[Digest] = []
    for number, folder in enumerate(folders):
        found.append(digest(load(folder), describe(scenarios[number], keys)))
        progress(number + 1)
    drawn = [found[number] for number in chosen]
    drawn = sorted(drawn, key=lambda d: (d.summary["mean_jct_s"] is None, d.summary["mean_jct_s"]))[
        : plot_style.MAX_CURVES
    ]
    if len({d.scenario.policy for d in drawn}) == len(drawn):
        drawn = [replace(d, label=d.scenario.policy) for d in drawn]
    return _write(found, drawn, output)


def _drawn(scenarios: Sequence[Scenario]) -> list[int]:
    """The results to plot: those of the workload that most policies ran; of equals, the first.

    All results if no workload has more than one.
    """
    groups: dict[Scenario, list[int]] = {}
    for number, scenario in enumerate(scenarios):
        groups.setdefault(replace(scenario, policy=""), []).append(number)
    most = max(groups.values(), key=len)
    return most if len(most) > 1 else list(range(len(scenarios)))


def _write(found: Sequence[Digest], drawn: Sequence[Digest], output: Path) -> list[Path]:
    output.parent.mkdir(parents=True, exist_ok=True)
    images, written = [], []
    with plot_style.applied():
        for picture, shown in pictures_to_draw(found, drawn):
            figure = picture.draw(shown)
            images.append((picture, _image(figure, "svg")))
            path = output.with_name(f"{output.stem}-{picture.name}.png")
            replace_file(path, _image(figure, "png"), mode=None)
            written.append(path)
    replace_file(output, page(found, drawn, images).encode("utf-8", errors="backslashreplace"), mode=None)
    return written


def pictures_to_draw(found: Sequence[Digest], drawn: Sequence[Digest]) -> list[tuple[Picture, Sequence[Digest]]]:
    """Each plot with the results that it shows. A policy has the same color in all plots."""
    places = {d.scenario.policy: number for number, d in reversed(list(enumerate(drawn)))}
    in_order = sorted(found, key=lambda d: places.get(d.scenario.policy, len(drawn)))
    grid = [(GRID, in_order)] if grid_keys(found) else []
    return [*grid, *((picture, drawn) for picture in PICTURES)]


def _image(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    # no date: the same results give the same file
    figure.savefig(buffer, format=kind, dpi=PNG_DPI, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()
