"""Jobs with and without profiles of one user teach each other in seconds, through slurmctld's hook and asrptd."""

from __future__ import annotations

import pytest

from slurm_asrpt.core.units import Unit
from slurm_asrpt.history.store import Source
from slurm_asrpt.hook.tag import parse_tag

from .conftest import Cluster, wait_for

pytestmark = pytest.mark.e2e
OPTIONS = ("-n4", "-N1", "--gpus-per-task=1")
PROFILE = "--comment=asrpt:profile=vgg19-dp4"


def test_iterations_of_one_job_are_seconds_of_another(asrpt: Cluster) -> None:
    report = asrpt.lab.paths.bin / "asrpt-report"
    job_id = asrpt.submit(*OPTIONS, PROFILE, script=f"sleep 4; {report} 40")
    asrpt.wait(job_id, "COMPLETED")
    run = asrpt.recorded(job_id)
    assert (run.iterations, run.iterations_source, run.iterations_of) == (40, Source.REPORTED, "vgg19-dp4")
    assert run.work_s == run.end_time - run.start_time  # four GPUs of one node are its best placement
    asrpt.admin("retrain")

    plain = asrpt.submit(*OPTIONS, "--hold", "-J", "plain", script="sleep 1")
    tag = parse_tag(asrpt.job(plain).admin_comment)
    assert tag is not None
    seconds = tag.iterations  # other jobs on this cluster count, too
    assert (0 < seconds <= 2 * run.work_s, tag.level) == (True, "user")
    other = asrpt.submit(*OPTIONS, "--hold", "-J", "other", PROFILE, script="sleep 1")
    tag = parse_tag(asrpt.job(other).admin_comment)
    assert tag is not None
    assert (tag.iterations, tag.level, tag.unit) == (seconds, "user", Unit.SECONDS)
    wait_for(lambda: {plain, other} <= asrpt.status().keys(), "asrptd shows both jobs", 30)
    rows = asrpt.status()
    assert rows[plain]["predicted_iterations"] == seconds
    assert rows[other]["predicted_iterations"] == round(seconds / rows[other]["alpha_min"])
    by = rows[other]["predicted_mean"] or rows[other]["predicted_iterations"]  # the order, and so the shown runtime
    assert rows[other]["predicted_run_s"] == pytest.approx(by * rows[other]["alpha_min"])
    asrpt.cancel(plain, other)
