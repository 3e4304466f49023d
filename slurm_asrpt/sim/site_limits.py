"""The limits of a site on past jobs that are simulated: what each job counts, from its account, QOS and resources.

The limits are those of today. A job that exceeds one by itself did run all the same: it counts for all that the limit
allows, and not against limits on single jobs. Minutes that are used up (GrpTRESMins, GrpWall) are not simulated.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slurm_asrpt.core.limits import Charges
from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.sim.job_table import JobTable
from slurm_asrpt.slurm.limits import LimitBook, SiteLimits, Use, parse_tres
from slurm_asrpt.text import counted
from slurm_asrpt.traces.trace import LIMIT_COLUMNS

SPENT = ("GrpTRESMins", "GrpWall")
MOST_NAMED = 8
"""Limits that the remarks name."""
_COLUMNS = ("user", *LIMIT_COLUMNS, "queue", "gpus", "time_limit_s")


def with_limits(table: JobTable, jobs: pd.DataFrame, limits: SiteLimits) -> tuple[JobTable, dict[str, Any]]:
    """The same jobs under limits, and facts about them, JSON values.

    jobs: columns of a trace, in the order of the table.
    counted: jobs that count against any limit. by_limit: how many by limit, without users' and accounts' names.
    unknown: jobs without account and QOS. beyond: jobs that exceed a limit of today by themselves.
    """
    jobs = jobs.assign(**{name: "" for name in LIMIT_COLUMNS if name not in jobs})
    book, known = LimitBook(limits), dict[tuple[Any, ...], tuple[Charges, bool]]()
    charges: list[Charges] = []
    beyond = 0
    for row in jobs[list(_COLUMNS)].itertuples(index=False, name=None):
        found = known.get(row)
        if found is None:
            found = known[row] = _charges(row, book)
        charges.append(found[0])
        beyond += found[1]
    by_limit = Counter(name for each in charges for name in {_general(limit) for limit, _ in each})
    facts = {
        "counted": sum(map(bool, charges)),
        "by_limit": dict(sorted(by_limit.items(), key=lambda item: (-item[1], item[0]))),
        "unknown": int(((jobs["account"] == "") & (jobs["qos"] == "")).sum()),
        "beyond": beyond,
    }
    if not facts["counted"]:
        return table, facts
    return replace(table, charges=charges, caps=book.caps), facts


def _charges(row: tuple[Any, ...], book: LimitBook) -> tuple[Charges, bool]:
    """What a job counts; and whether it exceeds a limit by itself."""
    user, account, qos, tres, partition, gpus, time_limit = row
    if not account and not qos:
        return (), False
    amounts = {"node": 1.0, **parse_tres(tres), "gres/gpu": float(gpus)}
    licenses = {name.removeprefix("license/"): n for name, n in amounts.items() if name.startswith("license/")}
    minutes = time_limit / 60 if math.isfinite(time_limit) else 0.0
    found = book.charges(Use(user, account, qos, partition, amounts, minutes, licenses))
    found = tuple(charge for charge in found if not charge[0].startswith(SPENT))
    caps = book.caps
    shared = [(name, min(amount, caps[name])) for name, amount in found if math.isfinite(amount)]
    return tuple(shared), any(amount > caps[name] for name, amount in found)


def _general(limit: str) -> str:
    """``MaxTRESPU=gres/gpu of QOS normal`` of ``MaxTRESPU=gres/gpu of QOS normal, user ann``."""
    return re.sub(r" of user .* in account ", " of users in account ", re.sub(r", (user|account) .*$", "", limit))


def remarks(facts: Mapping[str, Any], jobs: int) -> list[str]:
    """Notes on the limits, in sentences. jobs: simulated."""
    lines = []
    if facts["counted"]:
        limits = [f"{name} ({count})" for name, count in facts["by_limit"].items()]
        more = f" and {len(limits) - MOST_NAMED} more" if len(limits) > MOST_NAMED else ""
        lines.append(
            f"{facts['counted']} of {counted(jobs, 'job')} counted against limits of today, under every policy: "
            f"{', '.join(limits[:MOST_NAMED])}{more}."
        )
    else:
        lines.append("No job counted against a limit of today.")
    if facts["unknown"]:
        lines.append(f"{counted(facts['unknown'], 'job')} without a known account and QOS: not held to limits.")
    if facts["beyond"]:
        lines.append(
            f"{counted(facts['beyond'], 'job')} beyond a limit of today: simulated as if they used all that it allows."
        )
    return lines
