"""How far the library's computed profiles are from the measured ones: python -m benchmarks.library_profiles --json

For each model that has a measured profile beside its computed one: computed over measured seconds of an iteration on
one GPU and of its parts, the floating-point operations that the measured GPU did in a second (two passes of the
backward for one of the forward, as in the tables), bytes between blocks, kept and all-reduced, and what decides where
a job runs: alpha over alpha~min (one server) of the same cuts in three placements. "two": half of the GPUs on each of
two servers; "spread": one GPU on each server. misleads: the largest factor between both profiles' ratios.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.placement.heavy_edge import heavy_edge
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.profile.blocks import UncutFile
from slurm_asrpt.profile.cut import Cut, even_cut, job_profile
from slurm_asrpt.profile.documents import load_uncut
from slurm_asrpt.profile.library_tools.architectures import RECENT_MODELS, TABLE1_MODELS, Model
from slurm_asrpt.profile.schema import UNCUT

DEVICES = "h100", "h200"
"""On which models have been measured; each counts once."""
SERVER = 8
INTRA, INTER = 300e9, 12.5e9
"""Bytes per second: NVLink, and 100 Gbit/s for a server."""
SHAPES = ((1, 4), (1, 8), (2, 2), (4, 1), (4, 2), (8, 1))
"""Stages, and replicas of each."""


def compared(model: Model, measured: UncutFile, fabric: Fabric) -> dict[str, Any]:
    computed = load_uncut(model.key, ())
    cuts = [cut for shape in SHAPES if (cut := _cut(measured, *shape)) is not None]
    rows = {cut.suffix: ratios(computed, measured, cut, fabric) for cut in cuts}
    passes = sum(block.forward_s + block.backward_s for block in measured.blocks)
    return {
        "model": model.key,
        "seconds": computed.seconds / measured.seconds,
        "measured_s": measured.seconds,
        "flops_per_s": 3 * model.flops * model.batch / passes,
        "backward_over_forward": sum(b.backward_s for b in measured.blocks) / sum(b.forward_s for b in measured.blocks),
        "update_share": sum(b.update_s for b in measured.blocks) / measured.blocks_s,
        "launched_s": sum(b.launch_s for b in measured.blocks),
        **{name: _sum(computed, name) / _sum(measured, name) for name in ("bytes_out", "kept_bytes", "grad_bytes")},
        "alpha_over_min": rows,
        "misleads": max((row["misleads"] for row in rows.values()), default=1.0),
    }


def _sum(document: UncutFile, name: str) -> float:
    return sum(float(getattr(block, name)) for block in document.blocks)


def _cut(document: UncutFile, stages: int, replicas: int) -> Cut | None:
    try:
        return even_cut(document, 1, stages, replicas)
    except ValueError:
        return None


def ratios(computed: UncutFile, measured: UncutFile, cut: Cut, fabric: Fabric) -> dict[str, Any]:
    """alpha over alpha~min of the same cut by both profiles."""
    # the measured one has a block for the loss
    given = Cut((*cut.ends[:-1], len(computed.blocks)), cut.replicas, cut.tensor, cut.pipeline, cut.micro_batches)
    one, two = _over_min(computed, given, fabric), _over_min(measured, cut, fabric)
    placements = {name: {"computed": one[name], "measured": two[name]} for name in two}
    return placements | {"misleads": max(max(one[n] / two[n], two[n] / one[n]) for n in two)}


def _over_min(document: UncutFile, cut: Cut, fabric: Fabric) -> dict[str, float]:
    profile = job_profile(document, cut, "n")
    gpus = cut.gpus
    found = {}
    for name, counts in {"one": (gpus,), "two": (gpus // 2, gpus - gpus // 2), "spread": (1,) * gpus}.items():
        found[name] = iteration_time(profile, heavy_edge(profile, counts), (SERVER,) * len(counts), fabric)
    return {name: found[name] / found["one"] for name in ("two", "spread")}


def rows(fabric: Fabric) -> Iterator[dict[str, Any]]:
    for model in (*TABLE1_MODELS, *RECENT_MODELS):
        names = (f"{model.key}-{device}" for device in DEVICES)
        if name := next((each for each in names if (UNCUT / f"{each}.toml").exists()), None):
            yield compared(model, load_uncut(name, ()), fabric)


def line(row: dict[str, Any]) -> str:
    """A row as text."""
    worst = " ".join(
        f"{cut} {each['spread']['computed']:.2f}/{each['spread']['measured']:.2f}"
        for cut, each in row["alpha_over_min"].items()
    )
    sizes = f"kept {row['kept_bytes']:.2f}  gradients {row['grad_bytes']:.2f}"
    speed = f"time {row['seconds']:5.2f}  {row['flops_per_s'] / 1e12:5.0f} TFLOP/s"
    return f"{row['model']:<14}{speed}  {sizes}  misleads {row['misleads']:.2f}  {worst}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument("--inter", type=float, default=INTER, metavar="BYTES", help="per second, of a server's NICs")
    options = parser.parse_args()
    for row in rows(Fabric(inter=options.inter, intra=INTRA)):
        print(json.dumps(row) if options.json else line(row), flush=True)


if __name__ == "__main__":
    main()
