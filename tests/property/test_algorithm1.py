"""`asrpt` has exactly the starts and ends of a second implementation of Algorithm 1 (tests/reference/algorithm1.py)."""

from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import JobProfile, Stage
from slurm_asrpt.core.policies import make_policy
from slurm_asrpt.sim.engine import simulate
from slurm_asrpt.sim.job_table import JobTable
from tests.examples import examples
from tests.reference import algorithm1


def data_parallel(gpus, compute, ring):
    return (algorithm1.Stage(gpus, compute, 0, ring),)


PLAIN = [data_parallel(*kind) for kind in ((1, 1, 0), (2, 1, 0), (3, 2, 0), (4, 1, 0))]
HEAVY = [
    data_parallel(*kind) for kind in ((1, 1, 0), (1, 2, 0), (2, 1, 4), (2, 1, 16), (2, 5, 4), (3, 1, 1), (4, 2, 8))
]
"""For servers of two GPUs. (2, 5, 4) is communication-heavy by a hair: α_max/α_min is exactly 1.5."""
HOUR = 840
"""Can be divided by any number of GPUs of a server."""
PIPELINES = [
    data_parallel(1, HOUR, 0),
    data_parallel(3, HOUR, HOUR),
    data_parallel(8, HOUR, 4 * HOUR),
    data_parallel(4, 2 * HOUR, HOUR),
    data_parallel(2, 5 * HOUR, 4 * HOUR),
    *[
        tuple(algorithm1.Stage(*stage) for stage in stages)
        for stages in (
            ((8, HOUR, 4 * HOUR, 2 * HOUR), (4, HOUR, 0, HOUR)),
            ((2, HOUR, HOUR, HOUR), (1, HOUR, HOUR), (1, 2 * HOUR)),
            ((1, HOUR, 2 * HOUR), (2, 2 * HOUR, 8 * HOUR, HOUR), (2, HOUR, HOUR, 3 * HOUR), (1, HOUR)),
            ((4, HOUR, HOUR // 4, 0), (4, HOUR, 0, HOUR // 4)),
            ((4, HOUR, 4 * HOUR, 3 * HOUR), (1, HOUR)),  # a vertex of light edges has most bytes into the set
            ((2, HOUR, 8 * HOUR, 0), (2, HOUR, 2 * HOUR, 0), (2, HOUR, 0, 0)),
        )
    ],
]
"""For servers of eight GPUs."""


def fabric_of(size):
    return Fabric(inter=float(size), intra=float(algorithm1.INTRA))  # a GPU's share of the NIC: 1 byte/s


def job_profile(stages):
    """The same job for both. Floats represent its values exactly, so results can be compared for equality."""
    links = [0, *(stage.link for stage in stages)]
    made = []
    for before, stage in zip(links, stages, strict=False):
        k = stage.replicas
        h = stage.ring * k / (2 * (k - 1)) if k > 1 else 0.0
        made.append(Stage(k, float(stage.compute), 0.0, before / k, stage.link / k, h))
    return JobProfile("+".join(str(stage.replicas) for stage in stages), tuple(made))


def both(rows, kinds, servers, size, tau, delay):
    """Starts and ends of each job from the simulator, and from the reference implementation."""
    profiles = tuple(job_profile(stages) for stages in kinds)
    fabric = fabric_of(size)
    submit, kind, true, predicted = (np.array(column) for column in zip(*rows, strict=True))
    table = JobTable(profiles, submit.astype(float), kind, true.astype(float), predicted.astype(float))
    policy = make_policy("asrpt", fabric=fabric, tau=float(tau), delay=delay)
    result = simulate(policy, [Node(f"n{i}", size, i) for i in range(servers)], table)
    jobs = [algorithm1.Job(at, kinds[number], n, guess) for at, number, n, guess in rows]
    algorithm1.run(jobs, servers, size, Fraction(tau), aside=delay == "aside")
    event(f"a delay: {any(job.kappa is not None for job in jobs)}")
    event(f"one that ended early: {any(job.kappa is not None and job.start < job.deadline for job in jobs)}")
    return list(zip(result.start, result.end, strict=True)), [(job.start, job.end) for job in jobs]


@st.composite
def instances(draw, kinds, shapes, perfect=False, unit=1):
    """(rows of submit, kind, n, ñ; servers; GPUs of a server). The total of GPUs is a power of two: exact in floats.

    unit: of submission times, seconds. Drawn evenly, so that the cluster is full and jobs are delayed.
    """
    servers, size = draw(st.sampled_from(shapes))
    random = Random(draw(st.integers(0, 10**9)))
    jobs = draw(st.integers(1 if perfect else 6, 14))
    rows = sorted(
        (unit * random.randint(0, 12), random.randrange(len(kinds)), random.randint(1, 12), random.randint(0, 12))
        for _ in range(jobs)
    )
    return [(at, kind, n, n if perfect else guess) for at, kind, n, guess in rows], servers, size


@settings(max_examples=examples(300), deadline=None)
@given(instances(PLAIN, [(4, 1), (2, 2), (4, 2)], perfect=True))
def test_perfect_prediction_and_no_placement_effects(instance):
    product, by_hand = both(instance[0], PLAIN, *instance[1:], tau=1, delay="block")
    assert product == by_hand


@pytest.mark.parametrize("delay", ["block", "aside"])
@settings(max_examples=examples(300), deadline=None)
@given(instances(HEAVY, [(2, 2), (4, 2)]), st.sampled_from([Fraction(0), Fraction(1, 2), Fraction(1), Fraction(4)]))
def test_placement_effects_wrong_predictions_and_delays(delay, instance, tau):
    product, by_hand = both(instance[0], HEAVY, *instance[1:], tau, delay)
    assert product == by_hand


@pytest.mark.parametrize("delay", ["block", "aside"])
@settings(max_examples=examples(150), deadline=None)
@given(
    instances(PIPELINES, [(2, 8), (4, 8), (4, 4)], unit=HOUR),
    st.sampled_from([Fraction(0), Fraction(1, 2), Fraction(1), Fraction(4)]),
)
def test_pipelines_on_servers_of_eight(delay, instance, tau):
    product, by_hand = both(instance[0], PIPELINES, *instance[1:], tau, delay)
    assert product == by_hand
