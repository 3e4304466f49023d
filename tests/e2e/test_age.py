"""The age of leased jobs on a real Slurm, with and without ACCRUE_ALWAYS (docs/slurm-notes.md)."""

import json
import time
from collections.abc import Iterator

import pytest

from slurm_asrpt.slurm.priorities import standing

from .conftest import COMMANDS, QUICK, Cluster, own_cluster, wait_for

pytestmark = pytest.mark.e2e

AGE, MAX_AGE_S = 100_000.0, 600.0
EXTRA = f"PriorityWeightAge={AGE:g}\nPriorityMaxAge=0-00:10:00"
ENFORCE = {**QUICK, "daemon": {**QUICK["daemon"], "mode": "enforce"}}


@pytest.fixture(scope="module")
def one_lab() -> Iterator[Cluster]:
    with own_cluster(680, "1x4", ENFORCE, multifactor=True, slurm_conf_extra=EXTRA) as cluster:
        yield cluster


def age_findings(lab: Cluster) -> list[str]:
    done = lab.lab.run([COMMANDS / "asrpt-admin", "doctor", "--json"], check=False)
    return [each["text"] for each in json.loads(done.stdout) if each["check"] == "age"]


def test_the_age_of_a_leased_job_counts_once(lab: Cluster) -> None:
    lab.start_daemon()
    lab.block_all()
    job_id = lab.submit("--gpus=1")
    wait_for(lambda: 0 < lab.job(job_id).accrue_time < time.time() - 2, "the first lease would be over", 30)
    job, now = lab.job(job_id), time.time()
    assert job.eligible_time > now
    missing = AGE * (job.accrue_time - job.submit_time) / MAX_AGE_S
    found = standing(job, lab.client.site().priorities, 0, 0, now)
    assert missing > 0
    assert found.continuous - job.priority == pytest.approx(missing, abs=1)
    assert any("ACCRUE_ALWAYS" in text for text in age_findings(lab))
    lab.stop_daemon()


def test_with_accrue_always_a_job_keeps_its_age_when_it_is_handed_back(lab: Cluster) -> None:
    conf = lab.lab.slurm_conf
    conf.write_text(conf.read_text(encoding="utf-8") + "PriorityFlags=ACCRUE_ALWAYS\n", encoding="utf-8")
    lab.lab.restart_slurmctld()
    lab.start_daemon()
    lab.block_all()
    job_id = lab.submit("--gpus=1")

    def accrues(leased: bool) -> bool:
        job = lab.job(job_id)
        return job.accrue_time == job.submit_time and (job.eligible_time > time.time()) is leased

    wait_for(lambda: accrues(leased=True), "a leased job ages since its submission", 15)
    assert job_id in lab.lab.run(["sprio", "-h", "-o", "%i"]).stdout.split()
    assert not age_findings(lab)
    lab.admin("disable")
    wait_for(lambda: accrues(leased=False), "a job that is handed back keeps its age", 15)
    lab.stop_daemon()
