"""Forecasts under policies that preempt: waiting jobs get the GPUs of others after their checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from slurm_asrpt.core.job import ARRAY_TASKS_AHEAD, JobId
from slurm_asrpt.core.policies import make_policy
from slurm_asrpt.core.policies.base import PreemptibleRun
from slurm_asrpt.core.preemption_costs import PreemptionCosts
from slurm_asrpt.forecast.estimate import forecast
from slurm_asrpt.forecast.preemptions import Consenting, Interrupted, PreemptionState
from slurm_asrpt.forecast.replay import Replay
from slurm_asrpt.forecast.sampling import Quantiles
from slurm_asrpt.forecast.snapshot import Snapshot, from_json, to_json
from slurm_asrpt.hook.tag import Tag
from tests.benches.daemon import Bench
from tests.benches.fake_slurm import GROUP
from tests.unit.daemon.test_forecaster import FakeComputations
from tests.unit.forecast.test_forecast import FABRIC, NODES, NOW, job, snapshot, waiting
from tests.unit.forecast.test_forecast_arrays import played, task, with_array

COSTS = PreemptionCosts(checkpoint_s=20.0, requeue_s=10.0, restart_s=30.0)
HLAS = {"first_gpu_s": 100.0, "min_run_s": 5.0}
LONG_S = 5000.0


def with_long_run(ending: bool = False, known: bool = True) -> Snapshot:
    """Job 900 runs on both servers, for 100 s so far; job 1 waits. known: whether the policy may preempt job 900."""
    full = snapshot([waiting(1)], "hlas", settings=HLAS)
    both = {node.name: 2 for node in NODES}
    run = PreemptibleRun(JobId("900"), both, 0.0, 4.0, NOW - 100.0, 0, ending)
    long = replace(job(900, gpus=4, seconds=LONG_S), interruptible=True)
    running = (replace(full.running[0], job_id=JobId("900"), gpus=both, span=Quantiles(LONG_S, LONG_S, LONG_S)),)
    state = PreemptionState((Consenting(run, long, 1.0),) if known else (), costs=COSTS)
    return replace(full, running=running, preemption=state)


def starts(full: Snapshot, asked: list[str], until: float = math.inf) -> dict[JobId, float]:
    left = [LONG_S] * len(full.running)
    return Replay(full, left, {JobId("1"): 100.0}, iter([]), list(map(JobId, asked))).until(until)


def test_a_waiting_job_starts_after_the_checkpoint_of_the_job_that_it_preempts() -> None:
    later = iter([(job(2, gpus=1, submit=NOW + 1.0), 1.0)])  # the policy decides at the next event
    found = Replay(with_long_run(), [LONG_S], {JobId("1"): 100.0}, later, [JobId("1"), JobId("900")]).until(math.inf)
    assert found[JobId("1")] == NOW + 1.0 + COSTS.checkpoint_s
    assert found[JobId("900")] == found[JobId("1")] + 100.0, "then the other goes on"


def test_a_job_that_writes_its_checkpoint_frees_its_gpus_and_runs_again() -> None:
    found = starts(with_long_run(ending=True), ["1", "900"])
    assert found == {JobId("1"): NOW + COSTS.checkpoint_s, JobId("900"): NOW + COSTS.checkpoint_s + 100.0}


def test_without_consent_the_waiting_job_waits_for_the_end() -> None:
    assert starts(with_long_run(known=False), ["1"]) == {JobId("1"): NOW + LONG_S}


def test_a_job_that_would_end_before_its_checkpoint_runs_to_its_end() -> None:
    full = with_long_run(ending=True)
    found = Replay(full, [5.0], {JobId("1"): 100.0}, iter([]), [JobId("1")]).until(math.inf)
    assert found == {JobId("1"): NOW + 5.0}


def test_tasks_that_were_preempted_before_make_room_for_the_next_ones_as_they_start() -> None:
    """They wait at the beginning, so they count against what may be released; only those preempted later do not."""
    count = ARRAY_TASKS_AHEAD + 5
    full = with_array(count, [], policy="hlas")
    before = {each.job.id: Interrupted(100.0, 1) for each in full.waiting}
    asked = [task(number).id for number in range(count)]
    again = replace(full, preemption=PreemptionState(interrupted=before, costs=COSTS))
    assert played(again, {}, asked).keys() == set(asked)


def test_what_is_left_of_a_job_that_has_run_before_is_drawn() -> None:
    queue = [waiting(1, seconds=1000.0, spread=1.2), waiting(2, seconds=2000.0)]
    whole, rest = snapshot(queue, "fifo"), snapshot([replace(queue[0], done=950.0), queue[1]], "fifo")
    second = JobId("2")
    one = (whole.running[0],)
    alone, after = (forecast(replace(each, running=one, nodes=NODES[:1]), 0)[second] for each in (whole, rest))
    assert after.median < alone.median - 500.0


def test_the_preemptible_jobs_survive_json() -> None:
    full = with_long_run()
    assert from_json(to_json(full)) == full


def test_the_policy_knows_only_the_runs_of_the_snapshot() -> None:
    """Its saved state has those of its last decision; one of them may have ended, or left with its node."""
    full = with_long_run()
    policy = make_policy("hlas", fabric=FABRIC, **HLAS)
    policy.cluster_changed(NODES, NOW)
    policy.submitted(waiting(1).job, NOW)
    policy.served({}, [full.preemption.consenting[0].run], NOW)  # type: ignore[attr-defined]
    gone = replace(full, state=policy.dump(), preemption=PreemptionState())
    assert starts(gone, ["1"]) == {JobId("1"): NOW + LONG_S}


def test_asrptd_publishes_which_jobs_the_policy_may_preempt(make_bench: Callable[..., Bench]) -> None:
    tables: dict[str, Any] = {"policy": HLAS | {"queues": 3, "max_interruptions": 2}, "interrupt": {"grace_s": 8.0}}
    bench, computations = make_bench((4,), mode="enforce", policy="hlas", tables=tables), FakeComputations()
    forecaster = bench.forecaster(computations)

    def published() -> PreemptionState:
        bench.slurm.tick(70.0)
        bench.cycle(1)
        forecaster.step(bench.slurm.now)
        computations.answers.append({})
        forecaster.step(bench.slurm.now)
        found: Snapshot = computations.snapshots[-1]
        return found.preemption

    tag = Tag(GROUP, 5000, interrupt="B:USR1")
    long = bench.slurm.submit(4, requeue=True, admin_comment=tag.format())
    bench.cycle(20)
    short = bench.slurm.submit(4, admin_comment=Tag(GROUP, 10).format())
    known = published()
    assert [each.run.job_id for each in known.consenting] == [long]
    assert known.consenting[0].run.ending, "the short job preempts it"
    bench.cycle(30)
    assert bench.state(short) == "RUNNING"
    known = published()
    assert not known.consenting
    assert known.interrupted[JobId(long)].interruptions == 1
    assert known.interrupted[JobId(long)].service == bench.job(long).service.past > 0
