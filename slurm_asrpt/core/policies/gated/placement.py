"""Where a job of asrpt-gated may start: on the fewest servers, within the gate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from slurm_asrpt.core.cluster import Fabric, Node, Placement
from slurm_asrpt.core.job import Job, JobProfile
from slurm_asrpt.core.placement.mapping import placement_on
from slurm_asrpt.core.placement.selection import Strategy, offers, place, undivided_servers
from slurm_asrpt.core.policies.gated.gpu_types import Choice
from slurm_asrpt.core.policies.gated.servers import Servers, bits
from slurm_asrpt.core.policies.nic_contention import NicContention

_SINGLES = 65536
_INF = float("inf")


class Placer:
    """Finds placements. nodes: in node-table order. gate: the largest α/α̃^min. contention: None if disabled."""

    def __init__(self, nodes: Sequence[Node], fabric: Fabric, gate: float, contention: NicContention | None) -> None:
        self._nodes, self._fabric, self._gate, self._contention = nodes, fabric, gate, contention
        self._singles: dict[tuple[JobProfile, int], Placement] = {}  # placements on one server of a group of equal size
        self._by_weight = _by_weight(nodes)

    def find(
        self, job: Job, choice: Choice, servers: Servers, allowed: int, end: float, protected: int
    ) -> Placement | None:
        """The placement on the ``allowed`` servers of a choice, given the predicted end; None if it cannot start there.

        protected: the servers of which the job must not delay the time at which they will be free, as a mask. As in
        Slurm, servers of a larger weight are tried only if those of less do not suffice.
        """
        allowed &= choice.group.mask
        if len(self._by_weight) <= 1:
            return self._find(job, choice, servers, allowed, end, protected)
        tried = 0
        for light in self._by_weight:
            among = allowed & light
            if among != tried:
                found = self._find(job, choice, servers, among, end, protected)
                if found is not None:
                    return found
            tried = among
        return None

    def _find(
        self, job: Job, choice: Choice, servers: Servers, allowed: int, end: float, protected: int
    ) -> Placement | None:
        if choice.group.size and servers.plain(job):
            return self._packed(job, choice, servers, allowed, end, protected)
        allowed = servers.free_later(allowed, end, protected)
        return self.general(job, choice, servers, self._nearest(job, choice, servers, allowed, end), self._gate)

    def on_first(self, job: Job, choice: Choice, servers: Servers, among: Sequence[int]) -> Placement | None:
        """The placement on the first of these servers that suffice. among: the bits of the servers, the best first."""
        low, high, found = 0, choice.group.free_times.needs(job).servers, None
        while found is None and low < len(among):  # more and more servers, then fewer again
            high = min(high, len(among))
            found = self.general(job, choice, servers, sum(among[:high]), self._gate)
            low, high = (high, 2 * high) if found is None else (low, high)
        while found is not None and low + 1 < high:
            middle = (low + high) // 2
            fewer = self.general(job, choice, servers, sum(among[:middle]), self._gate)
            found, low, high = (found, middle, high) if fewer is None else (fewer, low, middle)
        return found

    def wider(self, job: Job, servers: Servers, found: Placement) -> Placement:
        """``found``, or, with contention, a faster placement on more servers."""
        if self._contention is None or len(found.gpus) == 1:
            return found
        return self._contention.wider(servers.view, job, found)

    def scattered(self, job: Job, choice: Choice, servers: Servers, allowed: int) -> Placement | None:
        """The placement on the fewest ``allowed`` servers of a choice that have room for the job now."""
        narrowed = self._narrowed(job, allowed & choice.group.mask & ~servers.masks[0])
        found = place(servers.view, narrowed, Strategy.TIGHTEST, self._fabric)
        return self._within_gate(self._gate, job, choice, found) if found is not None else None

    def _packed(
        self, job: Job, choice: Choice, servers: Servers, allowed: int, end: float, protected: int
    ) -> Placement | None:
        """A plain request on servers of equal size: one server, or whole servers and one for the remainder.

        Or, if there is a remainder, parts of as many servers.
        """
        size = choice.group.size
        if job.gpus <= size:
            at = servers.nearest(job.gpus, size, allowed, end, protected)
            return None if at is None else self._on_one(at, job.profile)
        enough = (servers.masks[size] & allowed).bit_count() >= job.gpus // size
        if not enough and not job.gpus % size:
            return None
        allowed = servers.free_later(allowed, end, protected)
        found = self._on_whole(job, choice, servers, allowed) if enough else None
        if found is None and job.gpus % size:
            found = self.general(job, choice, servers, allowed, self._gate)
        return found

    def _on_whole(self, job: Job, choice: Choice, servers: Servers, allowed: int) -> Placement | None:
        size = choice.group.size
        whole, rest = divmod(job.gpus, size)
        for among in self._unused_nics_first(servers, allowed):
            for together in servers.by_switches(whole, rest, size, among):
                chosen = servers.several(whole, rest, size, together)
                if chosen is not None:
                    found = placement_on([self._nodes[at] for at in chosen[0]], chosen[1], job.profile, self._fabric)
                    passed = self._within_gate(self._gate, job, choice, found)
                    if passed is not None:
                        return passed
        return None

    def _unused_nics_first(self, servers: Servers, among: int) -> Iterator[int]:
        """The masks to search for several servers: first those whose NIC is not in use."""
        servers_in_use = 0 if self._contention is None else self._contention.servers_in_use(servers.view) & among
        yield from (among & ~servers_in_use, among) if servers_in_use else (among,)

    def _within_gate(self, gate: float, job: Job, choice: Choice, found: Placement) -> Placement | None:
        """The placement with its actual alpha, if alpha and the slowdown of its neighbors are within the gate."""
        if self._contention is not None:
            found = self._contention.shared(found, job.profile)
            if gate < _INF and self._contention.slowdown_of_neighbors(found) > gate:
                return None
        return found if found.alpha <= gate * (choice.best or found.alpha) else None

    def _on_one(self, at: int, profile: JobProfile) -> Placement:
        """The placement on one server, cached by profile and server: most jobs run on one server."""
        found = self._singles.get((profile, at))
        if found is None:
            if len(self._singles) >= _SINGLES:
                self._singles.clear()
            found = placement_on([self._nodes[at]], (profile.gpus,), profile, self._fabric)
            self._singles[profile, at] = found
        return found

    def _nearest(self, job: Job, choice: Choice, servers: Servers, allowed: int, end: float) -> int:
        """The server that a plain request would get, as a mask, if one of equal servers suffices; else ``allowed``."""
        size = choice.group.size
        if not size or choice.group.free_times.needs(job).servers > 1:
            return allowed
        view, undivided = servers.view, undivided_servers(servers.view, job, self._fabric)
        able = [node.name for node, usable in offers(view, job.request) if usable >= job.gpus]
        for names in (undivided, able):
            among = sum([view.bits[name] for name in names]) & allowed
            at = servers.nearest(job.gpus, size, among, end, protected=0) if among else None
            if at is not None:
                return 1 << at
        return 0

    def general(self, job: Job, choice: Choice, servers: Servers, allowed: int, gate: float) -> Placement | None:
        """The placement of any request on any servers: on the fewest servers that could hold it, within the gate."""
        most = choice.group.free_times.needs(job).servers
        if servers.switches is not None:  # else a switch might be preferred on which the job needs more servers
            few_nodes = min(most, job.request.max_nodes or most)
            job = replace(job, request=replace(job.request, max_nodes=few_nodes))
        for among in self._unused_nics_first(servers, allowed & ~servers.masks[0]):
            narrowed = self._narrowed(job, among)
            for strategy in (Strategy.TIGHTEST, Strategy.MOST_FREE):
                found = place(servers.view, narrowed, strategy, self._fabric)
                few = found is not None and len(found.gpus) <= most
                passed = self._within_gate(gate, job, choice, found) if found is not None and few else None
                if passed is not None:
                    return passed
        return None

    def _narrowed(self, job: Job, among: int) -> Job:
        """The job, on no other servers than these."""
        names, wanted = frozenset([self._nodes[at].name for at in bits(among)]), job.request.candidates
        return replace(job, request=replace(job.request, candidates=names if wanted is None else names & wanted))


def _by_weight(nodes: Sequence[Node]) -> list[int]:
    """The servers up to each weight, as masks, the least weight first; all servers if their weights are equal."""
    weights = [node.weight for node in nodes]
    return [sum(1 << at for at, own in enumerate(weights) if own <= weight) for weight in sorted(set(weights))]
