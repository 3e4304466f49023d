"""A backfill cycle of slurm-backfill stops as soon as no job can start in it: it starts what a whole cycle starts."""

import copy
from unittest.mock import patch

from hypothesis import event, given
from hypothesis import strategies as st

from slurm_asrpt.core.job import Job, JobId, unprofiled
from slurm_asrpt.core.policies.slurm_backfill.timetable import Timetable
from tests.benches.gated import Bench

sizes = st.lists(st.sampled_from([2, 4]), min_size=1, max_size=5)
jobs = st.lists(
    st.tuples(st.sampled_from([1, 1, 2, 4, 6]), st.sampled_from([60.0, 600.0, 3600.0, 1e9])), min_size=1, max_size=24
)


def job(number, gpus, limit):
    return Job(JobId(str(number)), "ann", gpus, unprofiled(gpus), 1.0, float(number), time_limit=limit)


@given(sizes, jobs, jobs, st.data())
def test_it_starts_the_same_jobs(sizes, first, later, data):
    bench = Bench(*sizes, policy="slurm-backfill")
    bench.submit(*[job(number, *each) for number, each in enumerate(first)])
    bench.decide()
    for running in data.draw(st.sets(st.sampled_from(sorted(bench.placed)))) if bench.placed else ():
        bench.end(running, 40.0)
    bench.submit(*[job(100 + number, *each) for number, each in enumerate(later)], now=40.0)
    whole = copy.deepcopy(bench)
    with patch.object(Timetable, "is_open", lambda *_: True):
        expected = whole.decide(40.0)
    event(f"started: {min(3, len(expected))}")
    assert bench.decide(40.0) == expected
