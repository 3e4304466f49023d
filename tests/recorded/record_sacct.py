"""Record what a real sacct says, for the reader of job traces.

    python -m tests.recorded.record_sacct /tmp/lab-rec-2 [--base-port 19500]

needs root, Slurm, slurmdbd and MariaDB on this machine (make setup test-packages). Brings a lab with accounting up,
runs jobs of every form that the reader tells apart, writes sacct.txt (local times) and sacct-epoch.txt (seconds since
the epoch, other fields, with duplicates) to tests/recorded/<Slurm release>/, and takes the lab down.
"""

from __future__ import annotations

import time

from slurm_asrpt.lab.cluster import Lab
from slurm_asrpt.traces.sacct import SACCT_FIELDS
from tests.recorded.record import Recorder, hook_conf, main

LOCAL_FIELDS = (
    "JobID,JobIDRaw,User,Account,Partition,JobName,Submit,Eligible,Start,End,ElapsedRaw,TimelimitRaw,State,"
    "ReqTRES,AllocTRES,NNodes,AdminComment,WorkDir,SubmitLine"
)


def make_jobs(r: Recorder) -> None:
    hook_conf(r.lab, lease=0)  # tags, but no leases
    r.submit("done", "-n2", "--gpus-per-task=1", "--time=5", script="srun -n2 sleep 2")
    r.submit("sweep", "--job-name=sweep-17", "--gpus=h100:1", script="sleep 1")
    r.submit("no-limit", "--gres=gpu:t4:1", "-N1", "--time=UNLIMITED", script="sleep 1")
    r.submit("failed", "-n1", "--gpus=1", script="sleep 1; exit 3")
    r.submit("array", "--array=0-3%2", "--gpus=1", "-N1", script="sleep 1")
    r.submit("no-gpu", "-n1", script="sleep 1")
    r.submit("odd", "--job-name=a|b=c", "--gpus=1", script="sleep 1")
    r.submit("line-break", "--job-name=x\n1|1|forged", "--gpus=1", script="sleep 1")
    het = ["sbatch", "--parsable", "--job-name=het", "-n1", "--gpus=2", ":", "-n1", "--gpus=1"]
    r.lab.run(het, user="asrpt1", input="#!/bin/sh\nsleep 1\n")
    r.running("cancelled-running", "--gpus=2")
    r.running("requeued", "--gpus=1", "--requeue")
    time.sleep(2)
    r.lab.run(["scancel", r.ids["cancelled-running"]])
    r.lab.run(["scontrol", "requeue", r.ids["requeued"]])
    time.sleep(1)
    r.lab.run(["scontrol", "update", f"JobId={r.ids['requeued']}", "StartTime=now"])
    r.wait("requeued", "RUNNING")
    r.lab.run(["scancel", r.ids["requeued"]])
    r.submit("cancelled-waiting", "--gpus=2", "--begin=now+1hour")
    r.lab.run(["scancel", r.ids["cancelled-waiting"]])
    r.submit("array-waits", "--array=0-9%1", "--gpus=1", "--begin=now+1hour")
    r.submit("never", "--gpus=1", "--hold")
    r.running("runs", "--gpus=1")
    r.submit("no-room", "-n28", "--gpus-per-task=1")
    r.submit("waits", "-n28", "--gpus-per-task=1")
    time.sleep(5)  # the array's later tasks
    r.lab.run(["scancel", r.ids["no-room"]])
    time.sleep(2)


def sacct(lab: Lab, fields: str, *options: str, **env: str) -> str:
    command = ["sacct", "--parsable2", "--allusers", "--starttime=now-1hour", f"--format={fields}", *options]
    return lab.run(["env", *(f"{k}={v}" for k, v in env.items()), *command]).stdout


def record(lab: Lab) -> dict[str, str]:
    make_jobs(Recorder(lab))
    return {
        "sacct.txt": sacct(lab, LOCAL_FIELDS),
        "sacct-epoch.txt": sacct(lab, ",".join(SACCT_FIELDS), "--duplicates", SLURM_TIME_FORMAT="%s"),
    }


if __name__ == "__main__":
    main(__doc__, 19500, record, accounting=True)
