"""The placement benchmark: its random cases and its summary."""

import random

import pytest

from benchmarks import heavy_edge as benchmark
from slurm_asrpt.profile.schema import load_profile


def test_the_benchmark_covers_the_nine_models_of_table_1():
    found = benchmark.models()
    assert len(found) == 9
    assert all(2 <= profile.gpus <= benchmark.MAX_GPUS for profiles in found.values() for profile in profiles)


@pytest.mark.parametrize("gpus", [2, 3, 8, 32])
def test_patterns_fit_the_job_on_two_or_more_servers(gpus):
    draw = random.Random(0)
    for _ in range(50):
        counts = benchmark.pattern(gpus, draw)
        assert sum(counts) == gpus
        assert len(counts) >= 2
        assert min(counts) >= 1
        assert max(counts) <= benchmark.SERVER_GPUS


def test_cases_are_the_same_for_the_same_seed():
    assert list(benchmark.cases(3, 1)) == list(benchmark.cases(3, 1)) != list(benchmark.cases(3, 2))


def test_a_case_compares_both_methods_with_the_exact_placement():
    outcome = benchmark.run_case("VGG19", load_profile("vgg19-pp4dp2", []), (5, 3), 20.0)
    assert outcome.proven
    assert 1 <= outcome.ratio("heavy_edge_plus") < outcome.ratio("heavy_edge")
    found = benchmark.report([outcome])
    assert found["cases"] == 1
    assert found["models"]["VGG19"]["heavy_edge"]["ratio_mean"] == round(outcome.ratio("heavy_edge"), 4)


def test_a_percentile_is_the_nearest_rank():
    assert benchmark.percentile(list(range(1, 21)), 0.95) == 19
    assert benchmark.percentile([3.0], 0.95) == 3.0
