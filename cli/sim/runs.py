"""asrpt-sim run and compare: simulate one policy, or several on the same workload."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from slurm_asrpt_cli.sim.options import Json, Processes, with_scenario

from slurm_asrpt.config import DEFAULT_POLICY
from slurm_asrpt.sim.description import SLURM_FEWEST

if TYPE_CHECKING:
    from slurm_asrpt.sim.scenario import Scenario
else:
    Scenario = Any  # its import is slow, and typer evaluates annotations

Policies = Annotated[
    str,
    typer.Option("--policies", "-p", metavar="POLICIES", help="Comma-separated, or all."),
]
COMPARED = f"{DEFAULT_POLICY},asrpt,slurm-backfill,{SLURM_FEWEST},easy-backfill,fifo,wcs-workload"
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="DIR", help="Write the results to this directory.")
]


@with_scenario
def run(
    scenario: Scenario,
    policy: Annotated[
        str, typer.Option("--policy", "-p", metavar="POLICY", help="Policy: NAME[:KEY=VALUE,...].")
    ] = DEFAULT_POLICY,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the policy; may be repeated.")
    ] = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Simulate one policy on a trace.

    \b
    Examples:
      asrpt-sim run pai-like:20000 --servers 50 --load 0.9
      asrpt-sim run jobs.csv -p asrpt --set tau=2 -o out
      asrpt-sim run jobs.csv -p spjf-perfect --json
    """
    from slurm_asrpt_cli.sim.simulate import simulate_one

    simulate_one(scenario, policy, settings or [], output, as_json)


@with_scenario
def compare(
    scenario: Scenario,
    policies: Policies = COMPARED,
    processes: Processes = 1,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Simulate several policies on the same jobs and rank them.

    \b
    Examples:
      asrpt-sim compare philly --servers 16 -p all --load 1
      asrpt-sim compare jobs.csv -p asrpt:tau=0,fifo -o out
    """
    from slurm_asrpt_cli.sim.simulate import simulate_several

    simulate_several(scenario, policies, processes, output, as_json)
