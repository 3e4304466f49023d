"""asrpt-admin boost: what it writes, says and refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from slurm_asrpt_cli.admin import app
from typer.testing import CliRunner

from slurm_asrpt.slurm import cli
from slurm_asrpt.slurm.client import SlurmConfig
from slurm_asrpt.slurm.priorities import BOOSTED_PRIORITY
from slurm_asrpt.slurm.records import JobRecord, Update

JOB = JobRecord(
    "7", "train", "ann", 1001, "gpu", "PENDING", "Priority", 0.0, number=7, nice=100, priority=4_294_901_700
)


class Slurm:
    """A Slurm with these jobs, which keeps nice values and priorities."""

    def __init__(self, *jobs: JobRecord, multifactor: bool = True) -> None:
        self.records, self.multifactor, self.commands, self.errors = list(jobs), multifactor, list[str](), ""

    def __call__(self, _: object) -> Slurm:
        return self

    def jobs(self) -> list[JobRecord]:
        return self.records

    def config(self) -> SlurmConfig:
        return SlurmConfig("22.05.8", "lab", self.multifactor, False)

    def update(self, updates: list[Update]) -> list[str]:
        for update in updates:
            changes = {key.lower(): int(value) for key, value in update.fields.items()}
            self.records = [replace(r, **changes) if r.address == update.job_id else r for r in self.records]  # type: ignore[arg-type]
        return [self.errors for _ in updates]

    def run(self, *words: str) -> str:
        self.commands.append(" ".join(words))
        return ""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = tmp_path / "asrpt.toml"
    config.write_text(f'[paths]\nstate = "{tmp_path}"\n')

    def run(slurm: Slurm, *words: str, code: int = 0) -> str:
        monkeypatch.setattr(cli, "CliClient", slurm)
        done = CliRunner().invoke(app, ["boost", *words, "--config", str(config)])
        assert done.exit_code == code or (code and done.exception), done.output
        return done.output if done.exception is None or not str(done.exception) else str(done.exception)

    return run


def test_a_boost_takes_a_billion_from_the_nice_value_and_undo_gives_it_back(run) -> None:
    slurm = Slurm(JOB, replace(JOB, job_id="8", number=8))
    assert run(slurm, "7") == "job 7 goes before all others\n"
    assert [job.nice for job in slurm.records] == [100 - 10**9, 100]
    assert "is boosted already" in run(slurm, "7")
    assert json.loads(run(slurm, "7", "--undo", "--json")) == {"boosted": False, "changed": ["7"]}
    assert slurm.records[0].nice == 100
    assert "was not boosted" in run(slurm, "7", "--undo")


def test_all_pending_tasks_of_an_array_are_boosted(run) -> None:
    rest, split = replace(JOB, job_id="12", array_tasks="2-9"), replace(JOB, job_id="12_1")
    slurm = Slurm(rest, split, replace(JOB, job_id="12_0", state="RUNNING"))
    assert run(slurm, "12") == "2 jobs goes before all others: 12_[2-9] 12_1\n".replace("goes", "go")
    assert [job.nice < 0 for job in slurm.records] == [True, True, False]


def test_with_priority_basic_the_priority_is_set_and_a_release_restores_the_default(run) -> None:
    slurm = Slurm(JOB, multifactor=False)
    run(slurm, "7")
    assert slurm.records[0].priority == BOOSTED_PRIORITY
    run(slurm, "7", "--undo")
    assert slurm.commands == ["scontrol hold 7", "scontrol release 7"]


@pytest.mark.parametrize(("job", "said"), [("7", "not pending: RUNNING"), ("9", "unknown to Slurm")])
def test_only_pending_jobs_can_be_boosted(run, job, said) -> None:
    assert said in run(Slurm(replace(JOB, state="RUNNING")), job, code=2)


def test_slurms_refusal_is_shown(run) -> None:
    slurm = Slurm(JOB)
    slurm.errors = "Access/permission denied"
    assert "job 7: Access/permission denied" in run(slurm, "7", code=1)


def test_a_heterogeneous_job_is_boosted_with_all_its_components(run) -> None:
    first = replace(JOB, job_id="12", number=12, het=True, het_id="12")
    for name in ("12", "13", "12+1"):  # asrptd orders the whole by its first component
        slurm = Slurm(first, replace(first, job_id="13", number=13))
        assert run(slurm, name) == "job 12 with all its components goes before all others\n"
        assert [job.nice < 0 for job in slurm.records] == [True, False]  # Slurm changes the others with it


def test_a_task_that_shares_its_arrays_record_can_be_boosted(run) -> None:
    rest = replace(JOB, job_id="12", number=12, array_tasks="2-9")
    slurm = Slurm(rest)
    assert run(slurm, "12_4") == "job 12_4 goes before all others\n"
    assert "unknown to Slurm" in run(slurm, "12_1", code=2)


@pytest.mark.parametrize(
    ("asked", "boosted"),
    [
        ("12_[2-9%4]", ["12_[2-9]"]),
        ("12_[1-3]", ["12_[2,3]", "12_1"]),
        ("12_[1]", ["12_1"]),
        ("12_[5]", ["12_[5]"]),
    ],
)
def test_tasks_are_named_as_squeue_writes_them(run, asked, boosted) -> None:
    slurm = Slurm(replace(JOB, job_id="12", number=12, array_tasks="2-9"), replace(JOB, job_id="12_1"))
    assert json.loads(run(slurm, asked, "--json"))["changed"] == boosted


def test_tasks_that_no_update_can_name_are_refused(run) -> None:
    slurm = Slurm(replace(JOB, job_id="12", number=12, array_tasks="0-9999"))
    assert "too many tasks" in run(slurm, "12_[0-9000]", code=2)
    assert run(slurm, "12_[0-9999]") == "job 12_[0-9999] goes before all others\n"


@pytest.mark.parametrize("job", ["abc", "", "12_[a]"])
def test_what_is_no_job_id_is_refused(run, job) -> None:
    run(Slurm(JOB), job, code=2)
    assert Slurm(JOB).records == [JOB]
