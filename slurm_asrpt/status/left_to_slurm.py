"""Why we leave a job to Slurm, in words: apart from what finds it out, so that asrpt-status starts in less time."""

from __future__ import annotations

LEFT_WORDS = {
    "interactive": "an interactive job",
    "het": "a heterogeneous job",
    "held": "its owner holds it",
    "array": "a job array",
    "nodelist": "the nodes of its -w are not all managed, or do not hold it",
    "exclude": "its owner excluded nodes (-x)",
    "exclusive": "it shares its nodes with some jobs only (--exclusive=user)",
    "reservation": "it runs in a reservation",
    "features": "its -C counts nodes, or too few nodes have those features",
    "contiguous": "it asks for contiguous nodes",
    "switches": "it asks for a number of switches",
    "gres": "it asks for shared or several kinds of GPUs, or MIG instances",
    "mixed": "only with nodes of several kinds of GPUs, or MIG instances, could it be served",
    "deadline": "it has a deadline (--deadline)",
    "expand": "it gives its nodes to another job (--dependency=expand)",
    "preempts": "its QOS or partition may preempt other jobs",
    "socket": "it asks for GPUs per socket",
    "nogpu": "it asks for no GPU",
    "shape": "its GPU request has a form that is not managed yet",
    "partition": "its partition is not managed",
    "off": "its owner asked for asrpt:off",
    "untagged": "the hook has not tagged it",
    "shadow": "the daemon only watches (mode shadow)",
}

LEFT_CHANGES = {
    "interactive": "sbatch in place of salloc or srun",
    "het": "one job for each of its parts",
    "nodelist": "submit it without -w, or with as many nodes there as it needs",
    "exclude": "submit it without -x",
    "exclusive": "submit it with plain --exclusive, or without",
    "reservation": "submit it without --reservation",
    "features": "submit it without -C, or with plain features, & and |, or [a|b]",
    "contiguous": "submit it without --contiguous",
    "switches": "submit it without --switches",
    "gres": "ask for whole GPUs of one kind",
    "deadline": "submit it without --deadline",
    "socket": "ask for GPUs with --gpus or --gpus-per-task",
    "shape": "ask for GPUs with --gpus or --gpus-per-task",
    "off": "submit it without asrpt:off in --comment",
    "untagged": "submit it anew; if that does not help, an admin runs asrpt-admin doctor",
    "held": "release it (scontrol release)",
}
"""What its owner could do so that asrptd schedules such a job; nothing where there is no word."""
