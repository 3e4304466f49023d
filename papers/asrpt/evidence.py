"""The results behind the page and the claims, read figure by figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from papers.asrpt import simulations
from papers.asrpt.fig5_lab import FIGURE
from papers.asrpt.simulations import Errors, Results, Runs, View
from papers.asrpt.workload import Jobs
from papers.seeded import Seeds


@dataclass(frozen=True)
class Evidence:
    """The results of a run. base: scale and load. placed: Table II's results by model, one for each seed.

    lab: Fig. 5 on a real Slurm by policy, a result for each set of jobs; empty if none is recorded.
    """

    base: Jobs
    seeds: Seeds
    results: Results
    placed: Mapping[str, Runs]
    lab: Mapping[str, Runs] = field(default_factory=dict)

    def command(self, figure: str) -> str:
        """The command that gives these figures."""
        if figure == FIGURE:
            return f"python -m papers.asrpt {figure}"
        words = [f"python -m papers.asrpt {figure} {self.seeds.text}"]
        if self.base.divide != simulations.DIVIDE:
            words.append(f"--divide {self.base.divide}")
        if self.base.load is not None:
            words.append(f"--load {self.base.load:g}")
        if self.base.retrain_s:
            words.append(f"--retrain {self.base.retrain_s:g}")
        return " ".join(words)

    def views(self, figure: str) -> list[View]:
        """The columns of a figure."""
        return simulations.views(figure, self.base, self.results)

    def errors(self, predictor: str) -> Runs:
        return self.results[Errors(predictor, self.base.divide)]

    @cached_property
    def testbed(self) -> Mapping[str, Runs]:
        """Fig. 5 by policy: for each seed the means over its sets."""
        each = simulations.testbed(self.base)
        sets = {name: [self.results[sim] for sim in sims] for name, sims in each.items()}
        return {name: [_means(of_seed) for of_seed in zip(*runs, strict=True)] for name, runs in sets.items()}

    @cached_property
    def steps(self) -> Mapping[tuple[float, float], Mapping[str, Runs]]:
        """The ablation: results by network and load, then by step."""
        rows = simulations.steps(self.base)
        return {point: {name: self.results[sim] for name, sim in row.items()} for point, row in rows.items()}


def _means(sets: tuple[simulations.Figures, ...]) -> simulations.Figures:
    keys = ("mean_jct_s", "makespan_s")
    return {key: sum(float(figures[key]) for figures in sets) / len(sets) for key in keys}
