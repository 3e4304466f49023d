"""Play a site's rules on a real Slurm, plain and under asrptd, with the same jobs: python -m benchmarks.rules --json

Each scenario (``--list``) has a site with a rule: limits, priorities, tiers, preemption, jobs that Slurm places, nodes
that are powered down. Users submit the same jobs at the same times, to a new lab with plain Slurm, then to one with
asrptd in each of ``--modes``. Times are those of slurmdbd.

``plain_s``, ``asrptd_s``: seconds from the first submission to the last end, or what ``--list`` says. Jobs that have
not ended in time (``unfinished``) count until then, so the value is a lower bound. ``ratio``: asrptd over plain.
``utilisation_ratio``: the same for GPU-seconds in use over those that jobs could have used within their limits, while
jobs are pending. ``refused_share``: starts that Slurm refused (not-started, pin-failed and fence-refused in the audit
trail) over starts; 0 in mode order, which starts nothing. ``obeyed``: share of the decisions in which the rule was
kept: pairs of jobs that were pending at the same time and that the rule orders, jobs that may preempt others, or starts
of jobs with a limit; null if there were none. ``mean_ratio``: ratio of mean completion times. Mode order has an object
of its own, ``order``, with the same keys. ``plain`` and ``asrptd``: more figures of each side, including mean waits by
role and ``sbatch_late_s``, the mean delay of submissions on a busy machine. ``--logs DIR`` keeps logs, audit trail and
sacct's records of each side, and the history and shadow-report's answer where asrptd is in mode shadow.

``--stretch 8 --speed 8``: jobs of minutes instead of seconds, in accelerated labs, in the same time. A start costs less
of a job then.

If the jobs of a scenario recur, they first run once in mode shadow, and each side learns from these runs (asrpt-admin
history import, retrain). On its plain side asrptd is in mode shadow, too; ``shadow`` has what asrpt-admin shadow-report
says of the plain side's jobs. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.rules.compare import compare, measured, shadow_report
from benchmarks.rules.play import LEARNING, PLAIN, Conditions, play
from benchmarks.rules.scenario import ENFORCE, ORDER, Scenario
from benchmarks.rules.scenarios import BY_NAME, SCENARIOS
from slurm_asrpt.errors import AsrptError, InputError, MachineError, one_line

KEYS = ("plain_s", "asrptd_s", "ratio", "utilisation_ratio", "refused_share", "obeyed")
console = Console(stderr=True)


def play_scenario(scenario: Scenario, modes: Sequence[str], under: Conditions) -> dict[str, Any]:
    """Plain Slurm, then each mode of asrptd that makes sense in the scenario."""
    modes = [mode for mode in modes if mode in scenario.modes]
    history = play(scenario, LEARNING, under).history if scenario.recurs else ""
    sides, report = dict[str, Any](), dict[str, Any]()
    for mode in [PLAIN, *modes]:
        began = time.monotonic()
        side = play(scenario, mode, under, history)
        sides[mode], report = measured(scenario, side), report or shadow_report(side)
        seconds, took = sides[mode]["seconds"], time.monotonic() - began
        console.print(f"{scenario.name:20} {mode:8} {seconds:7.1f} s  (took {took:.0f} s)", highlight=False)
    compared = {mode: compare(sides[PLAIN], sides[mode]) for mode in modes}
    return {**compared.pop(ENFORCE, {}), **compared, **report, "plain": sides[PLAIN]}


def play_or_fail(scenario: Scenario, modes: Sequence[str], under: Conditions) -> dict[str, Any]:
    """The figures, or an object with ``error``: the other scenarios still take place."""
    try:
        return play_scenario(scenario, modes, under)
    except AsrptError as error:
        console.print(f"{scenario.name:20} failed: {one_line(error)}", highlight=False)
        return {"error": one_line(error)}


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    return {name: rounded(each) for name, each in value.items()} if isinstance(value, dict) else value


def table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    shown = Table("scenario", "mode", *KEYS, "mean_ratio", "unfinished")
    for name, scenario in found.items():
        for mode, row in ((ENFORCE, scenario), (ORDER, scenario.get(ORDER, {}))):
            if "ratio" in row:
                shown.add_row(name, mode, *(_cell(row[key]) for key in (*KEYS, "mean_ratio", "unfinished")))
    return shown


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, int) else f"{value:.3g}"


def names(text: str, valid: Sequence[str], option: str) -> list[str]:
    """Raises InputError."""
    found = [name for name in text.split(",") if name]
    unknown = [name for name in found if name not in valid]
    if unknown:
        raise InputError(f"{option} {','.join(unknown)}: unknown; valid: {', '.join(valid)}")
    return found


def _list() -> None:
    shown = Table("scenario", "seconds a side", "modes", "what happens")
    for one in SCENARIOS:
        shown.add_row(one.name, f"{one.takes_s:g}", ", ".join(one.modes), one.about)
    Console().print(shown)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Raises InputError."""
    parser = argparse.ArgumentParser("python -m benchmarks.rules", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    parser.add_argument("--list", action="store_true", help="print the scenarios and exit")
    parser.add_argument("--only", default=",".join(BY_NAME), metavar="NAME,...", help="play these scenarios")
    parser.add_argument("--modes", default=f"{ENFORCE},{ORDER}", help="modes of asrptd (default %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiply the number of jobs")
    parser.add_argument(
        "--stretch", type=float, default=1.0, help="multiply all times: each start costs asrptd about 1 s"
    )
    parser.add_argument(
        "--speed",
        type=float,
        default=1.0,
        help="of the labs' clocks: --stretch 8 --speed 8 takes no longer than neither",
    )
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep logs and records of each side here")
    parser.add_argument("--port", type=int, default=27000, help="first port of the lab, which uses 20")
    options = parser.parse_args(arguments)
    options.only = names(options.only, list(BY_NAME), "--only")
    options.modes = names(options.modes, [ENFORCE, ORDER], "--modes")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        options = parse(arguments)
        if options.list:
            _list()
            return 0
    except InputError as error:
        print(f"rules: {one_line(error)}", file=sys.stderr)
        return error.exit_code
    scenarios = [BY_NAME[name].stretched(options.stretch) for name in options.only]
    under = Conditions(options.port, options.speed, options.scale, options.logs)
    found = {scenario.name: rounded(play_or_fail(scenario, options.modes, under)) for scenario in scenarios}
    if options.json:
        print(json.dumps({"scenarios": found, "load_average": round(os.getloadavg()[0], 1)}))
    else:
        Console().print(table(found))
    return MachineError.exit_code if any("error" in scenario for scenario in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
