"""The sites of random queues: what is in slurm.conf and slurmdbd, and what users may ask for there."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce

from slurm_asrpt.lab.cluster import Lab
from slurm_asrpt.lab.spec import DEFAULT_SCHEDULER_PARAMETERS

USERS = ("asrpt1", "asrpt2", "asrpt3")


def _nothing(lab: Lab) -> None:
    """The default preparation."""


def _both(one: Callable[[Lab], None], two: Callable[[Lab], None], lab: Lab) -> None:
    one(lab)
    two(lab)


@dataclass(frozen=True)
class Site:
    """Rules of a site; several of them can be in force at once.

    conf: lines of slurm.conf. rules: commands of sacctmgr. managed: partitions that asrptd manages, besides gpu.
    options: of sbatch, srun and salloc, of which a job gets one. updates: of pending jobs, as for ``scontrol update``.
    prepare: changes the lab before the first job. acts: commands of the admin and their times in seconds.
    het: the share of heterogeneous jobs; behind one, plain Slurm 22.05 may start nothing on an idle cluster.
    """

    conf: Sequence[str] = ()
    rules: Sequence[str] = ()
    managed: Sequence[str] = ()
    options: Sequence[str] = ()
    updates: Sequence[str] = ()
    prepare: Callable[[Lab], None] = _nothing
    acts: Sequence[tuple[float, str]] = ()
    nodes: str = "4x4"
    topology: str = ""
    het: int = 0

    def __or__(self, other: Site) -> Site:
        """Both sites' rules."""

        return Site(
            conf=(*self.conf, *other.conf),
            rules=(*self.rules, *other.rules),
            managed=(*self.managed, *other.managed),
            options=(*self.options, *other.options),
            updates=(*self.updates, *other.updates),
            prepare=partial(_both, self.prepare, other.prepare),
            acts=(*self.acts, *other.acts),
            nodes=max(self.nodes, other.nodes, key=len),
            topology=self.topology or other.topology,
            het=max(self.het, other.het),
        )


LIMITS = "AccountingStorageEnforce=associations,limits,qos"
EVERYBODY = f"modify user {','.join(USERS)} set"


def _reserve(lab: Lab) -> None:
    """A node for asrpt2, and a magnetic reservation of another for asrpt3."""
    for words in ("owned Users=asrpt2 Nodes=n4", "drawing Users=asrpt3 Nodes=n3 Flags=MAGNETIC"):
        name, *rest = words.split()
        command = ["scontrol", "create", "reservation", f"ReservationName={name}", "StartTime=now", "Duration=60"]
        lab.run([*command, *rest])


def _give_qos(lab: Lab) -> None:
    """The partition gets its QOS here: in slurm.conf, slurmctld would not know it at its first start."""
    lab.run(["scontrol", "update", "PartitionName=small", "QOS=small"])


def _bill(lab: Lab) -> None:
    """A GPU costs four units, and a CPU one: a job is billed for whatever is more."""
    for name in (*lab.spec.partitions, "charged"):
        weights = "TRESBillingWeights=CPU=1.0,Mem=0.0,GRES/gpu=4.0"
        lab.run(["scontrol", "update", f"PartitionName={name}", weights])


PROLOG = """#!/bin/sh
mark=$(dirname "$0")/failed.$SLURM_JOB_ID
[ "$SLURM_JOB_PARTITION" = flaky ] && [ ! -e "$mark" ] && touch "$mark" && exit 1
exec {prolog}
"""


def _fail_prologs(lab: Lab) -> None:
    """The first run of each job in the partition ``flaky`` ends there, and its node is drained."""
    conf = lab.slurm_conf.read_text(encoding="utf-8")
    script = lab.paths.spool / "prolog"
    script.write_text(PROLOG.format(prolog=re.findall("(?m)^Prolog=(.*)$", conf)[0]), encoding="utf-8")
    script.chmod(0o755)
    lab.slurm_conf.write_text(re.sub("(?m)^Prolog=.*$", f"Prolog={script}", conf), encoding="utf-8")
    lab.restart()


def _label(lab: Lab) -> None:
    for nodes, feature in (("n[1-2]", "fast"), ("n[3-4]", "slow")):
        words = (f"AvailableFeatures={feature}", f"ActiveFeatures={feature}")
        lab.run(["scontrol", "update", f"NodeName={nodes}", *words])


RESUMED = [(at + 0.1 * number, f"n{number}") for at in range(5, 150, 10) for number in range(1, 5)]
SITES = {
    "plain": Site(
        conf=["Licenses=matlab:2"],
        options=["-L matlab", "-C fast", "--prefer=slow", "-p other", "--nice=50", "-w n2", "-x n1"],
        updates=["Features=slow", "Licenses=matlab:1", "Partition=other"],
        prepare=_label,
    ),
    "partitions": Site(
        conf=[
            "EnforcePartLimits=NO",
            "PartitionName=short Nodes=n[1-4] MaxTime=2 MaxNodes=1 PriorityTier=5 State=UP",
            "PartitionName=half Nodes=n[1-2] MaxCPUsPerNode=32 MaxTime=INFINITE State=UP",
            "PartitionName=wide Nodes=n[1-4] MinNodes=2 MaxTime=INFINITE State=UP",
            "PartitionName=late Nodes=n[3-4] MaxTime=INFINITE State=DOWN",
        ],
        managed=["short", "half", "wide", "late"],
        options=["-p short -t1", "-p gpu,short", "-p half", "-p wide -N2", "-p half,late", "-p late", "-p gpu,wide"],
        updates=["Partition=short", "Partition=half", "Partition=gpu,half", "Partition=gpu", "TimeLimit=1"],
        acts=[
            (20.0, "scontrol update PartitionName=late State=UP"),
            (30.0, "scontrol update PartitionName=short MaxTime=1"),
            (40.0, "scontrol update PartitionName=half State=DRAIN"),
            (50.0, "scontrol update PartitionName=half State=UP"),
            (55.0, "scontrol update PartitionName=short MaxTime=3 MaxNodes=2"),
        ],
    ),
    "accounts": Site(
        conf=[LIMITS, "PriorityWeightQOS=1000", "PartitionName=small Nodes=n[1-4] MaxTime=INFINITE State=UP"],
        rules=[
            "add qos high Priority=1000",
            "add qos one MaxJobsPerUser=1",
            "add qos small MaxTRESPerUser=gres/gpu=2",
            "add qos brief MaxWall=2 MaxSubmitJobsPerUser=4",
            "add qos wide MinTRESPerJob=gres/gpu=2",
            "add account few,grant",
            f"add user {','.join(USERS)} account=few",
            f"add user {','.join(USERS)} account=grant",
            "modify account few set GrpTRES=gres/gpu=4,cpu=24 GrpJobs=3",
            "modify account grant set MaxTRESPerJob=gres/gpu=4 GrpTRESRunMins=gres/gpu=20",
            f"{EVERYBODY} qos+=high,one,brief,wide",
        ],
        managed=["small"],
        options=["-A few", "-A grant", "--qos=high", "--qos=one", "--qos=brief -t1", "--qos=wide", "-p small"],
        updates=["QOS=high", "QOS=one", "Account=few", "Account=grant", "Partition=small", "QOS=normal", "TimeLimit=1"],
        prepare=_give_qos,
        acts=[(35.0, "sacctmgr -i modify qos one set MaxJobsPerUser=2")],
    ),
    "cores": Site(
        conf=[
            "SelectTypeParameters=CR_Core",
            "PartitionName=twice Nodes=n[1-4] OverSubscribe=FORCE:2 MaxTime=INFINITE State=UP",
            "PartitionName=whole Nodes=n[1-4] OverSubscribe=EXCLUSIVE MaxTime=INFINITE State=UP",
            "PartitionName=asked Nodes=n[1-2] OverSubscribe=YES:2 MaxTime=INFINITE State=UP",
        ],
        managed=["twice", "whole", "asked"],
        options=["-p twice", "-p whole", "-p asked", "-p asked -s", "--exclusive", "-s", "-p twice -c24", "-O"],
        updates=["Partition=twice", "Partition=whole", "OverSubscribe=NO", "Partition=gpu"],
    ),
    "topology": Site(
        topology="tree:2x2",
        options=["--switches=1", "--switches=1@0:05", "-N2", "-N2-3", "--contiguous", "-N3", "-N4"],
        updates=["NumNodes=2-2", "Contiguous=yes", "Switches=1"],
    ),
    "preempt": Site(
        conf=[LIMITS, "PreemptType=preempt/qos", "PreemptMode=REQUEUE", "PriorityWeightQOS=1000"],
        rules=[
            "add qos scavenger",
            "add qos gone PreemptMode=cancel",
            "add qos urgent Priority=1000 Preempt=scavenger,gone",
            "modify qos normal set Preempt=scavenger",
            f"{EVERYBODY} qos+=scavenger,urgent,gone",
        ],
        options=["--qos=scavenger --requeue", "--qos=scavenger --requeue", "--qos=urgent", "--qos=gone"],
        updates=["QOS=scavenger", "QOS=urgent", "QOS=normal"],
    ),
    "reservations": Site(
        options=["--reservation=owned", "-w n3", "-N3", "--reservation=drawing", "-t1", "-t3"],
        updates=["ReservationName=owned", "ReservationName=", "TimeLimit=1", "ReqNodeList=n1"],
        prepare=_reserve,
        acts=[
            (
                15.0,
                "scontrol create reservation ReservationName=work StartTime=now+100 Duration=1 Users=root Nodes=n[1-2]"
                " Flags=MAINT,IGNORE_JOBS",
            ),
            (60.0, "scontrol update ReservationName=owned EndTime=now+20"),
            (75.0, "scontrol update ReservationName=drawing EndTime=now+5"),
        ],
    ),
    "het": Site(het=10),
    "university": Site(
        conf=[
            f"{LIMITS},safe",
            "PriorityFlags=MAX_TRES",
            "PriorityCalcPeriod=1",
            "PartitionName=charged Nodes=n[1-4] MaxTime=INFINITE State=UP",
        ],
        rules=[
            "add qos poor GrpTRESMins=billing=60",
            "add qos large MinTRESPerJob=gres/gpu=2 MaxTRESPerUser=billing=24",
            "add qos denied MaxTRESPerJob=gres/gpu=2,cpu=8 Flags=DenyOnLimit",
            "add account course GrpTRESMins=billing=400",
            "modify account course set GrpTRES=billing=20",
            f"add user {','.join(USERS)} account=course",
            f"{EVERYBODY} qos+=poor,large,denied",
        ],
        managed=["charged"],
        options=["-A course", "-A course -p charged", "--qos=poor -t1", "--qos=large", "--qos=denied", "-p charged"],
        updates=["Account=course", "QOS=large", "QOS=denied", "QOS=poor", "TimeLimit=1", "Partition=charged"],
        prepare=_bill,
        acts=[(45.0, "sacctmgr -i modify qos poor set GrpTRESMins=billing=120")],
    ),
    "prologs": Site(
        conf=[
            f"SchedulerParameters={DEFAULT_SCHEDULER_PARAMETERS},nohold_on_prolog_fail",
            "PartitionName=flaky Nodes=n[1-4] MaxTime=INFINITE State=UP",
        ],
        managed=["flaky"],
        options=["-p flaky", "-p flaky --requeue", "", "", ""],
        updates=["Partition=flaky"],
        prepare=_fail_prologs,
        acts=[(at, f"sh -c 'scontrol update NodeName={name} State=RESUME; true'") for at, name in RESUMED],
    ),
    "memory": Site(
        conf=[
            "DefMemPerCPU=1000",
            "PartitionName=percpu Nodes=n[1-4] MaxMemPerCPU=2000 MaxTime=INFINITE State=UP",
            "PartitionName=pernode Nodes=n[1-4] MaxMemPerNode=100000 DefMemPerNode=4000 MaxTime=INFINITE State=UP",
            "PartitionName=pergpu Nodes=n[1-4] DefMemPerGPU=60000 DefCpuPerGPU=6 MaxTime=INFINITE State=UP",
            "PartitionName=least Nodes=n[1-4] LLN=YES MaxTime=INFINITE State=UP",
        ],
        managed=["percpu", "pernode", "pergpu", "least"],
        options=[
            *("-p percpu --mem-per-cpu=5000", "-p percpu --mem=20000", "-p percpu -c2 --mem-per-cpu=3G", "-p least"),
            *("-p pernode --mem=90000", "-p pernode --mem-per-gpu=30000", "-p pernode --mem=0", "-p pernode"),
            *("-p pergpu", "-p pergpu --mem-per-cpu=10000", "-p pergpu --cpus-per-gpu=9", "-p pergpu,least"),
        ],
        updates=["Partition=percpu", "Partition=pergpu", "MinMemoryNode=200000", "MinMemoryCPU=9000", "Partition=gpu"],
        acts=[
            (30.0, "scontrol update PartitionName=pernode State=INACTIVE"),
            (45.0, "scontrol update PartitionName=least AllowQos=none"),
            (55.0, "scontrol update PartitionName=pernode State=UP"),
            (70.0, "scontrol update PartitionName=least AllowQos=ALL"),
        ],
    ),
    "whole": Site(
        conf=[
            LIMITS,
            "PartitionName=small Nodes=n[1-4] MaxTime=INFINITE State=UP",
            "PartitionName=own Nodes=n[1-4] OverSubscribe=EXCLUSIVE MaxTime=INFINITE State=UP",
        ],
        rules=[
            "add qos small MaxTRESPerUser=gres/gpu=6",
            "add qos eight MaxTRESPerUser=gres/gpu=8",
            "add qos group GrpTRES=gres/gpu=4,cpu=80",
            "add qos each MaxTRESPerJob=gres/gpu=4",
            "add qos two MaxTRESPerUser=node=2",
            f"{EVERYBODY} qos+=small,eight,group,each,two",
        ],
        managed=["small", "own"],
        options=[
            *("--exclusive", "--qos=eight --exclusive", "--qos=eight -p own", "--qos=group --exclusive"),
            *("--qos=each --exclusive", "--qos=two --exclusive", "-N2 --qos=eight --exclusive", "-p small --exclusive"),
            *("-n2 --gpus-per-task=1 --exclusive --qos=eight", "-p gpu,small", "-p small,gpu"),
            *("--qos=eight -N1 --gpus-per-node=2", "--qos=small --exclusive"),
        ],
        updates=["QOS=eight", "QOS=normal", "Partition=small,gpu", "Partition=own", "NumNodes=2-2", "TimeLimit=1"],
        prepare=_give_qos,
        acts=[(40.0, "sacctmgr -i modify qos eight set MaxTRESPerUser=gres/gpu=12")],
    ),
    "tasks": Site(
        options=[
            *("-n2 --tres-per-task=gres/gpu:1", "-n3 --tres-per-task=cpu:2,gres/gpu:1", "-n1 -c4 --gres=gpu:2"),
            *("-n2 --gpus-per-task=1 --exclusive", "-N2 -n4 --gpus-per-task=1", "-n4 --gpus-per-task=2 -c3"),
            *("--gpus=4 --ntasks-per-gpu=1", "--gpus=6 --ntasks-per-node=2", "-n2 -c8 --tres-per-task=gres/gpu:2"),
            *("--gpus-per-node=2 -n3", "--gpus=2 --mem-per-gpu=90G", "-N1-3 --gpus=5"),
            *("--gpus=3 --tres-per-task=cpu:4 -n3", "-n3 --gpus=3 -c2 --mem-per-cpu=1G"),
        ],
        updates=["NumTasks=2", "NumCPUs=8", "NumNodes=2-2", "TresPerTask=gres/gpu:1", "NumNodes=1-3"],
    ),
    "blocks": Site(
        topology="block:2",
        options=["-N2", "-N3", "-N4", "-N2 --segment=1", "-N4 --segment=2", "-N2 --segment=2", "-N1-2", "-N2-4"],
        updates=["NumNodes=2-2", "NumNodes=3-3", "ReqNodeList=n3", "NumNodes=1-4"],
    ),
    "types": Site(
        nodes="2x4:h100,2x4:a100",
        options=["--gres=gpu:h100:1", "--gpus=a100:2", "-N1 --gpus-per-node=h100:4", "-N2 --gpus-per-node=a100:2"],
        updates=["TresPerNode=gres:gpu:h100:1", "TresPerNode=gres:gpu:a100:2"],
    ),
}


def site_of(names: Sequence[str]) -> Site:
    """A site with the rules of all these."""
    return reduce(Site.__or__, (SITES[name] for name in names))
