"""What it costs to preempt a job that asrptd requeues."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PreemptionCosts:
    """Seconds.

    checkpoint_s: from the signal to the end of the run, without progress. requeue_s: until the job is eligible again
    (some seconds until its processes have ended, two more, and asrptd's next cycle, 30 s by default; Slurm by itself
    would wait for 121 s). restart_s: at the start of each later run, without progress.
    """

    checkpoint_s: float = 30.0
    requeue_s: float = 35.0
    restart_s: float = 60.0
