"""Sites without rules, whose jobs recur: asrptd knows their lengths from earlier runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.rules.scenario import ENFORCE, Scenario, Work, mean_completion

# Groups of recurring jobs: user, GPUs, seconds, count

_GROUPS = (
    *(("asrpt1", 1, 2, 14), ("asrpt1", 2, 6, 12), ("asrpt1", 1, 20, 8), ("asrpt1", 2, 60, 4)),
    *(("asrpt2", 1, 3, 14), ("asrpt2", 4, 10, 10), ("asrpt2", 1, 30, 7), ("asrpt2", 2, 45, 5)),
    *(("asrpt3", 2, 4, 14), ("asrpt3", 1, 12, 12), ("asrpt3", 4, 15, 8), ("asrpt3", 1, 60, 4)),
    *(("asrpt4", 8, 5, 10), ("asrpt4", 2, 12, 10), ("asrpt4", 2, 25, 7), ("asrpt4", 4, 40, 4)),
)

_WIDE_GROUPS = (
    *(("asrpt1", 8, 4, 100), ("asrpt2", 16, 5, 24)),
    *(("asrpt3", 1, 30, 40), ("asrpt3", 2, 20, 30), ("asrpt4", 4, 12, 16)),
)

_LABORATORY_GROUPS = (
    *(("asrpt1", 8, 5, 8), ("asrpt2", 4, 8, 5)),
    *(("asrpt3", 2, 7, 9), ("asrpt4", 1, 9, 20)),
)


def _recurring(groups: Sequence[tuple[str, int, int, int]], span_s: float) -> list[Work]:
    """The jobs of each group arrive evenly within the span, those of different groups at different times."""
    return [
        Work(f"{user}-{seconds}s", user, count, seconds, gpus, number * 0.4, span_s / count, vary=0.3)
        for number, (user, gpus, seconds, count) in enumerate(groups)
    ]


NO_RULES = Scenario(
    "no_rules",
    "no rules, no weights: recurring jobs of 16 groups, 2 to 60 s on 1 to 8 GPUs, at 1.2 times the capacity",
    170,
    _recurring(_GROUPS, 120),
    slurm_conf="PriorityWeightAge=0\nPriorityWeightJobSize=0\nPriorityWeightFairshare=0",
    measure=mean_completion,
    recurs=True,
)

SCENARIOS = [
    NO_RULES,
    replace(
        NO_RULES,
        name="no_rules_scatter",
        about="no_rules with policy.scatter",
        policy={"scatter": True},
        modes=(ENFORCE,),
    ),
    replace(
        NO_RULES,
        name="wide",
        about="no rules: 124 recurring short jobs on one and two whole nodes among 86 longer small ones, at load 1.3",
        takes_s=260,
        works=[replace(work, options=f"-N{-(-work.gpus // 8)}") for work in _recurring(_WIDE_GROUPS, 200)],
    ),
    replace(
        NO_RULES,
        name="laboratory",
        about="no rules: one server, 8 recurring jobs that need all of it among 34 smaller ones, at load 0.9",
        takes_s=140,
        nodes="1x8",
        works=[replace(work, options="-N1") for work in _recurring(_LABORATORY_GROUPS, 110)],
    ),
]
