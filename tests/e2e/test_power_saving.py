"""Nodes that Slurm powers down and up: here their slurmd is stopped, and started two minutes of the lab later."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from .conftest import Cluster, own_cluster, quick, wait_for

pytestmark = pytest.mark.e2e

SPEED = 20
BOOT_S = 120
PROGRAM = """\
#!/bin/bash
{clock}
export PATH=$PATH:/usr/sbin SLURM_CONF={lab}/etc/slurm.conf
for node in $(scontrol show hostnames "$1"); do
    pid={lab}/pids/slurmd.$node.pid
    {command}
done
"""
RESUME = """[ -e {lab}/etc/broken.$node ] && continue
    sleep {boot}
    setsid slurmd -D -b -N $node -f $SLURM_CONF </dev/null >>{lab}/log/slurmd.$node.out 2>&1 &
    echo "$! $(sed 's/.*) //' /proc/$!/stat | cut -d' ' -f20)" >$pid"""  # as the lab writes it, which ends them by it
SUSPEND = "kill -9 $(cut -d' ' -f1 $pid)"

CONF = """ResumeProgram={programs}/resume
SuspendProgram={programs}/suspend
SuspendTime=3600
SuspendTimeout=30
ResumeTimeout=300
ResumeRate=0
SuspendRate=0
SlurmctldParameters=power_save_interval=10,power_save_min_interval=1"""


def write_programs(folder: Path, lab: Path, clock: Mapping[str, str]) -> None:
    """clock: the variables of the lab's clock, which slurmctld does not pass on."""
    exports = "\n".join(f"export {name}='{value}'" for name, value in clock.items())
    for name, command in {"resume": RESUME, "suspend": SUSPEND}.items():
        program = folder / name
        program.write_text(PROGRAM.format(lab=lab, clock=exports, command=command.format(lab=lab, boot=BOOT_S)))
        program.chmod(0o755)


def power_down(cluster: Cluster, nodes: str, count: int) -> None:
    cluster.scontrol("update", f"NodeName={nodes}", "State=POWER_DOWN")
    wait_for(lambda: cluster.lab.node_states()["idle~"] == count, "they are powered down", 20)


def test_jobs_power_nodes_up_where_those_that_are_up_have_no_room_and_one_that_fails_is_planned_around(tmp_path: Path):
    folder = Path(tempfile.mkdtemp(prefix="asrpt-own-"))
    folder.rmdir()
    write_programs(tmp_path, folder, {})  # slurmctld needs them when it starts
    settings = quick(SPEED) | {"policy": {"name": "asrpt-gated"}}
    conf = CONF.format(programs=tmp_path)
    with own_cluster(120, "3x4", settings, folder=folder, slurm_conf_extra=conf, speed=SPEED) as asrpt:
        assert asrpt.lab.clock
        write_programs(tmp_path, folder, asrpt.lab.clock.variables)
        power_down(asrpt, "n[2-3]", 2)
        (folder / "etc" / "broken.n3").touch()
        asrpt.start_daemon()
        here = asrpt.submit("--gpus=4", script="sleep 36000")
        assert asrpt.wait(here, "RUNNING").nodes == "n1"
        beyond = asrpt.submit("--gpus=3", script="sleep 36000")
        assert asrpt.wait(beyond, "CONFIGURING").nodes == "n2"
        wait_for(lambda: asrpt.text_of(beyond).startswith("Slurm is preparing its nodes"), "its owner is told", 5)
        fails = asrpt.submit("--gpus=4", script="sleep 20")
        assert asrpt.wait(fails, "CONFIGURING").nodes == "n3"
        runs = asrpt.wait(beyond, "RUNNING", timeout=40)
        assert runs.start_time >= asrpt.audit(beyond, "start")[0]["time"] + BOOT_S  # not taken back meanwhile
        asrpt.wait(fails, "PENDING", timeout=40)
        assert asrpt.lab.node_states()["down~"] == 1
        asrpt.cancel(beyond)
        asrpt.start_again(fails)
        assert asrpt.wait(fails, "COMPLETED").nodes == "n2"
        wait_for(lambda: asrpt.audit(fails, "ended"), "asrptd has seen its end", 10)
        state = json.loads((asrpt.paths / "state" / "state.json").read_text())
        assert BOOT_S <= state["startup_delay"]["average_s"] <= 300
        assert not asrpt.audit(fails, "not-started")
