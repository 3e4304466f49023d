"""The exact oracle and heavy-edge+ on cases whose optimum is known."""

import subprocess
import sys

import pytest

from papers.asrpt.oracle import optimal_placement
from papers.asrpt.refine import heavy_edge_plus
from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import JobProfile, Pipeline, Stage
from slurm_asrpt.core.placement.heavy_edge import heavy_edge
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.profile.schema import load_profile
from tests.reference.placements import least_alpha

FABRIC = Fabric(inter=8e6, intra=100e6)
# a chain of four single stages, all cuts equal: a middle stage alone on a server pays for two cuts
CHAIN = JobProfile("chain", tuple(Stage(1, 1, 1, bytes_in=1e6 * (s > 0), bytes_out=1e6 * (s < 3)) for s in range(4)))


def test_single_stages_belong_at_the_ends_of_the_pipeline():
    found = optimal_placement(CHAIN, (1, 2, 1), (8, 8, 8), FABRIC)
    # stages 2 and 3 together: one cut of 2 MB over 1 MB/s and 2 MB over 100 MB/s
    assert found.alpha == pytest.approx(2 + 2 + 0.02)
    assert found.proven
    assert found.ranks[1:3] == (1, 1)
    plus = heavy_edge_plus(CHAIN, (1, 2, 1), (8, 8, 8), FABRIC)
    assert iteration_time(CHAIN, plus, (8, 8, 8), FABRIC) == pytest.approx(found.alpha)


def test_the_solver_prints_nothing():
    """HiGHS 1.16 greets on stdout, once in a process, where others print JSON."""
    lines = ("from tests.unit.papers.test_oracle import *", "optimal_placement(CHAIN, (1, 2, 1), (8, 8, 8), FABRIC)")
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_swaps_improve_cuts_that_heavy_edge_makes_by_bytes_alone():
    profile, counts, servers = load_profile("vgg19-pp4dp2", []), (5, 3), (8, 8)
    paper = Fabric(inter=1.25e9, intra=300e9)
    plain = iteration_time(profile, heavy_edge(profile, counts), servers, paper)
    plus = iteration_time(profile, heavy_edge_plus(profile, counts, servers, paper), servers, paper)
    assert plus == pytest.approx(least_alpha(profile, counts, servers, paper))
    assert plus < plain / 1.2


@pytest.mark.parametrize("counts", [(3, 1), (4,)])
def test_heavy_edge_plus_does_not_search_if_only_one_placement_exists(counts):
    profile = JobProfile("dp", (Stage(4, 1, 1, param_bytes=1e6),))
    assert heavy_edge_plus(profile, counts, (8,) * len(counts), FABRIC) == heavy_edge(profile, counts)


def test_a_synchronous_pipeline_gets_the_best_of_the_starts():
    library = load_profile("vgg19-pp4dp2", [])
    profile = JobProfile("sync", library.stages, pipeline=Pipeline.SYNCHRONOUS, micro_batches=4)
    paper = Fabric(inter=1.25e9, intra=300e9)
    plus = heavy_edge_plus(profile, (5, 3), (8, 8), paper)
    plain = heavy_edge(profile, (5, 3))
    assert iteration_time(profile, plus, (8, 8), paper) < iteration_time(profile, plain, (8, 8), paper) / 1.2


def test_a_network_as_fast_as_links_inside_a_server_is_within_the_model():
    """It is the share of one GPU that must not be faster."""
    assert optimal_placement(CHAIN, (4,), (8,), Fabric(8e6, 8e6)).proven
    assert optimal_placement(CHAIN, (4,), (8,), Fabric(8e6, 1e6)).proven
    with pytest.raises(ValueError, match="no slower"):
        optimal_placement(CHAIN, (4,), (8,), Fabric(8e6, 0.99e6))


def test_the_oracle_rejects_unsupported_profiles():
    with pytest.raises(ValueError, match="asynchronous"):
        optimal_placement(JobProfile("s", CHAIN.stages, pipeline=Pipeline.SYNCHRONOUS), (4,), (8,), FABRIC)
    with pytest.raises(ValueError, match="no slower"):
        optimal_placement(CHAIN, (4,), (8,), Fabric(8e6, 0.5e6))
    with pytest.raises(ValueError, match="do not hold"):
        optimal_placement(CHAIN, (3,), (8,), FABRIC)
