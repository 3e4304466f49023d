"""The scenarios, by subject: one module each."""

from benchmarks.rules.scenarios import (
    changes,
    failures,
    hardware,
    limits,
    partitions,
    power,
    preemption,
    priorities,
    recurring,
    requests,
    reservations,
    whole_sites,
)

SCENARIOS = [
    *recurring.SCENARIOS,
    *limits.SCENARIOS,
    *priorities.SCENARIOS,
    *preemption.SCENARIOS,
    *partitions.SCENARIOS,
    *reservations.SCENARIOS,
    *power.SCENARIOS,
    *hardware.SCENARIOS,
    *requests.SCENARIOS,
    *changes.SCENARIOS,
    *failures.SCENARIOS,
    *whole_sites.SCENARIOS,
]
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
