"""Reservations: for a user, magnetic, of cores, for maintenance."""

from __future__ import annotations

from benchmarks.rules.figures import Limit
from benchmarks.rules.scenario import ENFORCE, Scenario, Work, admin, mean_completion
from slurm_asrpt.lab.cluster import Lab


def reserve(lab: Lab, *flags: str) -> None:
    """Reserve half of the nodes for a user."""
    words = "ReservationName=owned StartTime=now Duration=60 Users=asrpt2 Nodes=n[3-4]"
    lab.run(["scontrol", "create", "reservation", *words.split(), *flags])


def reserve_magnetic(lab: Lab) -> None:
    """The same, in a reservation that draws the user's jobs."""
    reserve(lab, "Flags=MAGNETIC")


def _reserve_cores(lab: Lab) -> None:
    """Three quarters of the cores of two nodes, but none of their GPUs, are for a class."""
    words = "ReservationName=class StartTime=now Duration=60 Users=asrpt2 Nodes=n[1-2] CoreCnt=48,48"
    lab.run(["scontrol", "create", "reservation", *words.split()])


_RESERVE_ALL = (
    "scontrol create reservation ReservationName=maintenance StartTime=now+150 Duration=00:01:00 Users=root Nodes=ALL"
    " Flags=MAINT"
)


SCENARIOS = [
    Scenario(
        "reservation",
        "a reservation on half of the nodes: 48 jobs of its user that name it, 16 that do not, 48 of others",
        140,
        [
            Work("named", "asrpt2", 48, 16, 2, options="--reservation=owned", fixed=True),
            Work("outside", "asrpt2", 16, 16, 2, fixed=True),
            Work("others", "asrpt1", 48, 16, 2, fixed=True),
        ],
        prepare=reserve,
        limits=[Limit(("named",), 16), Limit(("others", "outside"), 16)],
    ),
    Scenario(
        "magnetic",
        "a magnetic reservation on half of the nodes; its owner's jobs behind a queue of others",
        90,
        [
            Work("others", "asrpt1", 64, 10, 2, fixed=True),
            Work("owner", "asrpt2", 16, 10, 2, at_s=10, fixed=True),
        ],
        prepare=reserve_magnetic,
        limits=[Limit(("others",), 16)],
        measured=["owner"],
    ),
    Scenario(
        "core_reservation",
        "48 of 64 cores of two nodes are reserved for a class; jobs with four cores for each GPU",
        150,
        [
            Work("one", "asrpt1", 90, 10, 1, 0, 1, options="-N1 -n1 -c4"),
            Work("two", "asrpt3", 40, 12, 2, 0.5, 2, options="-N1 -n2 -c4"),
            Work("node", "asrpt4", 6, 12, 8, 1, 12, ask="-N1 --gpus-per-node=8 -n8 -c4"),
            Work("class", "asrpt2", 30, 6, 0, 5, 3, ask="-n1 -c8 --reservation=class"),
        ],
        prepare=_reserve_cores,
        measured=["one", "two", "node"],
        measure=mean_completion,
    ),
    Scenario(
        "maintenance",
        "all nodes are maintained for half a minute, 150 s from now: jobs with limits of 1, 2 and 3 minutes",
        230,
        [
            Work("one", "asrpt1", 70, 10, 1, 0, 2, options="--time=1"),
            Work("two", "asrpt2", 40, 12, 2, 0.5, 3.5, options="-N1 --time=2"),
            Work("long", "asrpt3", 20, 15, 4, 1, 7, options="-N1 --time=3"),
            Work("node", "asrpt4", 12, 12, 8, 2, 11, ask="-N1 --gpus-per-node=8", options="--time=1"),
            Work("wide", "asrpt4", 5, 12, 16, 3, 30, ask="-N2 --gpus-per-node=8", options="--time=2"),
        ],
        acts=[
            (1.0, admin(_RESERVE_ALL)),
            (185.0, admin("scontrol delete reservation=maintenance")),
        ],
        measure=mean_completion,
    ),
    Scenario(
        "time_min",
        "all nodes are maintained 150 s from now: jobs with --time=30, most of them with --time-min=1",
        230,
        [
            Work("one", "asrpt1", 60, 10, 1, 0, 2, options="--time=30 --time-min=1"),
            Work("two", "asrpt2", 40, 12, 2, 0.5, 3.5, options="-N1 --time=30 --time-min=1"),
            Work("node", "asrpt3", 8, 12, 8, 2, 14, ask="-N1 --gpus-per-node=8", options="--time=30 --time-min=1"),
            Work("long", "asrpt4", 12, 12, 2, 1, 7, options="-N1 --time=30"),
        ],
        acts=[
            (1.0, admin(_RESERVE_ALL)),
            (185.0, admin("scontrol delete reservation=maintenance")),
        ],
        measure=mean_completion,
        modes=(ENFORCE,),
    ),
]
