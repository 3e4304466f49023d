"""asrpt-gated, or another policy that is told the running jobs, on a small cluster in memory."""

import json

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.job import Job, JobId, Request, unprofiled
from slurm_asrpt.core.policies.base import Start
from slurm_asrpt.core.policies.registry import policy_class
from slurm_asrpt.status.reason_texts import text_of

FABRIC = Fabric(1.25e9, 300e9)


def unchecked_policy(policy, **options):
    """A policy whose options are not checked, such as a patience of 0."""
    kind = policy_class(policy)
    return kind(FABRIC, kind.Options.model_construct(**options))


class Bench:
    """A policy on a small cluster."""

    def __init__(self, *sizes, policy="asrpt-gated", **settings):
        self.name, self.settings, self.policy = policy, settings, unchecked_policy(policy, **settings)
        self.view = ClusterView([Node(f"n{i}", gpus, i) for i, gpus in enumerate(sizes)])
        self.policy.cluster_changed(self.view.nodes, 0.0)
        self.placed, self.decisions = {}, []

    def submit(self, *jobs, now=0.0):
        for job in jobs:
            self.policy.submitted(job, now)
        return self

    def decide(self, now=0.0):
        """The jobs that start now, with their GPUs per node."""
        self.decisions = self.policy.decide(self.view, now)
        started = {}
        for decision in self.decisions:
            if isinstance(decision, Start):
                assert decision.job.id not in started
                self.view.take(decision.placement.gpus, decision.job.request)
                self.placed[decision.job.id] = decision
                started[decision.job.id] = dict(decision.placement.gpus)
        return started

    def end(self, job_id, now):
        start = self.placed.pop(job_id)
        self.view.give(start.placement.gpus, start.job.request)
        self.policy.finished(job_id, now)

    def occupy(self, job_id, until, now=0.0, **gpus):
        """A job that the policy did not start takes these GPUs."""
        self.view.take(gpus)
        self.policy.running(job_id, gpus, until, now)

    def why(self, now=0.0):
        """The kind of reason of each pending job, after checking that its facts survive JSON and it has a text."""
        queue = self.policy.queue(now)
        assert all(text_of(why) for _, why in queue)
        assert json.loads(json.dumps([why.facts for _, why in queue])) == [why.facts for _, why in queue]
        return [(job_id, why.kind) for job_id, why in queue]


def job(job_id, gpus=1, iterations=0.0, submit=0.0, profile=None, **request):
    profile = profile or unprofiled(gpus)
    return Job(JobId(job_id), "ann", profile.gpus, profile, iterations, submit, request=Request(**request))


def restarted(bench, waiting, now=60.0):
    """The same cluster with a new policy that has loaded the dump of the old one."""
    sizes = [node.gpus for node in bench.view.nodes]
    after = Bench(*sizes, policy=bench.name, **bench.settings)
    after.view, after.placed = bench.view, bench.placed
    after.policy.load(json.loads(json.dumps(bench.policy.dump(), allow_nan=False)), {one.id: one for one in waiting})
    return after
