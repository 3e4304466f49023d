"""asrpt-pool replay: a recorded run of a pool, decided again by the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import typer
from slurm_asrpt_cli._app.tables import safe
from slurm_asrpt_cli.pool.control import SweepArgument

from slurm_asrpt.errors import EXIT_FAILURE, InputError
from slurm_asrpt.text import counted

if TYPE_CHECKING:
    from slurm_asrpt.core.rounds.feed import Assigned
    from slurm_asrpt.pool.decisions import RecordedRun
    from slurm_asrpt.sim.rounds_replay import Difference


def replay_command(path: SweepArgument) -> None:
    """Check that the simulator decides as a recorded pool did.

    Each run of the pool is simulated with its policy and with the recorded durations. Exits with 1
    if the simulator assigns other tasks to a slot, at any time.

    \b
    Example:
      asrpt-pool replay sweep.toml
    """
    from slurm_asrpt.pool.decisions import read_runs
    from slurm_asrpt.pool.folder import PoolFolder
    from slurm_asrpt.pool.sweep import read_sweep

    runs = read_runs(PoolFolder(read_sweep(path).folder).decisions)
    lines = [_line(run) for run in runs]
    for line, _ in lines:
        print(safe(line))
    if not all(same for _, same in lines):
        raise typer.Exit(EXIT_FAILURE)


def _line(run: RecordedRun) -> tuple[str, bool]:
    """What came out, and whether the decisions are the same."""
    from slurm_asrpt.core.rounds.policies import make_round_policy, round_policy_names
    from slurm_asrpt.sim.rounds_replay import replay_rounds

    if run.policy not in round_policy_names():
        raise InputError(f"the record is of a policy that is not here: {run.policy!r}")
    found = replay_rounds(make_round_policy(run.policy, fleet=run.fleet, jobs=()), run.fleet, run.decisions)
    slots, number = counted(len(run.fleet.kind), "slot"), counted(len(run.decisions), "decision")
    head = f"{datetime.fromtimestamp(run.started):%Y-%m-%dT%H:%M:%S}: {run.policy}, {slots}, {number}: "
    return head + (_difference(found) if found else "the simulator decides the same"), found is None


def _difference(found: Difference) -> str:
    return f"{found.time:.6f} s after the start, {_parts(found.simulated)} instead of {_parts(found.recorded)}"


def _parts(parts: Sequence[Assigned]) -> str:
    told = [f"{part.job} round {part.round} on {','.join(map(str, part.gpus))}" for part in parts]
    return "; ".join(told) or "nothing"
