"""`asrpt` has exactly the starts and ends of a second implementation of Algorithm 1 (tests/reference/algorithm1.py)."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import JobProfile, Stage
from slurm_asrpt.core.policies import make_policy
from slurm_asrpt.sim.engine import simulate
from slurm_asrpt.sim.job_table import JobTable
from tests.reference import algorithm1

PLAIN = ((1, 1, 0), (2, 1, 0), (3, 2, 0), (4, 1, 0))
HEAVY = ((1, 1, 0), (1, 2, 0), (2, 1, 4), (2, 1, 16), (3, 1, 1), (4, 2, 8))
"""(GPUs, compute seconds, seconds of the all-reduce for one replica alone on a server of two)."""


def job_profile(cluster_size, kind):
    """The same job for both. Floats represent its values exactly, so results can be compared for equality."""
    gpus, compute, apart = kind
    fabric = Fabric(inter=float(cluster_size), intra=4.0)  # a GPU's share of the NIC: 1 byte/s
    volume = 2 * (gpus - 1) / gpus
    h = apart / volume if volume else 0.0
    return fabric, JobProfile(f"k{gpus}", (Stage(gpus, float(compute), 0.0, param_bytes=h),))


def both(rows, kinds, servers, size, tau, delay):
    """Starts and ends of each job from the simulator, and from the reference implementation."""
    profiles = tuple(job_profile(size, kind)[1] for kind in kinds)
    fabric = job_profile(size, kinds[0])[0]
    submit, kind, true, predicted = (np.array(column) for column in zip(*rows, strict=True))
    table = JobTable(profiles, submit.astype(float), kind, true.astype(float), predicted.astype(float))
    policy = make_policy("asrpt", fabric=fabric, tau=float(tau), delay=delay)
    result = simulate(policy, [Node(f"n{i}", size, i) for i in range(servers)], table)
    jobs = []
    for at, number, n, guess in rows:
        gpus, compute, apart = kinds[number]
        jobs.append(algorithm1.Job(at, gpus, n, guess, Fraction(compute), Fraction(apart, 4), Fraction(apart)))
    algorithm1.run(jobs, servers, size, Fraction(tau), aside=delay == "aside")
    event(f"a delay: {any(job.kappa is not None for job in jobs)}")
    event(f"one that ended early: {any(job.kappa is not None and job.start < job.deadline for job in jobs)}")
    return list(zip(result.start, result.end, strict=True)), [(job.start, job.end) for job in jobs]


@st.composite
def instances(draw, kinds, shapes, perfect=False):
    """(rows of submit, kind, n, ñ; servers; GPUs of a server). The total of GPUs is a power of two: exact in floats."""
    servers, size = draw(st.sampled_from(shapes))
    row = st.tuples(st.integers(0, 12), st.integers(0, len(kinds) - 1), st.integers(1, 12), st.integers(0, 12))
    rows = sorted(draw(st.lists(row, min_size=1 if perfect else 6, max_size=14)))
    return [(at, kind, n, n if perfect else guess) for at, kind, n, guess in rows], servers, size


@settings(max_examples=300, deadline=None)
@given(instances(PLAIN, [(4, 1), (2, 2), (4, 2)], perfect=True))
def test_perfect_prediction_and_no_placement_effects(instance):
    product, by_hand = both(instance[0], PLAIN, *instance[1:], tau=1, delay="block")
    assert product == by_hand


@pytest.mark.parametrize("delay", ["block", "aside"])
@settings(max_examples=300, deadline=None)
@given(instances(HEAVY, [(2, 2), (4, 2)]), st.sampled_from([Fraction(0), Fraction(1, 2), Fraction(1), Fraction(4)]))
def test_placement_effects_wrong_predictions_and_delays(delay, instance, tau):
    product, by_hand = both(instance[0], HEAVY, *instance[1:], tau, delay)
    assert product == by_hand
