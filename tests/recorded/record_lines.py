"""Record squeue's lines of a queue before and after some changes, and its JSON at both times.

    python -m tests.recorded.record_lines /tmp/lab-rec-4 [--base-port 17850] [--root build/compat/trixie]

needs root and Slurm on this machine (make setup). See README.md here.
"""

from __future__ import annotations

import time

from slurm_asrpt.config.settings import SlurmSettings
from slurm_asrpt.lab.cluster import Lab
from slurm_asrpt.slurm.cli import CliClient
from tests.recorded.record import Recorder, hook_conf, main, squeue

FORGED = "two\nJobId=1 JobState=RUNNING ArrayTaskId=7 Priority=0"


class LinesClient(CliClient):
    """What asrptd reads of many jobs in each cycle."""

    def lines(self) -> str:
        return self._lines().decode()


def make_queue(r: Recorder) -> None:
    hook_conf(r.lab, lease=0)
    r.running("killed", "-p", "other", "-N1", "--gres=gpu:2")
    r.submit("array", "--array=0-9%3", "--gpus=2", "--begin=now+1hour", f"--job-name={FORGED}")
    update(r, f"{r.ids['array']}_4", "StartTime=now+2hours")
    r.submit("step", "--array=0-20:2", "--gpus=2", "--begin=now+1hour")
    r.submit("few", "--array=3,5", "--gpus=2", "--begin=now+1hour")
    for key in ("held", "gone", "later", "bounded"):
        r.submit(key, "-n2", "--gpus-per-task=1", "--begin=now+1hour")


def change_queue(r: Recorder) -> None:
    """Changes that need no full read."""
    for task in (1, 7):
        update(r, f"{r.ids['array']}_{task}", "StartTime=now+3hours")
    update(r, f"{r.ids['step']}_0", "StartTime=now+3hours")
    update(r, f"{r.ids['few']}_3", "StartTime=now+3hours")  # the last one keeps the array's number
    r.lab.run(["scancel", f"{r.ids['array']}_9"])
    r.lab.run(["scontrol", "hold", r.ids["held"]])
    r.lab.run(["scancel", r.ids["gone"]])
    r.lab.run(["scancel", r.ids["killed"]])
    r.wait("killed", "CANCELLED")
    update(r, r.ids["later"], "StartTime=now+3hours")
    update(r, r.ids["bounded"], "NumNodes=1-2")


def update(r: Recorder, job_id: str, *changes: str) -> None:
    r.lab.run(["scontrol", "update", f"JobId={job_id}", *changes])


def record(lab: Lab) -> dict[str, str]:
    recorder, client = Recorder(lab), LinesClient(SlurmSettings(conf=str(lab.slurm_conf)))
    answers = {}
    for name, change in (("before", make_queue), ("after", change_queue)):
        change(recorder)
        time.sleep(3)  # until Slurm has given every pending job its reason
        answers |= {f"lines-{name}.txt": client.lines(), f"lines-{name}.json": squeue(lab)}
    return answers


if __name__ == "__main__":
    main(__doc__, 17850, record)
