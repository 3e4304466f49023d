"""The HTML file: one page, everything in it, every text from outside escaped."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence

from slurm_asrpt.reporting.html import head, jobs, table, text
from slurm_asrpt.reporting.simulation.digest import Digest
from slurm_asrpt.reporting.simulation.pictures import Picture, plain
from slurm_asrpt.reporting.style import duration

Cell = Callable[[Digest], str]


def _time(name: str) -> Cell:
    return lambda digest: _or_dash(digest.summary[name], duration)


def _factor(name: str) -> Cell:
    return lambda digest: _or_dash(digest.summary[name], plain)


def _or_dash(value: float | None, show: Callable[[float], str]) -> str:
    return "-" if value is None else show(value)


_TABLES: Mapping[str, Mapping[str, Cell]] = {
    "Completion times": {
        "mean": _time("mean_jct_s"),
        "over sound bound": _factor("over_sound"),
        "over design bound": _factor("over_design"),
        "median": _time("median_jct_s"),
        "99%": _time("p99_jct_s"),
        "ended / jobs": lambda digest: f"{digest.summary['ended']:,} / {digest.summary['jobs']:,}",
    },
    "Waits and slowdowns": {
        "median wait": _time("median_wait_s"),
        "90% wait": _time("p90_wait_s"),
        "99% wait": _time("p99_wait_s"),
        "median slowdown": _factor("median_slowdown"),
        "90% slowdown": _factor("p90_slowdown"),
        "99% slowdown": _factor("p99_slowdown"),
    },
    "GPUs": {
        "used": lambda digest: f"{100 * digest.summary['utilisation']:.1f}%",
        "lost to placement": lambda digest: f"{100 * digest.summary['placement_loss']:,.1f}%",
        "mean fragmentation": lambda digest: _or_dash(digest.mean_fragmentation, lambda value: f"{100 * value:.1f}%"),
        "mean largest free block": lambda digest: f"{digest.mean_largest:.2f} GPUs",
    },
}
"""Three, because one would be wider than a page."""


def page(found: Sequence[Digest], drawn: Sequence[Digest], pictures: Sequence[tuple[Picture, bytes]]) -> str:
    """The whole file. found: all results, for the table; drawn: those in the pictures, each an SVG."""
    parts = [
        head("asrpt-sim: simulation report"),
        "<h1>Simulation report</h1>\n",
        _workload(found),
        _warnings(found, drawn),
    ]
    parts += ["<h2>Results</h2>\n", *(_table(title, columns, found) for title, columns in _TABLES.items())]
    parts += [_picture(picture, image) for picture, image in pictures]
    parts += [_waits(drawn), _how(found), "</body>\n</html>\n"]
    return "".join(parts)


def _workload(found: Sequence[Digest]) -> str:
    lines = list(dict.fromkeys(_described(digest) for digest in sorted(found, key=_place)))
    if len(lines) == 1:
        return f"<p>{lines[0]}</p>\n"
    shown = "".join(f"<li>{line}</li>" for line in lines[:20])
    more = f"<li>and {len(lines) - 20} more</li>" if len(lines) > 20 else ""
    return f"<p>{len(lines)} workloads:</p>\n<ul>{shown}{more}</ul>\n"


def _place(digest: Digest) -> tuple[str, int, float]:
    """In the order of a sweep, not of the results."""
    notes = digest.meta["notes"]
    return str(notes["trace"]), digest.scenario.options.seed, notes["load"] or 0.0


def _described(digest: Digest) -> str:
    notes, cluster, options = digest.meta["notes"], digest.scenario.cluster, digest.scenario.options
    load = "" if notes["load"] is None else f" at load {notes['load']:.3g}"  # jobs of one instant have none
    return text(
        f"{jobs(digest.summary['jobs'])} of {notes['trace']}{load}, "
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


def _table(title: str, columns: Mapping[str, Cell], found: Sequence[Digest]) -> str:
    titles = '<th class="text">policy</th>' + "".join(f"<th>{text(name)}</th>" for name in columns)
    best_first = sorted(found, key=lambda d: (d.summary["mean_jct_s"] is None, d.summary["mean_jct_s"]))
    rows = [
        f'<tr><td class="text">{text(digest.label)}</td>'
        + "".join(f"<td>{text(cell(digest))}</td>" for cell in columns.values())
        + "</tr>\n"
        for digest in best_first
    ]
    return f"<h3>{text(title)}</h3>\n{table(titles, ''.join(rows))}"


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
        "90% and 99%: so many of the jobs that have ended waited no longer, or were slowed down no more. Slowdown is "
        "completion time over the time in the best placement without a wait; what is lost to placement is the GPU time "
        "beyond that of the best placements, over it. Fragmentation is the share of the free GPUs that are on "
        'servers not wholly free, averaged over time.</p>\n<p class="note">Made by asrpt-sim with '
        f"{text(', '.join(versions))}.</p>\n"
    )
