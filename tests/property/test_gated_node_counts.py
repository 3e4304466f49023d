"""asrpt-gated starts a job as soon as its GPUs are free on few enough servers, in whichever words it asks for them."""

from __future__ import annotations

from hypothesis import event, given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.placement.best_alpha import fewest_servers, fits
from tests.benches.gated import Bench, job
from tests.examples import examples

servers_of_one_size = st.tuples(st.integers(2, 8), st.integers(2, 4)).map(lambda each: [each[0]] * each[1])
servers_of_any_size = st.lists(st.integers(1, 8), min_size=1, max_size=4)


def started(servers: list[int], used: list[int], gpus: int, **request: int) -> dict[str, dict[str, int]]:
    bench = Bench(*servers)
    for at, (size, count) in enumerate(zip(servers, used, strict=False)):
        if min(size, count):
            bench.occupy(f"r{at}", 1e6, **{f"n{at}": min(size, count)})
    found: dict[str, dict[str, int]] = bench.submit(job("1", gpus, 10, **request)).decide()
    return found


@settings(max_examples=examples(400))
@given(
    servers_of_one_size | servers_of_any_size,
    st.lists(st.integers(0, 4), min_size=4, max_size=4),
    st.integers(1, 24),
)
def test_a_job_starts_with_or_without_the_fewest_nodes_in_its_request(servers, used, gpus):
    """Without a profile, all its placements are as fast."""
    nodes = Bench(*servers).view.nodes
    if not fits(job("1", gpus), nodes):
        return
    fewest = fewest_servers(job("1", gpus), nodes)
    plain, asked = started(servers, used, gpus), started(servers, used, gpus, min_nodes=fewest, max_nodes=fewest)
    event(f"servers: {fewest}, starts: {bool(plain)}")
    assert bool(plain) >= bool(asked)
    assert all(len(each["1"]) <= fewest for each in (plain, asked) if each)
