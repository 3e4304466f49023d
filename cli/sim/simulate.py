"""What asrpt-sim run and compare do, and what its commands share: cells with a progress bar, assumptions, warnings."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from slurm_asrpt_cli._app.progress import progress
from slurm_asrpt_cli._app.tables import print_facts, safe
from slurm_asrpt_cli.sim.options import print_figures, print_json, ratio, say, share, warn_of_plugins

from slurm_asrpt.errors import EXIT_FAILURE, EXIT_INTERRUPTED
from slurm_asrpt.sim.assumptions import (
    assumptions,
    no_losses,
    nobody_consents,
    nobody_waits,
    scattered,
    scattering,
    too_large,
)
from slurm_asrpt.sim.backends import run_local
from slurm_asrpt.sim.results import Record, check_target, read_meta, run_scenario, save
from slurm_asrpt.sim.scenario import Scenario, parse_policies, parse_policy
from slurm_asrpt.sim.sweep import CELLS, Collected, Sweep, collect, finished, make_sweep, to_run, write_sweep
from slurm_asrpt.text import counted, slurm_time


def simulate_one(scenario: Scenario, policy: str, settings: list[str], output: Path | None, as_json: bool) -> None:
    warn_of_plugins()
    spec = parse_policy(policy, settings)
    chosen = scenario.with_policy(spec)
    if output:
        check_target(output)
    with progress("preparing the workload", None) as bar:
        total = len(chosen.workload().table)
        bar(0, f"of {counted(total, 'job')}")
    with progress("simulating", total) as bar:
        record = run_scenario(chosen, lambda done, _, clock: bar(done, f"day {clock / 86400:.1f}"))
    if output:
        save(record, output)
    if as_json:
        print_json(record.meta)
    else:
        print_facts(_facts(record, output), 18)
        _warn(nobody_waits([record.meta["summary"]], record.meta["notes"]["load"]))
        note(scattered(scattering([{"policy": spec.text, **record.meta["summary"]}])))
        _warn("" if record.interrupted else too_large([record.meta["summary"]]))
        _warn(nobody_consents([spec], scenario.options.consent))
        _warn(no_losses([spec]))
    if record.interrupted:
        say("interrupted; the result covers the jobs that had ended")
        raise typer.Exit(EXIT_INTERRUPTED)


def _warn(text: str) -> None:
    if text:
        say(f"warning: {text}")


def note(text: str) -> None:
    if text:
        say(f"note: {text}")


def _facts(record: Record, output: Path | None) -> list[tuple[str, str]]:
    """The result as labeled facts."""
    found: Mapping[str, Any] = record.meta["summary"]
    bounds = record.meta["bounds"]
    notes, cluster = record.meta["notes"], record.scenario.cluster
    facts = [
        ("Policy", safe(record.scenario.policy)),
        ("Trace", safe(str(notes["trace"]))),
        ("Cluster", cluster.text),
        *assumptions(record.scenario, notes),
        ("Jobs", f"{found['jobs']}, {found['ended']} ended, {found['never_started']} never started"),
        ("Mean JCT", f"{slurm_time(found['mean_jct_s'])}, median {slurm_time(found['median_jct_s'])}"),
        ("Over bound", _over(found["over_sound"], bounds["sound"], "sound")),
        ("", _over(found["over_design"], bounds["design"], "design")),
        ("Wait p50/90/99", " / ".join(slurm_time(found[f"{name}_wait_s"]) for name in ("median", "p90", "p99"))),
        ("Longest wait", slurm_time(found["max_wait_s"])),
        ("Slowdown 50/90/99", " / ".join(ratio(found[f"{name}_slowdown"]) for name in ("median", "p90", "p99"))),
        (
            "GPUs used",
            f"{share(found['utilisation_arriving'])} while jobs arrive, {share(found['utilisation'])} overall",
        ),
        ("Placement", f"GPU time lost: {share(found['placement_loss'])} of that in the best placements"),
    ]
    if "preempted" in found:
        facts.append(("Preemptions", _preemptions(found)))
    return [*facts, *([("Written to", safe(str(output)))] if output else [])]


def _preemptions(found: Mapping[str, Any]) -> str:
    jct = {name: slurm_time(found[f"{name}_mean_jct_s"]) for name in ("consenting", "others")}
    return (
        f"{found['preempted']:.3g} per job, {100 * found['lost_to_preemption']:.2g}% of the GPU time lost; mean JCT "
        f"{jct['consenting']} of jobs that may be preempted, {jct['others']} of others"
    )


def _over(times: float | None, bound: float, name: str) -> str:
    """The mean JCT relative to a lower bound; without a ratio if jobs have not ended."""
    return f"{ratio(times)}{' times' if times else ', the bound is'} {slurm_time(bound)} ({name})"


def simulate_several(scenario: Scenario, policies: str, processes: int, output: Path | None, as_json: bool) -> None:
    warn_of_plugins()
    specs = parse_policies(policies)
    with _workplace(output) as place:
        sweep = make_sweep(scenario, specs, {})
        write_sweep(place, sweep)
        interrupted = run_cells(place, sweep, lambda cells, *told: run_local(place, cells, processes, *told))
        found = collect(place, sweep)
        meta = meta_of(place, sweep)
    rows = sorted(found.rows, key=lambda row: (row["mean_jct_s"] is None, row["mean_jct_s"]))
    if as_json:
        assumed = dict(assumptions(scenario, meta["notes"])) if meta else {}
        bounds = dict(meta["bounds"]) if meta else None
        more = {"assumed": assumed, "scattering": scattering(rows), "failed": found.failed}
        print_json({"policies": rows, "bounds": bounds, **more})
    elif meta:
        print_figures({"POLICY": [row["policy"] for row in rows]}, rows)
        print_assumptions(scenario, meta["notes"])
        _warn(nobody_waits(rows, meta["notes"]["load"]))
        note(scattered(scattering(rows)))
        _warn(too_large(rows))
        _warn(nobody_consents(specs, scenario.options.consent))
        _warn(no_losses(specs))
    leave(found, interrupted, len(specs))


@contextmanager
def _workplace(output: Path | None) -> Iterator[Path]:
    """The directory for the results: the requested one, or a temporary one."""
    if output:
        yield output
        return
    with tempfile.TemporaryDirectory(prefix="asrpt-sim-") as place:
        yield Path(place)


def run_cells(folder: Path, sweep: Sweep, backend: Callable[..., None]) -> bool:
    """Run the cells that have no result yet, with a progress bar; returns whether Ctrl-C interrupted them.

    backend: called with the cells, a callback for each ended cell, and one for progress within a cell.
    """
    cells = to_run(folder, sweep)
    if len(cells) < len(sweep.cells):
        say(f"{len(sweep.cells) - len(cells)} of {len(sweep.cells)} cells already have results")
    ended: list[str] = []
    with progress("simulating", len(cells)) as bar:

        def done(cell: Scenario, error: str) -> None:
            ended.append(cell.name)
            bar(len(ended), f"{len(ended)} of {len(cells)}")

        def within(jobs: int, total: int, clock: float) -> None:
            bar(len(ended) + jobs / max(1, total), f"{len(ended)} of {len(cells)}")

        try:
            if cells:
                backend(cells, done, within)
        except KeyboardInterrupt:
            return True
    return False


def meta_of(folder: Path, sweep: Sweep) -> Mapping[str, Any] | None:
    """result.json of the first finished cell: its notes and bounds are those of all cells of a comparison."""
    return next((read_meta(folder / CELLS / cell.name) for cell in sweep.cells if finished(folder, cell)), None)


def print_assumptions(scenario: Scenario, notes: Mapping[str, Any], varying: Iterable[str] = ()) -> None:
    """Print what the figures above assume. varying: the keys of a sweep, whose columns say it."""
    varied = {"nic": "Network", "intra": "Network", "contention": "Network", **dict.fromkeys(_LOADS, "Load")}
    varied |= {"models": "Models", "predictor": "Predictor", "history": "Predictor", "retrain": "Predictor"}
    hidden = {varied.get(key) for key in varying}
    facts = [("Trace", f"{safe(str(notes['trace']))} on {scenario.cluster.text}"), *assumptions(scenario, notes)]
    facts.append(("Bounds", _BOUNDS))
    print()
    print_facts([(label, text) for label, text in facts if label not in hidden], 10)


_BOUNDS = "MEAN_JCT over a time that no schedule can beat (/SOUND), and over a longer one that some may beat (/DESIGN)"
_LOADS = ("load", "seed", "servers", "gpus-per-server", "jobs", "single-gpu")


def leave(found: Collected, interrupted: bool, wanted: int) -> None:
    """Print the failed cells and exit with the matching code."""
    if len(found.failed) > 1 and len(errors := set(found.failed.values())) == 1:
        some = f" ({len(found.failed)} of {wanted} simulations)" if len(found.failed) < wanted else ""
        say(f"{safe(errors.pop())}{some}")
    else:
        for name, error in found.failed.items():
            say(f"{safe(name)}: {safe(error)}")
    if interrupted:
        say(f"interrupted; {len(found.rows)} of {wanted} are done")
        raise typer.Exit(EXIT_INTERRUPTED)
    if found.failed:
        raise typer.Exit(EXIT_FAILURE)
