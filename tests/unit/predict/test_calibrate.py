"""asrpt-admin calibrate: it estimates known bandwidths and coefficients, and leaves the others unchanged."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from slurm_asrpt_cli.admin import app
from typer.testing import CliRunner

from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import JobProfile, Overlap, unprofiled
from slurm_asrpt.core.placement.heavy_edge import heavy_edge
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.core.topology import blocks_of
from slurm_asrpt.errors import AsrptError
from slurm_asrpt.history.store import History, Run, Source
from slurm_asrpt.predict.bandwidths import Observed, Placed, errors, figures_of, fit, held_out, observe, seconds_of
from slurm_asrpt.profile.schema import load_profile
from slurm_asrpt.slurm.records import NodeRecord
from slurm_asrpt.slurm.topology import Topology

ASSUMED, TRUE = Fabric(1.25e9, 300e9), Fabric(3.1e9, 24e9)
SWITCHES = {f"n{at}": (f"leaf{at // 2}", "top") for at in range(4)}
SPREADS = {
    1: [(1,)],
    2: [(2,), (1, 1)],
    4: [(4,), (2, 2), (3, 1), (1, 1, 1, 1)],
    8: [(8,), (4, 4), (5, 3), (2, 2, 2, 2)],
}
MODELS = ["vgg19-dp4", "vgg19-pp4dp2", "bert-large-dp2", "bert-large-pp2dp2", "gpt-6.7b-pp8", "vgg19-1gpu"]


def placed(profile: JobProfile, counts: tuple[int, ...]) -> Placed:
    return Placed(profile, tuple(heavy_edge(profile, counts)), (8,) * len(counts))


def observations(
    names: list[str], noise: float = 0.0, wild: float = 0.0, overlap: Overlap | None = None, seed: int = 1
) -> list[Observed]:
    """Runs on the true fabric. overlap: the true value. noise: of all times. wild: the share of outliers."""
    draw, found = Random(seed), []
    for profile in (load_profile(name, []) for name in names):
        for counts in SPREADS[profile.gpus]:
            where = placed(profile, counts)
            real = replace(where, profile=replace(profile, overlap=overlap or profile.overlap))
            seconds = iteration_time(real.profile, real.ranks, real.server_gpus, TRUE)
            times = [seconds * draw.lognormvariate(0, noise) for _ in range(5)]
            times = [t * (4 if draw.random() < wild else 1) for t in times]
            found.append(Observed(where, sorted(times)[2], 5))
    return found


def test_the_true_bandwidths_are_estimated() -> None:
    observed = observations(MODELS)
    before = figures_of(observed, ASSUMED)
    fitted = fit(observed, before)
    assert fitted.figures["inter"] == pytest.approx(TRUE.inter, rel=0.02)
    assert fitted.figures["intra"] == pytest.approx(TRUE.intra, rel=0.05)
    assert np.median(np.abs(errors(observed, before))) > 0.3
    assert np.max(np.abs(errors(observed, fitted.figures))) < 0.02


@pytest.mark.parametrize("seed", range(4))
def test_the_estimate_is_robust_against_noise_and_outliers(seed: int) -> None:
    observed = observations(MODELS, noise=0.05, wild=0.1, seed=seed)
    before = figures_of(observed, ASSUMED)
    fitted = fit(observed, before)
    assert fitted.figures["inter"] == pytest.approx(TRUE.inter, rel=0.1)
    assert np.median(np.abs(errors(observed, fitted.figures))) < 0.05
    assert np.median(np.abs(held_out(observed, before))) < np.median(np.abs(errors(observed, before)))


def test_overlap_is_estimated_if_runs_separate_it_from_bandwidth() -> None:
    """Runs on one GPU give the backward pass; pipelines give the bandwidth, which the all-reduce shares."""
    truth = Overlap(backward=0.8, allreduce=0.5)
    observed = observations(MODELS, overlap=truth)
    fitted = fit(observed, figures_of(observed, ASSUMED))
    assert np.max(np.abs(errors(observed, fitted.figures))) < 0.01
    assert fitted.figures["inter"] == pytest.approx(TRUE.inter, rel=0.02)
    backward = [
        value for name, value in fitted.figures.items() if name.startswith("backward") and name in fitted.spread
    ]
    assert backward
    assert backward == pytest.approx([truth.backward] * len(backward), rel=0.1)


def test_settings_that_no_run_depends_on_are_unchanged() -> None:
    profile = load_profile("vgg19-dp4", [])
    observed = [
        replace(one, placed=replace(one.placed, profile=replace(profile, name=f"p{n}")))
        for n, one in enumerate(observations(["vgg19-dp4"])[1:])
    ]
    fitted = fit(observed, figures_of(observed, ASSUMED))  # all across servers
    assert "intra" not in fitted.spread
    assert fitted.figures["intra"] == ASSUMED.intra


def nodes(*sizes: int) -> list[NodeRecord]:
    plain: dict[str, Any] = dict.fromkeys(NodeRecord.__dataclass_fields__, 0)
    return [NodeRecord(**{**plain, "name": f"n{i}", "index": i, "gpus": g}) for i, g in enumerate(sizes)]


def run_of(job: int, where: dict[str, int], profile: str = "vgg19-dp4", fabric: Fabric = TRUE, **more: Any) -> Run:
    loaded = load_profile(profile, [])
    counts = tuple(where.values())
    block = [server for server, count in enumerate(counts) for _ in range(count)]
    blocks = blocks_of([Node(name, 8, switches=SWITCHES.get(name, ())) for name in where]) if fabric.beyond else ()
    alpha, truth = (iteration_time(loaded, block, [8] * len(counts), f, blocks) for f in (ASSUMED, fabric))
    start = START
    iterations = round(1000 / truth)
    return Run(
        **{
            "job_id": str(job),
            "start_time": start,
            "end_time": start + 1000,
            "gpus": loaded.gpus,
            "nodes": where,
            "profile": profile,
            "iterations": iterations,
            "iterations_source": Source.REPORTED,
            "alpha": alpha,
            **more,
        }
    )


def profile_of(name: str, gpus: int) -> JobProfile:
    return load_profile(name, []) if name.startswith(("vgg", "bert", "gpt")) else unprofiled(gpus)


def test_runs_of_a_placement_are_one_observation_and_unusable_ones_are_counted() -> None:
    here = {"n0": 2, "n1": 2}
    runs = [run_of(n, here) for n in range(3)]
    lost = [run_of(5, {"gone": 4}), replace(run_of(6, here), profile="unknown")]
    observed, left = observe([*runs, *lost], nodes(8, 8), profile_of, ASSUMED)
    assert [(one.runs, one.placed.ranks, one.placed.server_gpus) for one in observed] == [(3, (0, 0, 1, 1), (8, 8))]
    assert left == Counter({"nodes that are no longer there": 1, "no usable profile": 1})
    assert observed[0].seconds == pytest.approx(seconds_of(observed[0].placed, figures_of(observed, TRUE)), rel=0.01)


def test_ranks_are_inferred_from_the_recorded_alpha() -> None:
    profile = load_profile("vgg19-pp4dp2", [])
    counts = (3, 5)
    mapped = tuple(heavy_edge(profile, counts))
    alpha = iteration_time(profile, mapped, (8, 8), ASSUMED)
    run = run_of(1, {"n0": 3, "n1": 5}, profile="vgg19-pp4dp2")
    if alpha != run.alpha:
        observed, _ = observe([replace(run, alpha=alpha)], nodes(8, 8), profile_of, ASSUMED)
        assert observed[0].placed.ranks == mapped
        _, left = observe([replace(run, alpha=alpha * 2)], nodes(8, 8), profile_of, ASSUMED)
        assert sum(left.values()) == 1
    observed, _ = observe([run], nodes(8, 8), profile_of, ASSUMED)
    assert observed[0].placed.ranks == (0, 0, 0, 1, 1, 1, 1, 1)


@pytest.fixture
def topology() -> bool:
    return False


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topology: bool) -> Any:
    (tmp_path / "asrpt.toml").write_text(f'[paths]\nstate = "{tmp_path}"\nprofiles = []\n')
    monkeypatch.setenv("ASRPT_CONFIG", str(tmp_path / "asrpt.toml"))

    class Client:
        def __init__(self, *_: Any) -> None:
            pass

        def nodes(self) -> list[NodeRecord]:
            return nodes(8, 8, 8, 8)

        def topology(self, _: Any) -> Topology:
            return Topology(switches=SWITCHES) if topology else Topology()

    monkeypatch.setattr("slurm_asrpt.slurm.cli.CliClient", Client)

    def run(runs: list[Run], *words: str) -> Any:
        with History(tmp_path / "history.sqlite") as history:
            history.record(runs)
        return CliRunner().invoke(app, ["calibrate", *words])

    return run


START = int(time.time()) - 10_000
PLACES = [{"n0": 4}, {"n0": 2, "n1": 2}, {"n0": 3, "n2": 1}, {"n0": 1, "n1": 1, "n2": 1, "n3": 1}]


def test_the_command_prints_correct_settings(command: Any) -> None:
    runs = [run_of(n, PLACES[n % 4]) for n in range(24)]
    found = json.loads(command(runs, "--json").output)
    assert found["runs"] == 24
    assert found["fitted"]["inter"] == pytest.approx(TRUE.inter, rel=0.05)
    assert found["error_after"]["median"] < 0.02 < found["error_before"]["median"]
    text = command(runs).output
    assert "[fabric]\ninter_bytes_per_s = " in text
    assert "error before:" in text


RACKS = Fabric(TRUE.inter, TRUE.intra, (0.4e9,))


@pytest.mark.parametrize("topology", [True])
def test_the_bandwidth_beyond_the_first_switch_is_estimated(command: Any) -> None:
    """The settings have none: all levels are as fast as the first for them."""
    places = [*PLACES, {"n0": 2, "n3": 2}, {"n2": 2, "n3": 2}]
    runs = [run_of(n, places[n % 6], fabric=RACKS) for n in range(36)]
    found = json.loads(command(runs, "--json").output)
    assert found["left_out"] == {}
    assert found["fitted"]["inter"] == pytest.approx(RACKS.inter, rel=0.05)
    assert found["fitted"]["beyond 2"] == pytest.approx(0.4e9, rel=0.05)
    assert found["error_after"]["median"] < 0.02 < found["error_before"]["median"]
    text = command(runs).output
    assert re.search(r"(?m)^beyond_bytes_per_s = \[4\.?[0-9]*e\+08\]$", text), text
    assert "B_beyond 2" in text


@pytest.mark.parametrize("topology", [True])
def test_runs_below_one_switch_do_not_determine_the_next_level(command: Any) -> None:
    below = [place for place in PLACES if len({SWITCHES[name] for name in place}) == 1]
    runs = [run_of(n, [*below, {"n2": 2, "n3": 2}, {"n2": 3, "n3": 1}][n % 4], fabric=RACKS) for n in range(24)]
    found = json.loads(command(runs, "--json").output)
    assert "inter" in found["fitted"]
    assert "beyond 2" not in found["fitted"]
    assert "beyond_bytes_per_s" not in command(runs).output


def test_too_few_runs_are_an_error_that_says_what_is_missing(command: Any) -> None:
    answer = command([run_of(1, PLACES[0]), replace(run_of(2, PLACES[1]), profile="unknown")])
    assert isinstance(answer.exception, AsrptError)
    assert "1 usable run in 1 placement (left out: 1 with no usable profile); 10 in 3 are needed" in str(
        answer.exception
    )
    short = [replace(run_of(n, PLACES[n % 4]), end_time=run_of(n, PLACES[0]).start_time + 30) for n in range(24)]
    assert "0 usable runs" in str(command(short).exception)


def test_correct_settings_are_unchanged(command: Any) -> None:
    answer = command([run_of(n, PLACES[n % 4], fabric=ASSUMED) for n in range(24)])
    assert answer.exit_code == 0
    assert "keep them" in answer.output
