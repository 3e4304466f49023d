"""Inject faults into a real Slurm and check that no job is lost: ``make test-faults``.

    python -m tests.faults [--seed N] [--faults N] [--only NAME,NAME] [--policy NAME] [--plain] [--json FILE]
    python -m tests.faults --table [--json FILE]

Each fault is injected ``--faults`` times under load, and then the invariants are checked (tests/faults/invariants.py).
The campaign prints one line per round and a table of the counts. A file of counts accumulates over runs, so a campaign
can be split. The exit status is 1 if a job was lost, stuck, run twice, or broke another invariant. All choices are
determined by the seed; the scheduling of processes is not. Needs root.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from slurm_asrpt.errors import EXIT_INTERRUPTED, AsrptError, one_line
from tests.faults import interruptions, owners  # noqa: F401  (they register their faults)
from tests.faults.arena import arena
from tests.faults.campaign import campaign
from tests.faults.counts import LEDGER, Counts, keep, load, of, table
from tests.faults.faults import FAULTS, Fault


def known_table(path: Path) -> str:
    """The table of all runs in a file."""
    return table([(FAULTS[counts.fault].text, counts, seeds) for counts, seeds in of(load(path), FAULTS)])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=int(os.environ.get("ASRPT_FAULT_SEED", "1")))
    parser.add_argument(
        "--faults", type=int, default=int(os.environ.get("ASRPT_FAULTS", "3")), help="injections of each fault"
    )
    parser.add_argument("--only", default=os.environ.get("ASRPT_FAULT_NAMES", ""), help=f"faults: {', '.join(FAULTS)}")
    parser.add_argument("--policy", default="asrpt", help="asrptd's policy")
    parser.add_argument("--plain", action="store_true", help="run without asrptd, to see what Slurm alone does")
    parser.add_argument("--json", type=Path, help="add the counts to this file, and print the table of all its runs")
    parser.add_argument("--table", action="store_true", help=f"only print the table, of that file or of {LEDGER.name}")
    options = parser.parse_args()
    if options.table:
        print(known_table(options.json or LEDGER))
        return 0
    names = options.only.split(",") if options.only else list(FAULTS)
    unknown = [name for name in names if name not in FAULTS]
    if unknown:
        parser.error(f"unknown fault {unknown[0]}; the faults are {', '.join(FAULTS)}")
    totals: dict[str, list[Counts]] = {}
    code = 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: print the counts so far
    try:
        for policy, chosen in _by_policy(names, options).items():
            with arena(policy=policy, plain=options.plain) as place:
                counts = totals.setdefault(policy, [])
                campaign(place, chosen, options.seed, options.faults, counts, lambda text: print(text, flush=True))
    except AsrptError as error:
        print(f"tests.faults: {one_line(error)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; counts so far:")
        code = EXIT_INTERRUPTED
    if options.json:
        for policy, counts in totals.items():
            keep(options.json, counts, options.seed, policy)
        print(known_table(options.json))
    every = [total for counts in totals.values() for total in counts]
    if not options.json:
        print(table([(FAULTS[total.fault].text, total, [options.seed]) for total in every]))
    return code or int(any(total.failures for total in every))


def _by_policy(names: Sequence[str], options: argparse.Namespace) -> dict[str, list[Fault]]:
    """The faults by the policy that they need, or the selected one. Without asrptd, faults with one are left out."""
    found: dict[str, list[Fault]] = {}
    for fault in (FAULTS[name] for name in names):
        if not (options.plain and fault.policy):
            found.setdefault(fault.policy or options.policy, []).append(fault)
    return found


if __name__ == "__main__":
    sys.exit(main())
