"""The optimized A-SRPT decides like the plain one (tests/reference/plain_asrpt.py) after any events.

All values are sums of powers of two, and each cluster has a power of two of GPUs, so both compute without
rounding, and every difference is an error.
"""

import json
from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.job import ANYWHERE, Job, JobId, JobProfile, Request, Stage, unprofiled
from slurm_asrpt.core.policies import make_policy
from slurm_asrpt.core.policies.base import Start
from tests.examples import examples
from tests.reference.plain_asrpt import PlainASrpt

FABRIC = Fabric(2.0**30, 2.0**38)
CLUSTERS = [*[(4, 4, 4, 4)] * 4, (4,) * 8, (8, 8), (2, 2, 4, 4, 4), (1, 1, 2, 4, 8), (4, 4), (2,)]
PROFILES = [
    *(unprofiled(gpus) for gpus in (1, 1, 1, 2, 3, 8)),
    *[JobProfile("heavy", (Stage(4, 0.5, 0.5, param_bytes=2.0**30),))] * 3,
    JobProfile("heavy8", (Stage(8, 0.5, 0.5, param_bytes=2.0**28),)),
    JobProfile("heavy2", (Stage(2, 0.25, 0.25, param_bytes=2.0**29),)),
    JobProfile("light", (Stage(4, 0.5, 0.5, param_bytes=2.0**10),)),
    JobProfile("pipeline", (Stage(2, 0.5, 0.5, 0, 2.0**28), Stage(1, 0.5, 0.5, 2.0**28), Stage(1, 1.0, 1.0))),
]
REQUESTS = [
    *[ANYWHERE] * 3,
    Request(),
    Request(max_nodes=1),
    Request(candidates=frozenset({"n0", "n1"})),
    Request(per_node=1),
    Request(cpus_per_gpu=2.0),
    Request(memory_per_gpu=3.0, memory_per_node=4.0),
    Request(min_nodes=2),
]
EVENTS = {
    "submit": 8,
    "wait": 2,
    "wake": 6,
    "end": 5,
    "other_view": 2,
    "cancel": 1,
    "returned": 1,
    "silence": 0.5,
    "stranger": 1,
    "change": 0.5,
    "reload": 0.5,
    "nodes": 0.1,
}


class Twins:
    """A small cluster on which two policies get the same events and must make the same decisions."""

    def __init__(self, random):
        self.random = random
        self.variant = {
            "tau": random.choice([0.0, 1.0, 8.0, 64.0]),
            "comm_heavy": random.choice([1.5, 1.5, 3.0]),
            "delay": random.choice(["block", "aside"]),
        }
        self.stocks = random.random() < 0.3
        self.requests = random.choice([[ANYWHERE], [ANYWHERE], REQUESTS])
        self.now, self.number = 8.0, 0
        self.waiting, self.running, self.counts = {}, {}, Counter()
        self.plain, self.optimized = self.new_policies()
        self.nodes()

    def new_policies(self):
        return PlainASrpt(FABRIC, **self.variant), make_policy("asrpt", fabric=FABRIC, **self.variant)

    def tell(self, event, *args):
        for policy in (self.plain, self.optimized):
            getattr(policy, event)(*args, self.now)

    def job(self, job_id):
        profile, iterations = self.random.choice(PROFILES), self.random.choice([0, 0, 1, 2, 3, 8, 8, 40])
        request = self.random.choice(self.requests)
        return Job(job_id, "ann", profile.gpus, profile, float(iterations), self.now, request=request)

    def one_of(self, table):
        return self.random.choice(sorted(table)) if table else None

    # events

    def submit(self):
        self.number += 1
        job = self.job(JobId(str(self.number)))
        self.waiting[job.id] = job
        self.tell("submitted", job)

    def wait(self):
        self.now += self.random.randint(1, 40) / 8

    def wake(self):
        """Advance to the next virtual completion or deadline; the optimized policy may skip it."""
        self.decide()
        wake, asked = self.plain.next_wakeup(self.now), self.optimized.next_wakeup(self.now)
        if wake is None:
            assert asked is None
            return
        self.now = max(self.now, wake)
        assert asked is None or asked >= wake
        started = self.decide()
        assert asked == wake or not started

    def silence(self):
        """Free GPUs without notice to the policies. Returns the job, or None if none runs."""
        job_id = self.one_of(self.running)
        if job_id is None:
            return None
        job, gpus = self.running.pop(job_id)
        self.view.give(gpus, job.request)
        return job

    def end(self):
        job = self.silence()
        if job is not None:
            self.tell("finished", job.id)

    def returned(self):
        job = self.silence()
        if job is not None:
            self.waiting[job.id] = job
            self.tell("returned", job)

    def cancel(self):
        job_id = self.one_of(self.waiting)
        if job_id is not None:
            del self.waiting[job_id]
            self.tell("finished", job_id)

    def stranger(self):
        self.tell("finished", JobId("x"))

    def change(self):
        job_id = self.one_of(self.waiting)
        job = self.job(job_id or JobId("x"))
        if job_id is not None:
            self.waiting[job_id] = job
        self.tell("changed", job)

    def other_view(self):
        """A new cluster view, as in each cycle of the daemon; unmanaged jobs use GPUs, too."""
        stock = {n.name: 2.0 * n.gpus - 1 for n in self.table}
        more = {"free_cpus": stock, "free_memory": {k: 2 * v for k, v in stock.items()}} if self.stocks else {}
        self.view = ClusterView(self.table, **more)
        for job, gpus in self.running.values():
            self.view.take(gpus, job.request)
        for name, free in dict(self.view.free).items():
            self.view.take({name: self.random.choice([0, free // 2, free - 1 if free else 0])})

    def nodes(self):
        """Replace the nodes; running jobs are lost."""
        self.table = tuple(Node(f"n{i}", gpus, i) for i, gpus in enumerate(self.random.choice(CLUSTERS)))
        for job_id in self.running:
            self.tell("finished", job_id)
        self.running.clear()
        self.other_view()
        self.tell("cluster_changed", self.table)

    def reload(self):
        """Restore both from the saved state of one of them, with the pending jobs."""
        order = [job_id for job_id, _ in self.plain.queue(self.now)]
        assert self.optimized.dump()["delays"] == self.plain.dump()["delays"]
        state = json.loads(json.dumps(self.random.choice([self.plain, self.optimized]).dump()))
        self.plain, self.optimized = self.new_policies()
        self.tell("cluster_changed", self.table)
        for policy in (self.plain, self.optimized):
            policy.load(state, self.waiting)
        assert [job_id for job_id, _ in self.optimized.queue(self.now)] == order

    # comparisons

    def decide(self):
        expected = self.plain.decide(self.view, self.now)
        assert list(self.optimized.decide(self.view, self.now)) == list(expected)
        for decision in expected:
            self.counts["start" if isinstance(decision, Start) else decision.reason.kind] += 1
            if isinstance(decision, Start):
                self.view.take(decision.placement.gpus, decision.job.request)
                self.running[decision.job.id] = self.waiting.pop(decision.job.id), decision.placement.gpus
        return any(isinstance(decision, Start) for decision in expected)

    def look(self):
        assert list(self.optimized.queue(self.now)) == list(self.plain.queue(self.now))


def play(random, length):
    twins = Twins(random)
    for _ in range(length):
        (event,) = random.choices(list(EVENTS), list(EVENTS.values()))
        getattr(twins, event)()
        if random.random() < 0.7:
            twins.decide()
        if random.random() < 0.2:
            twins.look()
    twins.decide()
    return twins.counts


@settings(max_examples=examples(400), deadline=None)
@given(st.integers(0, 2**40), st.integers(1, 120))
def test_the_optimized_policy_decides_like_the_plain_one(seed, length):
    play(Random(seed), length)


def test_random_histories_cover_every_kind_of_decision():
    counts = sum((play(Random(seed), 100) for seed in range(20)), Counter())
    assert min(counts[kind] for kind in ("start", "gpus", "shape", "placement", "capacity")) > 20
