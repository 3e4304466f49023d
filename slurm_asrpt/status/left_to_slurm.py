"""Why asrptd leaves a job to Slurm, as text: asrpt-status starts without the code that finds it out."""

from __future__ import annotations

LEFT_WORDS = {
    "interactive": "an interactive job",
    "het": "a heterogeneous job",
    "federation": "it belongs to a federation, in which any cluster may start it",
    "held": "its owner holds it",
    "array": "a job array",
    "nodelist": "some nodes of its -w are not managed, or they cannot hold it",
    "exclude": "its owner excluded nodes (-x)",
    "exclusive": "it shares its nodes with some jobs only (--exclusive=user)",
    "reservation": "it runs in a reservation",
    "features": "its -C counts nodes, or too few nodes have these features",
    "contiguous": "it asks for contiguous nodes",
    "switches": "it asks for a number of switches",
    "gres": "it asks for shared GPUs, several GPU types, or MIG instances",
    "mixed": "only nodes with several GPU types or MIG instances could hold it",
    "deadline": "it has a deadline (--deadline)",
    "expand": "it gives its nodes to another job (--dependency=expand)",
    "preempts": "its QOS or partition may preempt other jobs",
    "socket": "it asks for GPUs per socket",
    "nogpu": "it asks for no GPUs",
    "shape": "its form of GPU request is not managed",
    "partition": "its partition is not managed",
    "off": "its owner set asrpt:off",
    "untagged": "the hook has not tagged it",
    "shadow": "asrptd only observes (mode shadow)",
}

LEFT_CHANGES = {
    "interactive": "use sbatch instead of salloc or srun",
    "het": "submit one job per component",
    "federation": "submit it where the cluster is in no federation",
    "nodelist": "submit it without -w, or with enough nodes in -w",
    "exclude": "submit it without -x",
    "exclusive": "submit it with plain --exclusive, or without",
    "reservation": "submit it without --reservation",
    "features": "submit it without -C, or with plain features, & and |, or [a|b]",
    "contiguous": "submit it without --contiguous",
    "switches": "submit it without --switches",
    "gres": "request whole GPUs of one type",
    "deadline": "submit it without --deadline",
    "socket": "request GPUs with --gpus or --gpus-per-task",
    "shape": "request GPUs with --gpus or --gpus-per-task",
    "off": "submit it without asrpt:off in --comment",
    "untagged": "resubmit it; if that does not help, an admin should run asrpt-admin doctor",
    "held": "release it (scontrol release)",
}
"""What the owner can do so that asrptd schedules such a job. Some kinds have no entry."""
