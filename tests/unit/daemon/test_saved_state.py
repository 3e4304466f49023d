"""The saved state of a job: a state.json of the previous release, with all fields set, is read and written back."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import FROM_SLURM, SAVED, Forecast, JobState, RequeuedRun, SavedJob, Service
from slurm_asrpt.slurm.records import PENDING, JobRecord
from slurm_asrpt.slurm.writeback import Original

RECORDED = Path(__file__).parents[2] / "recorded" / "upgrade" / "state-all-fields.json"
JOBS = json.loads(RECORDED.read_text(encoding="utf-8"))["jobs"]
NOW = 1_000_010.0


def slurm_record(job_id: str, **fields: object) -> JobRecord:
    saved = JOBS[job_id]
    known = {"job_id": job_id, "name": "train", "user": "asrpt1", "uid": 1001, "partition": "gpu", "state": PENDING}
    record = JobRecord(**known, reason="None", submit_time=saved["submit_time"], number=int(job_id))  # type: ignore[arg-type]
    return replace(record, admin_comment=saved["tag"], **fields)  # type: ignore[arg-type]


def restored(job_id: str, now: float = NOW, **fields: object) -> ManagedJob:
    job = ManagedJob(record=slurm_record(job_id, **fields))
    job.read_tag(job.record)
    job.restore(JOBS[job_id], now)
    return job


@pytest.mark.parametrize("job_id", JOBS)
def test_all_saved_fields_are_read_and_written_back(job_id: str) -> None:
    saved = dict(JOBS[job_id])
    if saved["interruption"]:  # the signal is sent again
        saved["interruption"] = [*saved["interruption"][:2], 0.0, "", False]
    if saved["pin"]:  # a field that the release did not have
        saved["pin"] = {**saved["pin"], "grace_s": 0.0}
    if saved["real"]:
        saved["real"] = {**saved["real"], "layouts": []}
    if saved["forecast"]:
        saved["forecast"] = [*saved["forecast"], ""]
    service = [*saved["service"], *((0.0, False, 0.0, 0.0) if saved["service"] else ())]
    newer = {"first_priority": 0, "reference_alpha": 0.0, "confined": False, "unbounded": 0, "service": service}
    assert json.loads(restored(job_id).dump()) == saved | newer


def test_the_recorded_state_has_every_field() -> None:
    untouched = json.loads(ManagedJob(record=slurm_record("2", submit_time=0.0)).dump())
    jobs = [json.loads(restored(job_id).dump()) for job_id in JOBS]
    same = {name for name in untouched if all(job[name] == untouched[name] for job in jobs)}
    newer = {"restarts", "first_priority", "reference_alpha", "confined", "unbounded"}
    assert same == newer  # than the recording
    assert len(untouched) == len(SAVED)


def test_saved_values_are_restored_with_their_types() -> None:
    running, queued = restored("1"), restored("3")
    before = Original(1, 0, 6, 100, 6)
    assert (running.state, queued.state) == (JobState.RUNNING, JobState.QUEUED)
    assert running.service == Service(7.5, 1_000_000.0, 6.0, 2, "9")
    assert running.requeued_run == RequeuedRun(1_000_000.0, 0, before)
    assert running.pin is not None
    assert (running.pin.original, running.original) == (before, before)
    assert running.placement is not None
    assert isinstance(running.placement.ranks, tuple)
    times = (1_000_015.0, 1_000_026.0, None)
    assert queued.forecast == Forecast(1_000_006.0, 1_000_017.0, 1_000_027.0, None, times)


def test_saved_times_from_the_future_are_limited() -> None:
    job = restored("1", now=999_000.0)
    assert job.pin is not None
    assert job.pin.at == 999_000.0
    assert restored("3", now=999_000.0).retry_at == 999_300.0


def test_a_requeued_job_keeps_its_service_and_the_original_fields() -> None:
    job = restored("1", submit_time=1_000_008.0, restarts=1, required_nodes="n[1-2]")
    assert job.state is JobState.INELIGIBLE
    assert job.original == Original(1, 0, 6, 100, 6)
    assert (job.service.past, job.service.interruptions, job.service.head) == (7.5 + 6.0 * 8, 2, "3")
    assert job.requeued_run == RequeuedRun(1_000_000.0, 0, job.original)


@pytest.mark.parametrize(
    "raw", [None, 7, [], {}, {"submit_time": "x"}, {**JOBS["1"], "pin": 3}, {**JOBS["1"], "place": "no"}]
)
def test_invalid_saved_jobs_are_refused_and_change_nothing(raw: object) -> None:
    job = ManagedJob(record=slurm_record("1"))
    before = job.dump()
    with pytest.raises(ValueError, match="SavedJob"):
        job.restore(raw, NOW)
    assert job.dump() == before


def test_fields_of_other_releases_are_ignored() -> None:
    less = {name: value for name, value in JOBS["1"].items() if name not in ("over", "restarts")}
    job = ManagedJob(record=slurm_record("1"))
    job.restore({**less, "of_tomorrow": 1, "service": [1.0, 2.0, 3.0, 4, "5", 6.0, True, 7.0, 8.0, "more"]}, NOW)
    assert job.service == Service(1.0, 2.0, 3.0, 4, "5", 6.0, True, 7.0, 8.0)
    assert job.requeued_run is None


def test_a_job_is_dumped_again_only_when_it_has_changed() -> None:
    job = restored("2")
    assert job.dump() is job.dump()
    before = job.dump()
    job.site_factor_is(5)
    assert json.loads(job.dump()) == {**json.loads(before), "site_factor": 5}


def test_the_saved_fields_are_those_of_the_model() -> None:
    assert set(SAVED) > FROM_SLURM
    assert set(SAVED) == set(SavedJob.__dataclass_fields__)
