"""What the history tells about the communication of jobs without a profile, and the file in which a model keeps it.

``communication.txt``: the SHA-256 of the rest on the first line, then a JSON object of beliefs by key
(``predict.sensitivity``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.sensitivity import slowest_server_s
from slurm_asrpt.history.store import COMPLETED, History
from slurm_asrpt.predict.sensitivity import KEPT, Belief, Beliefs, Sensitivity, Timed, keys_of

LEAST_S, LEAST_ITERATIONS = 60, 10
"""Of shorter runs, starting and loading are too large a part."""


_COLUMNS = "group_id, program, uid, gpus, features, end_time - start_time, iteration_s, speed, link_s, state"
_TEACHES = "link_s > 0 AND iterations_of = '' AND length(group_id) = 16 AND end_time - start_time >= ?"


def learn(history: History, fabric: Fabric) -> Beliefs:
    """The beliefs after all runs of the history. Raises HistoryError."""
    sensitivity = Sensitivity(slowest_server_s(fabric))
    for run in timed_runs(history):
        sensitivity.learn(run)
    return sensitivity.beliefs()


def timed_runs(history: History) -> Iterator[Timed]:
    """What the history tells about jobs without a profile, in the order of their ends. Raises HistoryError."""
    query = f"SELECT {_COLUMNS} FROM runs WHERE {_TEACHES} ORDER BY end_time, job_id, start_time"  # noqa: S608 constants
    return filter(None, (_timed(*row) for row in history.select(query, (LEAST_S,))))


def _timed(
    group: str,
    program: str,
    uid: int,
    gpus: int,
    features: str,
    elapsed: int,
    iteration_s: float,
    speed: float,
    link_s: float,
    state: str,
) -> Timed | None:
    """A run as evidence. Runtimes only of runs that completed: the others did not do all their work."""
    reported = 0 < iteration_s * LEAST_ITERATIONS <= elapsed
    if not (reported or state == COMPLETED):
        return None
    seconds = (iteration_s if reported else elapsed) * (speed or 1.0)
    return Timed(*keys_for(group, program, uid), (gpus, features), seconds, link_s, reported)


@dataclass(frozen=True, slots=True)
class Placed:
    """The runs of a group with as many GPUs on so many nodes, under so many switches (0: unknown).

    slower: how many times as long they took as those in the closest placement of runs alike; a geometric mean.
    """

    nodes: int
    switches: int
    runs: int
    slower: float


def placed_runs(history: History, group: str, uid: int, gpus: int) -> list[Placed]:
    """What runs of a group took in each kind of placement, the closest first. Raises HistoryError."""
    query = (
        f"SELECT nodes, switches, {_COLUMNS} FROM runs WHERE {_TEACHES} AND group_id = ? AND uid = ? "  # noqa: S608
        "AND gpus = ? ORDER BY end_time DESC LIMIT ?"
    )
    found = list[tuple[int, int, Timed]]()
    for nodes, switches, *row in history.select(query, (LEAST_S, group, uid, gpus, KEPT)):
        run = _timed(*row)
        if run is not None:
            found.append((len(json.loads(nodes)), switches, run))
    cells = dict[object, list[Timed]]()
    for _, _, run in found:
        cells.setdefault((run.reported, run.alike), []).append(run)
    base = {cell: _closest(runs) for cell, runs in cells.items()}
    ratios = dict[tuple[int, int], list[tuple[float, float]]]()
    for nodes, switches, run in found:
        ratio = float(np.log(run.seconds) - base[run.reported, run.alike])
        ratios.setdefault((nodes, switches), []).append((run.link_s, ratio))
    rows = sorted(ratios.items(), key=lambda row: min(row[1]))
    return [Placed(*key, len(runs), float(np.exp(np.mean([off for _, off in runs])))) for key, runs in rows]


def _closest(runs: Sequence[Timed]) -> float:
    """The mean logarithm of the time in the closest placement of these runs."""
    least = min(run.link_s for run in runs)
    return float(np.mean([np.log(run.seconds) for run in runs if run.link_s <= least]))


def keys_for(group: str, program: str, uid: int) -> tuple[str, str, str]:
    """The keys of a job's group, program ("" for none) and user."""
    return f"{uid} {group}", f"{uid} {program}" if program else "", str(uid)


def to_rates(beliefs: Beliefs) -> dict[str, float]:
    """r by a hash of the key, for everybody: each can look up their own jobs, and nobody sees whose the others are."""
    return {_hidden(key): found.rate for key, found in beliefs.known.items()}


def rate_in(rates: Mapping[str, float], group: str, program: str, uid: int) -> float:
    """r of a job, as ``Beliefs.of`` finds it; 0 for none."""
    keys = keys_of(*keys_for(group, program, uid))
    return next((found for key in keys if (found := rates.get(_hidden(key))) is not None), 0.0)


def _hidden(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def to_bytes(beliefs: Beliefs) -> bytes:
    """The beliefs that make a difference, with their checksum."""
    known = beliefs.known
    wide = any(found.rate for key, found in known.items() if not key.startswith("group "))
    rows = {key: astuple(found) for key, found in known.items() if found.rate or wide}
    text = json.dumps(rows, sort_keys=True).encode()
    return hashlib.sha256(text).hexdigest().encode() + b"\n" + text + b"\n"


def from_bytes(data: bytes) -> Beliefs:
    """Raises ValueError unless these are the bytes of beliefs."""
    said, _, text = data.rstrip(b"\n").partition(b"\n")
    if hashlib.sha256(text).hexdigest().encode() != said:
        raise ValueError("its checksum does not match")
    rows: Mapping[str, Any] = json.loads(text)
    return Beliefs({key: _BELIEF.validate_python(dict(zip(_FIELDS, row, strict=True))) for key, row in rows.items()})


_FIELDS = tuple(each.name for each in fields(Belief))
_BELIEF = TypeAdapter(Belief)
