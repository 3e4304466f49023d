"""A user cannot change the predictions and the order of others, except through the cluster's key."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.history.store import History, Run, Sample, Source
from slurm_asrpt.hook.group import keys_of, owned
from slurm_asrpt.hook.hook_conf import digest
from slurm_asrpt.predict.conformal import KEPT, RunConformal
from slurm_asrpt.predict.evidence import PredictionInput, evidence
from slurm_asrpt.predict.predictors import examples_of, fit, predictor_names
from tests.benches.daemon import Bench

VICTIM, ATTACKER = 1001, 1002
CLUSTER_KEY = keys_of("0" * 16, "", 0, 0, {})[-1][1]
P1, P2 = 4294967291, 4294967279
"""The primes of the group id."""
ids = st.text("0123456789abcdef", min_size=16, max_size=16)
uids = st.integers(0, 2**32 - 2)


def collision(target: str) -> bytes:
    """Twelve bytes with this digest. The hash is not cryptographic: this takes seconds."""
    first, second = int(target[:8], 16), int(target[8:], 16)

    def wanted(start: int, factor: int, prime: int, lane: int) -> tuple[int, int]:
        """Solve ((start f + x) f + y) f + 12 = lane: y = a - x f."""
        return (lane - 12) * pow(factor, -1, prime) - start * factor**2, factor

    (a1, f1), (a2, f2) = wanted(1, 1000003, P1, first), wanted(2, 786433, P2, second)
    inverse = pow(P1, -1, P2)
    for x in range(1 << 22):
        y1, y2 = (a1 - x * f1) % P1, (a2 - x * f2) % P2
        y = y1 + P1 * ((y2 - y1) * inverse % P2)
        if y < 1 << 48:
            return x.to_bytes(6, "little") + y.to_bytes(6, "little")
    raise AssertionError("none found")


def test_a_group_id_can_be_forged_but_not_its_key() -> None:
    target = digest(b"somebody's script")
    assert digest(collision(target)) == target
    assert owned(ATTACKER, target) != owned(VICTIM, target)


@given(one=uids, other=uids, made=st.tuples(ids, ids), theirs=st.tuples(ids, ids), gpus=st.integers(0, 64))
def test_two_users_share_only_the_clusters_key(
    one: int, other: int, made: tuple[str, str], theirs: tuple[str, str], gpus: int
) -> None:
    """For any ids of their scripts."""
    keys = [{key for _, key in keys_of(*found, uid, gpus, {})} for uid, found in ((one, made), (other, theirs))]
    assert keys[0] & keys[1] == {CLUSTER_KEY} or one == other


@given(lower=st.integers(0, 2**32 - 1), one=uids, other=uids)
def test_for_each_lower_half_users_have_distinct_upper_halves(lower: int, one: int, other: int) -> None:
    key = f"{0:08x}{lower:08x}"
    assert (owned(one, key) == owned(other, key)) == (one == other)
    assert owned(one, key)[8:] == key[8:]
    assert owned(one, key) != CLUSTER_KEY


def sample(uid: int, iterations: int, group: str = "a" * 16) -> Sample:
    return Sample(group, uid, iterations, program="b" * 16, gpus=4)


@pytest.mark.parametrize("name", [name for name in predictor_names() if name != "forest-sklearn"])
def test_runs_of_others_with_the_same_ids_do_not_change_a_users_keys(name: str) -> None:
    mine = [sample(VICTIM, 100)] * 60
    alone = fit(name, examples_of(mine), trees=5, seed=0)
    poisoned = fit(name, examples_of([*mine, *[sample(ATTACKER, 10**9)] * 60]), trees=5, seed=0)
    chain = [key for level, key in keys_of("a" * 16, "b" * 16, VICTIM, 4, {}) if level in ("exact", "group", "program")]
    there = [key for key in chain if key in alone]
    assert there
    assert [poisoned[key].iterations for key in there] == pytest.approx([alone[key].iterations for key in there])


def test_the_evidence_for_a_prediction_is_the_users_own(tmp_path: Path) -> None:
    values = {"state": "COMPLETED", "group_id": "a" * 16, "program": "b" * 16, "iterations": 9, "gpus": 4}
    with History(tmp_path / "history.sqlite") as history:
        history.record(Run(str(uid), 1, end_time=2, uid=uid, **values) for uid in (VICTIM, ATTACKER))  # type: ignore[arg-type]
        found = evidence(PredictionInput("a" * 16, "b" * 16, VICTIM, 4), {}, history, RunConformal())
    assert [level.runs for level in found.levels] == [1, 1, 1, 1, 2]
    assert [run.job_id for run in found.runs] == [str(VICTIM)]


@pytest.fixture
def ended(bench: Bench) -> dict[int, Run]:
    """Ten-second runs of a job that reports this many iterations."""
    found = {}
    for done in (7, 10**15 - 1):
        job_id = bench.slurm.submit(4, profile="flat")
        bench.cycle(10)
        bench.report(job_id, f"{done} {done}\n")
        bench.slurm.end(job_id)
        bench.cycle()
        found[done] = bench.runs()[job_id]
    return found


def test_impossible_iteration_counts_are_ignored(ended: dict[int, Run]) -> None:
    """They would change the mean of all runs, which predicts users without a history."""
    assert (ended[7].iterations, ended[7].iterations_source) == (7, Source.REPORTED)
    assert ended[10**15 - 1].iterations_source is Source.ELAPSED
    assert ended[10**15 - 1].iterations < 10**6


def test_one_users_runs_hardly_adjust_the_intervals_of_others() -> None:
    """The order does not depend on intervals, and users with enough runs have their own adjustment."""
    conformal = RunConformal()
    for place in range(KEPT):
        conformal.learn("victim", 80, 100, 125, 90 + place % 21)
    before = conformal.adjusted("victim", 80, 100, 125)
    for _ in range(1000):
        conformal.learn("attacker", 80, 100, 125, 1e12)
    after = conformal.adjusted("victim", 80, 100, 125)
    assert np.log(np.array(after) / before) == pytest.approx([0, 0], abs=0.05)
