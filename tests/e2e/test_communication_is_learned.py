"""A job that names no profile and whose runs were slow across switches waits for nodes under one switch."""

from __future__ import annotations

import pytest

from .conftest import COMMANDS, own_cluster, quick, wait_for

pytestmark = pytest.mark.e2e

SPEED = 40.0
SCRIPT = """\
case $SLURM_JOB_NODELIST in
"n[1-2]" | "n[3-4]") sleep 80 ;;
*) sleep 160 ;;
esac
"""
TWO_NODES = ("-N2", "-n8", "--gpus-per-task=1")
NEAR, FAR = (("n1,n2", "n3,n4"), ("n1,n3", "n2,n4"))


def test_runs_teach_which_jobs_need_near_nodes() -> None:
    settings = {**quick(SPEED), "policy": {"name": "asrpt-gated"}, "fabric": {"beyond_bytes_per_s": [0.15e9]}}
    with own_cluster(900, "4x4", settings, topology="tree:2x2", speed=SPEED) as lab:
        lab.start_daemon()
        for nodes in (*NEAR, *FAR) * 2:
            lab.submit(*TWO_NODES, "-w", nodes, script=SCRIPT)
        wait_for(lambda: len(lab.runs()) == 8, "eight runs", 120)
        assert {(run.switches, run.link_s > 2) for run in lab.runs().values()} == {(1, False), (2, True)}
        lab.lab.run([COMMANDS / "asrpt-admin", "retrain"])
        blockers = [lab.block(node, 4) for node in ("n1", "n3")]
        job_id = lab.submit(*TWO_NODES, script=SCRIPT)
        wait_for(lambda: lab.text_of(job_id), "asrptd considers it", 30)
        said = lab.lab.run([COMMANDS / "asrpt-status", "--explain", job_id]).stdout
        assert "4 of 8 earlier runs had nodes farther apart" in said, said
        assert lab.job(job_id).state == "PENDING"
        lab.cancel(blockers[0])
        assert lab.wait(job_id, "COMPLETED", timeout=60).nodes == "n[1-2]"
        lab.cancel(blockers[1])
