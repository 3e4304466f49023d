"""What the waiting jobs of asrpt-gated could use beside one of them, however they come and go."""

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.policies.gated.queue import Waiting, Waitlist
from tests.benches.gated import Bench, job

JOBS = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 500)), min_size=1, max_size=20)


def entries(rows: list[tuple[int, int]]) -> list[Waiting]:
    bench = Bench(8).submit(*(job(str(number), gpus, seconds) for number, (gpus, seconds) in enumerate(rows)))
    return list(bench.policy.jobs.queue.entries.values())


@settings(max_examples=100, deadline=None)
@given(rows=JOBS, gone=st.sets(st.integers(1, 19)), below=st.integers(2, 9))
def test_each_job_counts_with_its_gpus_for_the_share_of_the_time_that_it_can_fill(rows, gone, below):
    queue = Waitlist(1e9)
    for entry in entries(rows):
        queue.enter(entry)
    for number in gone:
        queue.leave(str(number))
    first = queue.entries["0"]
    left = [rows[int(job_id)] for job_id in queue.entries]
    filled = [gpus * min(1.0, seconds / first.seconds) for gpus, seconds in left if gpus < below]
    assert abs(queue.beside(first, below) - sum(filled)) <= 1e-6 * (1 + sum(filled))
