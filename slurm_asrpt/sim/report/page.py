"""The HTML file: one page, everything in it, every text from outside escaped."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence

from slurm_asrpt.sim.html import head, table, text
from slurm_asrpt.sim.report.digest import Digest
from slurm_asrpt.sim.report.pictures import Picture, plain
from slurm_asrpt.sim.report.style import duration

Cell = Callable[[Digest], str]


def _time(name: str) -> Cell:
    return lambda digest: _or_dash(digest.summary[name], duration)


def _factor(name: str) -> Cell:
    return lambda digest: _or_dash(digest.summary[name], plain)


def _or_dash(value: float | None, show: Callable[[float], str]) -> str:
    return "-" if value is None else show(value)


_COLUMNS: Mapping[str, Cell] = {
    "mean completion time": _time("mean_jct_s"),
    "over sound bound": _factor("over_sound"),
    "over design bound": _factor("over_design"),
    "median completion": _time("median_jct_s"),
    "p99 completion": _time("p99_jct_s"),
    "wait p50": _time("median_wait_s"),
    "wait p90": _time("p90_wait_s"),
    "wait p99": _time("p99_wait_s"),
    "slowdown p50": _factor("median_slowdown"),
    "slowdown p90": _factor("p90_slowdown"),
    "slowdown p99": _factor("p99_slowdown"),
    "GPUs used": lambda digest: f"{100 * digest.summary['utilisation']:.1f}%",
    "GPU time lost to placement": lambda digest: f"{100 * digest.summary['placement_loss']:.1f}%",
    "mean fragmentation": lambda digest: _or_dash(digest.mean_fragmentation, lambda value: f"{100 * value:.1f}%"),
    "mean largest free block": lambda digest: f"{digest.mean_largest:.2f} GPUs",
    "ended / jobs": lambda digest: f"{digest.summary['ended']} / {digest.summary['jobs']}",
}


def page(found: Sequence[Digest], drawn: Sequence[Digest], pictures: Sequence[tuple[Picture, bytes]]) -> str:
    """The whole file. found: all results, for the table; drawn: those in the pictures, each an SVG."""
    parts = [
        head("asrpt-sim: simulation report"),
        "<h1>Simulation report</h1>\n",
        _workload(found),
        _warnings(found, drawn),
    ]
    parts += ["<h2>Results</h2>\n", _table(found)]
    parts += [_picture(picture, image) for picture, image in pictures]
    parts += [_waits(drawn), _how(found), "</body>\n</html>\n"]
    return "".join(parts)


def _workload(found: Sequence[Digest]) -> str:
    lines = list(dict.fromkeys(_described(digest) for digest in found))
    if len(lines) == 1:
        return f"<p>{lines[0]}</p>\n"
    shown = "".join(f"<li>{line}</li>" for line in lines[:20])
    more = f"<li>and {len(lines) - 20} more</li>" if len(lines) > 20 else ""
    return f"<p>{len(lines)} workloads:</p>\n<ul>{shown}{more}</ul>\n"


def _described(digest: Digest) -> str:
    notes, cluster, options = digest.meta["notes"], digest.scenario.cluster, digest.scenario.options
    return text(
        f"{digest.summary['jobs']} jobs of {notes['trace']} at load {notes['load']:.3g}, "
        f"{100 * notes['single_gpu']:.0f}% on one GPU, {100 * notes['unseen']:.0f}% of unseen groups, "
        f"predictor {options.predictor}, seed {options.seed}; {cluster.text}, "
        f"{cluster.nic_gbit:g} Gbit/s. Lower bounds on the mean completion time: "
        f"{duration(digest.meta['bounds']['sound'])} (sound), {duration(digest.meta['bounds']['design'])} (design)."
    )


def _warnings(found: Sequence[Digest], drawn: Sequence[Digest]) -> str:
    says = []
    cut = [digest.label for digest in found if digest.meta["interrupted"]]
    if cut:
        says.append(f"Interrupted before the end, so their figures are of the jobs that had ended: {', '.join(cut)}.")
    left = [digest.label for digest in found if digest.summary["never_started"] and not digest.meta["interrupted"]]
    if left:
        says.append(f"Jobs that never started: {', '.join(left)}.")
    if len(drawn) < len(found):
        says.append(
            f"The pictures show {len(drawn)} of the {len(found)} results: those of one workload, the best first."
        )
    return "".join(f'<p class="warn">{text(line)}</p>\n' for line in says)


def _table(found: Sequence[Digest]) -> str:
    titles = '<th class="text">policy</th>' + "".join(f"<th>{text(name)}</th>" for name in _COLUMNS)
    best_first = sorted(found, key=lambda d: (d.summary["mean_jct_s"] is None, d.summary["mean_jct_s"]))
    rows = [
        f'<tr><td class="text">{text(digest.label)}</td>'
        + "".join(f"<td>{text(cell(digest))}</td>" for cell in _COLUMNS.values())
        + "</tr>\n"
        for digest in best_first
    ]
    return table(titles, "".join(rows))


def _picture(picture: Picture, svg: bytes) -> str:
    data = base64.b64encode(svg).decode("ascii")
    return (
        f"<h2>{text(picture.title)}</h2>\n<p>{text(picture.text)}</p>\n"
        f'<img alt="{text(picture.text)}" src="data:image/svg+xml;base64,{data}">\n'
    )


def _waits(drawn: Sequence[Digest]) -> str:
    tables = [f"<h3>{text(digest.label)}</h3>\n{_wait_table(digest)}" for digest in drawn]
    return "<h2>The longest waits</h2>\n" + "".join(tables)


def _wait_table(digest: Digest) -> str:
    if not digest.waits:
        return "<p>No job waited.</p>\n"
    titles = (
        '<th>job</th><th class="text">user</th><th>GPUs</th><th class="text">model</th><th>wait</th>'
        '<th class="text">why</th>'
    )
    rows = [
        f'<tr><td>{wait.job}</td><td class="text">{text(wait.user)}</td><td>{wait.gpus}</td>'
        f'<td class="text">{text(wait.profile)}</td>'
        f"<td>{text(duration(wait.wait))}{'' if wait.started else ', never started'}</td>"
        f'<td class="text long">{text(wait.why)}</td></tr>\n'
        for wait in digest.waits
    ]
    return table(titles, "".join(rows))


def _how(found: Sequence[Digest]) -> str:
    versions = sorted({f"{name} {number}" for digest in found for name, number in digest.meta["versions"].items()})
    return (
        '<h2>How to read it</h2>\n<p class="note">Completion time runs from submission to end. The sound bound is one '
        "that no schedule of these jobs goes below; the design bound is mostly sharper, but a schedule may beat it. "
        "Percentiles are over the jobs that have ended. Fragmentation is the share of the free GPUs that are on "
        'servers not wholly free, averaged over time.</p>\n<p class="note">Made by asrpt-sim with '
        f"{text(', '.join(versions))}.</p>\n"
    )
