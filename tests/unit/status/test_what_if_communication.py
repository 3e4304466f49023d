"""asrpt-status --what-if of a job without a profile whose earlier runs suffered from distant nodes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_asrpt.forecast.snapshot import PUBLISHED
from slurm_asrpt.history.store import Run
from slurm_asrpt.hook.group import describe
from slurm_asrpt.predict.communication import keys_for, rate_in, to_rates
from slurm_asrpt.predict.retrain import retrain
from slurm_asrpt.predict.sensitivity import Belief, Beliefs
from tests.benches.daemon import Bench
from tests.benches.fake_slurm import FakeSlurm
from tests.unit.daemon.test_learned_communication import FAR, NEAR, SWITCHES, past
from tests.unit.forecast.test_forecast_what_if import ask, publish, shown

SCRIPT = b"#!/bin/sh\n#SBATCH --gpus=8 -N2 --job-name=train\npython train.py\n"
FREE = ("n1", "n3")
"""Under different leaves."""
Asked = Callable[..., dict[str, Any]]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """One of two nodes under each leaf is free."""
    tables = {"fabric": {"beyond_bytes_per_s": [0.15625e9]}}
    slurm = FakeSlurm(sizes=(4, 4, 4, 4), switches=dict(SWITCHES))
    bench = Bench(tmp_path, slurm, policy="asrpt-gated", tables=tables)
    for name in ("n2", "n4"):
        bench.slurm.submit(4, 1000, required_nodes=name)
    bench.cycle(3)
    paths = bench.settings.paths
    config = tmp_path / "asrpt.toml"
    config.write_text("".join(["[paths]\n", *(f'{k} = "{getattr(paths, k)}"\n' for k in ("run", "hook", "state"))]))
    monkeypatch.setenv("ASRPT_CONFIG", str(config))
    monkeypatch.setattr("time.time", lambda: bench.slurm.now)
    yield bench
    bench.close()


def learn(bench: Bench, slower: float = 2.0) -> None:
    job = describe(os.getuid(), b"train", SCRIPT, [], b"", bench.settings.group)
    more = {"uid": os.getuid(), "group_id": job.group, "program": job.program}
    runs: list[Run] = [past(number, FAR if number % 2 else NEAR, slower, **more) for number in range(10)]
    bench.history.record(runs)
    retrain(bench.settings, bench.slurm.now)
    bench.cycle()
    publish(bench)


def test_it_waits_for_near_nodes_as_under_asrptd(
    site: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(site)
    before = ask(SCRIPT, [], tmp_path, monkeypatch, capsys)
    assert before["placement"] == dict.fromkeys(FREE, 4)
    assert before["communicates"] is False
    learn(site)
    found = ask(SCRIPT, [], tmp_path, monkeypatch, capsys)
    assert (found["placement"], found["communicates"], found["profile"]) == (None, True, "")
    assert found["alpha_min"] == pytest.approx(1.0)
    site.slurm.end("1")
    site.cycle(2)
    publish(site)
    near = ask(SCRIPT, [], tmp_path, monkeypatch, capsys)
    assert near["placement"] == {"n1": 4, "n2": 4}
    said = " ".join(shown([], SCRIPT, [], tmp_path, monkeypatch, capsys).split())
    assert "1.00 times the runtime of the best placement, learned from earlier runs" in said


def test_a_group_whose_runs_do_not_suffer_starts_at_once(
    site: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    learn(site, slower=1.0)
    found = ask(SCRIPT, [], tmp_path, monkeypatch, capsys)
    assert (found["placement"], found["communicates"]) == (dict.fromkeys(FREE, 4), False)


def test_a_profile_takes_precedence(
    site: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    learn(site)
    found = ask(SCRIPT, ["--comment=asrpt:profile=vgg19-dp8"], tmp_path, monkeypatch, capsys)
    assert (found["profile"], found["communicates"]) == ("vgg19-dp8", False)


def test_what_is_published_does_not_name_groups_or_users(site: Bench) -> None:
    learn(site)
    group = describe(os.getuid(), b"train", SCRIPT, [], b"", site.settings.group).group
    data = (site.settings.paths.run / PUBLISHED).read_text()
    assert json.loads(data)["rates"]
    assert group not in data


def test_the_narrowest_key_counts() -> None:
    group, program, user = keys_for("g", "p", 7)
    known = {f"group {group}": Belief(0.0), f"program {program}": Belief(2.0), "cluster ": Belief(3.0)}
    rates, beliefs = to_rates(Beliefs(known)), Beliefs(known)
    for names in (("g", "p", 7), ("h", "p", 7), ("h", "", 7), ("h", "q", 8)):
        belief = beliefs.of(*keys_for(*names))
        assert belief is not None
        assert rate_in(rates, *names) == belief.rate
    assert rate_in({}, "g", "p", 7) == 0.0
    assert user == "7"
