"""Which jobs a policy may preempt by checkpoint and requeue, and which signal asks for the checkpoint.

The owner says so (``--comment=asrpt:interrupt=USR1``), or the admin for a partition or a QOS. Owners may refuse a
partition's default (``asrpt:interrupt=off``), but not that of a QOS, which may be cheaper for it (``UsageFactor``).
"""

from __future__ import annotations

from slurm_asrpt.config.settings import InterruptSettings
from slurm_asrpt.hook.tag import REFUSED, Tag
from slurm_asrpt.slurm.records import JobRecord


class Consent:
    """The signals, with ``B:`` before them if the batch shell gets them."""

    def __init__(self, settings: InterruptSettings) -> None:
        self._partitions, self._qos = settings.partition_signals, settings.qos_signals

    def signal(self, record: JobRecord, tag: Tag | None) -> str:
        """The signal for a job; "" if it may not be preempted."""
        if tag is None:
            return ""
        by_qos = self._qos.get(record.qos, "")
        if tag.interrupt == REFUSED:
            return by_qos
        return tag.interrupt or by_qos or self._of_partitions(record.partition)

    def _of_partitions(self, names: str) -> str:
        """The default of all partitions in which the job may run, if it is the same."""
        found = {self._partitions.get(name, "") for name in names.split(",")}
        return found.pop() if len(found) == 1 else ""
