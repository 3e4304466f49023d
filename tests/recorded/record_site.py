"""Record how a real Slurm shows a site's limits, priorities and preemption.

    python -m tests.recorded.record_site /tmp/lab-rec-3 [--base-port 17950] [--root build/compat/trixie]

needs root, Slurm, slurmdbd and MariaDB (make setup test-packages). Brings a lab with rules up, writes site-*.txt to
tests/recorded/<Slurm release>/, and takes the lab down.
"""

from __future__ import annotations

import time

from slurm_asrpt.lab.cluster import Lab
from slurm_asrpt.slurm.preemption import QOS_FORMAT
from tests.recorded.record import Recorder, main, show_config

SLURM_CONF = """
AccountingStorageEnforce=associations,limits,qos
Licenses=matlab:3
PriorityWeightQOS=100000
PreemptType=preempt/qos
PreemptMode=REQUEUE
PartitionName=urgent Nodes=n[1-4] PriorityTier=10 PriorityJobFactor=2 QOS=normal"""
RULES = (
    ["add", "qos", "scavenger"],
    ["add", "qos", "high", "Priority=1000", "Preempt=scavenger", "GraceTime=30"],
    ["modify", "qos", "normal", "set", "MaxTRESPerUser=gres/gpu=8,cpu=40", "MaxJobsPerUser=5"],
    ["modify", "qos", "normal", "set", "MaxTRESPerAccount=mem=4096", "MaxTRESPerJob=gres/gpu=6", "MaxWall=1-00:00:00"],
    ["modify", "user", "asrpt1", "set", "qos+=high,scavenger", "MaxJobs=7", "Priority=5"],
    ["modify", "account", "lab", "set", "GrpTRES=gres/gpu=20", "GrpTRESMins=gres/gpu=1000", "GrpJobs=9"],
)


def record(lab: Lab) -> dict[str, str]:
    for rule in RULES:
        lab.run(["sacctmgr", "-i", *rule])
    time.sleep(1)
    lab.restart_slurmctld()  # otherwise new associations have no fair share for five minutes
    recorder = Recorder(lab)
    recorder.running("runs", "--gpus=2", "-N1", "--licenses=matlab:1", "--time=60")
    recorder.running("high", "--gpus=1", "-N1", "--qos=high", "--time=60")
    return {
        "site-config.txt": show_config(lab),
        "site-partitions.txt": lab.run(["scontrol", "-o", "show", "partition"]).stdout,
        "site-licenses.txt": lab.run(["scontrol", "-o", "show", "license"]).stdout,
        "site-assoc_mgr.txt": lab.run(["scontrol", "-o", "show", "assoc_mgr", "flags=qos,assoc"]).stdout,
        "site-qos.txt": lab.run(["sacctmgr", "-n", "-P", "show", "qos", QOS_FORMAT]).stdout,
    }


if __name__ == "__main__":
    main(__doc__, 17950, record, accounting=True, multifactor=True, slurm_conf_extra=SLURM_CONF)
