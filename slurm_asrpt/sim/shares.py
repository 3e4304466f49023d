"""Who wins and who loses: the jobs of each user, account and size under Slurm and under a policy; and the headline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.text import counted, span

CHANGE = 0.05
"""Smaller relative changes of the mean completion time count as "same"."""
LATER_S = 60.0
"""A job that starts less than this later than under Slurm counts as started when it did."""
GROUPS = ("user", "account", "size")


@dataclass(frozen=True)
class Share:
    """The jobs of one user, account or size. Times are means in seconds, under Slurm as it was and under the policy.

    ratio: of the completion times. later: share of jobs that would have started more than a minute later.
    """

    name: str
    jobs: int
    gpu_hours: float
    real_wait_s: float
    wait_s: float
    ratio: float
    later: float

    @property
    def verdict(self) -> str:
        return "wins" if self.ratio < 1 - CHANGE else "loses" if self.ratio > 1 + CHANGE else "same"


def compared(jobs: pd.DataFrame, wait: NDArray[np.float64], ran: NDArray[np.float64]) -> pd.DataFrame:
    """A row for each job whose wait is known under Slurm and in the simulation.

    jobs: columns of a trace. wait, ran: in the simulation, seconds, shape (jobs,); nan for a job that never started.
    """
    gpus, real = jobs["gpus"].to_numpy(), jobs["wait_s"].to_numpy()
    duration = jobs["duration_s"].to_numpy()
    frame = pd.DataFrame(
        {
            "user": jobs["user"].to_numpy(),
            "account": jobs["account"].to_numpy() if "account" in jobs else "",
            "size": np.ceil(np.log2(gpus)).astype(int),
            "gpu_s": gpus * duration,
            "real": real,
            "wait": wait,
            "done": wait + ran,
            "really_done": real + duration,
        }
    )
    return frame[frame["real"].notna() & frame["wait"].notna()]


def shares(frame: pd.DataFrame, column: str) -> list[Share]:
    """The shares by user or account, the largest gain first; or by size, the smallest first. column: of GROUPS."""
    found = list(_shares(frame[frame[column] != ""], column))
    return found if column == "size" else sorted(found, key=lambda share: (share.ratio, share.name))


def _shares(frame: pd.DataFrame, column: str) -> Iterator[Share]:
    for name, jobs in frame.groupby(column, sort=True):
        yield Share(
            name=_size(int(str(name))) if column == "size" else str(name),
            jobs=len(jobs),
            gpu_hours=float(jobs["gpu_s"].sum()) / 3600,
            real_wait_s=float(jobs["real"].mean()),
            wait_s=float(jobs["wait"].mean()),
            ratio=float(jobs["done"].sum() / jobs["really_done"].sum()),
            later=float((jobs["wait"] > jobs["real"] + LATER_S).mean()),
        )


def _size(power: int) -> str:
    """``1 GPU``, ``2 GPUs``, ``3-4 GPUs``, ``5-8 GPUs``."""
    if power == 0:
        return "1 GPU"
    least, most = 2 ** (power - 1) + 1, 2**power
    return f"{least}-{most} GPUs" if least < most else f"{most} GPUs"


def headline(
    frame: pd.DataFrame, users: Sequence[Share], sizes: Sequence[Share], policy: str, simulated_s: float | None = None
) -> str:
    """The comparison in one sentence. frame: of ``compared``; users, sizes: shares by user and by size.

    simulated_s: the average wait under Slurm if it is simulated as the policy is; None if it was not.
    """
    if frame.empty:
        return "No job has a known wait under Slurm and in the simulation."
    waits = f"{span(float(frame['real'].mean()))} → {span(float(frame['wait'].mean()))}"
    later = float((frame["wait"] > frame["real"] + LATER_S).mean())
    alike = "" if simulated_s is None else f", against {span(simulated_s)} under Slurm in the same simulation"
    return (
        f"Average wait {waits} under {policy}{alike}; {later:.0%} of jobs would have started more than a minute later; "
        f"{_who_waits_longer(users)}{_longer_sizes(sizes)}."
    )


def _longer(found: Sequence[Share]) -> list[Share]:
    return [share for share in found if share.wait_s > (1 + CHANGE) * share.real_wait_s + LATER_S]


def _longer_sizes(sizes: Sequence[Share]) -> str:
    """The sizes whose jobs wait longer on average; "" if there are none."""
    told = [f"{size.name} ({span(size.real_wait_s)} → {span(size.wait_s)})" for size in _longer(sizes)]
    return f"; jobs on {', '.join(told)} wait longer" if told else ""


def _who_waits_longer(users: Sequence[Share]) -> str:
    worse = _longer(users)
    if not worse:
        return f"no user waits more than {CHANGE:.0%} and a minute longer on average{_who_loses(users)}"
    worst = max(worse, key=lambda user: user.wait_s - user.real_wait_s)
    times = f"{span(worst.real_wait_s)} → {span(worst.wait_s)}"
    return f"{len(worse)} of {counted(len(users), 'user')} wait longer on average (the most: {worst.name}, {times})"


def _who_loses(users: Sequence[Share]) -> str:
    """Who completes later all the same, as the table below says of short jobs; "" if nobody does."""
    losing = [user for user in users if user.verdict == "loses"]
    if not losing:
        return ""
    worst = max(losing, key=lambda user: user.ratio)
    others = f" and {counted(len(losing) - 1, 'other')}" if len(losing) > 1 else ""
    return f", but the jobs of {worst.name}{others} complete more than {CHANGE:.0%} later (ratio {worst.ratio:.2f})"


def values(groups: dict[str, list[Share]]) -> dict[str, list[dict[str, Any]]]:
    """Shares as JSON values, by group: ``users``, ``accounts``, ``sizes``."""
    return {
        f"{group}s": [{**vars(share), "verdict": share.verdict} for share in found] for group, found in groups.items()
    }
