"""The first job in a queue whose time limit is short enough, found without a look at the others."""

from __future__ import annotations

from slurm_asrpt.core.job import JobId

_INF = float("inf")


class LimitTree:
    """Waiting jobs of one shape in queue order; finds the first job with a time limit within a bound in O(log n).

    A segment tree of minima over the queue: leaves are time limits in seconds, inf for a job that has left.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[int, JobId]] = []  # (place in the queue, job), ascending
        self._at: dict[JobId, int] = {}
        self._leaves = 1
        self._tree = [_INF, _INF]

    def __len__(self) -> int:
        return len(self._at)

    def add(self, seat: int, job_id: JobId, limit: float) -> None:
        """O(log n) at the end of the queue, O(n) elsewhere."""
        if len(self._rows) == self._leaves or (self._rows and seat < self._rows[-1][0]):
            self._rebuild((seat, job_id, limit))
            return
        self._at[job_id] = len(self._rows)
        self._rows.append((seat, job_id))
        self._set(self._at[job_id], limit)

    def remove(self, job_id: JobId) -> None:
        position = self._at.pop(job_id, None)
        if position is not None:
            self._set(position, _INF)

    def first(self, bound: float) -> tuple[int, JobId] | None:
        """The first job whose limit is at most ``bound``, with its place in the queue."""
        node, tree = 1, self._tree
        if tree[node] > bound:
            return None
        while node < self._leaves:
            node *= 2
            if tree[node] > bound:
                node += 1
        return self._rows[node - self._leaves]

    def _set(self, position: int, limit: float) -> None:
        node, tree = position + self._leaves, self._tree
        tree[node] = limit
        while node > 1:
            node >>= 1
            left, right = tree[2 * node], tree[2 * node + 1]
            least = left if left < right else right
            if tree[node] == least:
                return
            tree[node] = least

    def _rebuild(self, new: tuple[int, JobId, float]) -> None:
        rows = [(*self._rows[at], self._tree[at + self._leaves]) for at in self._at.values()]
        rows = sorted([*rows, new])
        self._leaves = 2 << len(rows).bit_length()  # half of them free, to make rebuilds rare
        self._rows = [row[:2] for row in rows]
        self._at = {job_id: at for at, (_, job_id) in enumerate(self._rows)}
        limits = [limit for _, _, limit in rows]
        self._tree = [_INF] * self._leaves + limits + [_INF] * (self._leaves - len(limits))
        for node in range(self._leaves - 1, 0, -1):
            self._tree[node] = min(self._tree[2 * node], self._tree[2 * node + 1])
