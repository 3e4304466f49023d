"""Random queues on plain Slurm, and under asrptd: python -m tests.trials.queues --seed 1 --site accounts (root)

Users submit jobs, change, hold, cancel and requeue them, the admin changes rules. Two labs get the same commands at the
same times. Prints the jobs that end under plain Slurm only, or otherwise, what asrptd complains of, and what it leaves
behind. Exits with 1 if there is any of these. Also prints those that end under asrptd only: plain Slurm 22.05
may be stuck behind a heterogeneous job on an idle cluster. Takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.rules.play import PLAIN
from tests.trials.queues.draw import Draw
from tests.trials.queues.findings import Found, findings
from tests.trials.queues.play import Side, play
from tests.trials.queues.sites import SITES, site_of

PORTS = 40
"""Between the two labs."""


def drawn_site(rng: random.Random) -> list[str]:
    """The rules of one to three sites."""
    return rng.sample(sorted(SITES), rng.choice((1, 2, 2, 3)))


def summary(plain: Side, ours: Side) -> dict[str, object]:
    states = [Counter(one.state for one in side.outcomes.values()) for side in (plain, ours)]
    refused = sum(count for event, count in ours.events.items() if event.startswith("not-started"))
    return {"plain": states[0], "asrptd": states[1], "starts": ours.events.get("start", 0), "refused": refused}


def show(found: Found, counts: dict[str, object], ours: Side) -> None:
    for kind, rows in found.items():
        for row in rows:
            print(f"{kind}: " + "; ".join(f"{key} {value}" for key, value in row.items() if value))
    for event, count in sorted(ours.events.items()):
        print(f"event: {count} {event}")
    print("; ".join(f"{key} {dict(value) if isinstance(value, Counter) else value}" for key, value in counts.items()))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tests.trials.queues", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="of the queue, and of the site if none is named")
    parser.add_argument("--site", default="", metavar="NAME,...", help=f"rules of the cluster: {', '.join(SITES)}")
    parser.add_argument("--jobs", type=int, default=120, help="how many")
    parser.add_argument("--over", type=float, default=90.0, metavar="SECONDS", help="in which they are submitted")
    parser.add_argument("--mode", choices=("enforce", "order"), default="enforce", help="of asrptd")
    parser.add_argument("--port", type=int, default=27800, help=f"the first of {2 * PORTS} ports")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the logs of both labs here")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def main() -> int:
    asked = parse()
    rng = random.Random(asked.seed)
    names = asked.site.split(",") if asked.site else drawn_site(rng)
    site = site_of(names)
    acts = Draw(rng, site).acts(asked.jobs, asked.over)
    with ProcessPoolExecutor(2) as pool:
        modes = (PLAIN, asked.mode)
        sides = [
            pool.submit(play, site, acts, mode, asked.port + n * PORTS, asked.keep) for n, mode in enumerate(modes)
        ]
        plain, ours = (side.result() for side in sides)
    found, counts = findings(acts, plain, ours), summary(plain, ours)
    if asked.json:
        print(json.dumps({"seed": asked.seed, "site": names, **counts, "events": ours.events, **found}))
    else:
        print(f"seed {asked.seed}, site {','.join(names)}: {len(acts)} acts")
        show(found, counts, ours)
    return int(any(rows for kind, rows in found.items() if kind != "only_asrptd"))


if __name__ == "__main__":
    sys.exit(main())
