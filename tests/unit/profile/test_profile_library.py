"""The shipped profiles: the output of their script, and plausible values."""

import itertools
from pathlib import Path

import pytest

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import JobProfile
from slurm_asrpt.core.placement.heavy_edge import heavy_edge
from slurm_asrpt.core.timing.pipeline import iteration_time, worst_iteration_time
from slurm_asrpt.profile.cut import balanced_ends
from slurm_asrpt.profile.header import NAME_PATTERN
from slurm_asrpt.profile.library_tools import analytic, architectures
from slurm_asrpt.profile.library_tools.architectures import TABLE1_MODELS, Model
from slurm_asrpt.profile.library_tools.table1 import PLANS, Plan, build, even, write_library
from slurm_asrpt.profile.schema import LIBRARY, UNCUT, library_names, load_file, load_profile

SERVER_GPUS = 8
PAPER_FABRIC = Fabric(inter=1.25e9, intra=300e9)  # section V-B: 10 Gbit/s and 300 GB/s
COMM_HEAVY = 1.5

# Parameters and forward multiply-adds from torchvision for its models, and from the papers for the others.
PUBLISHED = {
    "vgg19": (143_667_240, 19.632e9, 1e-4),
    "resnet152": (60_192_808, 11.514e9, 1e-4),
    "inception-v3": (23_834_568, 5.713e9, 1e-4),
    "bert-large": (340e6, None, 0.03),
    "xlnet-large": (360e6, None, 0.03),
    "t5-11b": (11e9, None, 0.03),
    "gpt-6.7b": (6.7e9, None, 0.03),
    "gpt-13b": (13e9, None, 0.03),
    "gpt-175b": (175e9, None, 0.03),
}


def ratio(profile: JobProfile) -> float:
    """alpha_max / alpha_min: scattered over Heavy-Edge on the fewest servers."""
    full, rest = divmod(profile.gpus, SERVER_GPUS)
    counts = (SERVER_GPUS,) * full + ((rest,) if rest else ())
    best = iteration_time(profile, heavy_edge(profile, counts), [SERVER_GPUS] * len(counts), PAPER_FABRIC)
    return worst_iteration_time(profile, SERVER_GPUS, PAPER_FABRIC) / best


@pytest.mark.parametrize("model", TABLE1_MODELS, ids=lambda model: model.key)
def test_layer_tables_add_up_to_the_published_model(model: Model) -> None:
    params, macs, tolerance = PUBLISHED[model.key]
    assert model.params == pytest.approx(params, rel=tolerance)
    if macs is not None:
        assert model.flops / 2 == pytest.approx(macs, rel=tolerance)


def test_mini_batches_are_as_in_table_one() -> None:
    batches = {model.key: model.batch for model in TABLE1_MODELS}
    assert batches == {
        "vgg19": 32, "resnet152": 4, "inception-v3": 32, "bert-large": 4, "xlnet-large": 4,
        "t5-11b": 8, "gpt-6.7b": 32, "gpt-13b": 32, "gpt-175b": 16,
    }  # fmt: skip


def test_the_library_equals_the_output_of_its_script(tmp_path: Path) -> None:
    (tmp_path / "stale.toml").write_text("")
    count = write_library(tmp_path)
    written = {path.name: path.read_text() for path in tmp_path.glob("*.toml")}
    shipped = {path.name: path.read_text() for path in LIBRARY.glob("*.toml")}
    assert written == shipped, "run python -m slurm_asrpt.profile.library_tools.table1"
    assert count == len(shipped)


@pytest.mark.parametrize("name", library_names())
def test_each_profile_is_valid(name: str) -> None:
    document = load_file(name, [])
    assert NAME_PATTERN.fullmatch(name)
    assert document.profile.name == name
    assert document.head.provenance.kind == "analytic"
    assert "assumed" in document.head.provenance.formula
    assert max(stage.replicas for stage in document.profile.stages) <= document.head.batch


@pytest.mark.parametrize("model", TABLE1_MODELS, ids=lambda model: model.key)
def test_every_configuration_has_the_same_total_work(model: Model) -> None:
    """k_s (p_s^f + p_s^b) summed over stages is the same for every cut."""
    works = [
        sum(stage.replicas * (stage.forward_s + stage.backward_s) for stage in build(model, plan).profile.stages)
        for plan in PLANS[model.key]
    ]
    assert works == pytest.approx([works[0]] * len(works))


@pytest.mark.parametrize("name", library_names())
def test_scattering_is_never_faster(name: str) -> None:
    profile = load_profile(name, [])
    value = ratio(profile)
    assert value == pytest.approx(1.0) if profile.gpus == 1 else 1.0 <= value < 1000


def test_some_jobs_are_communication_heavy_and_some_are_not() -> None:
    ratios = {name: ratio(load_profile(name, [])) for name in library_names()}
    for name, value in sorted(ratios.items()):
        print(f"{name:24} {value:8.2f}")
    several = {name: value for name, value in ratios.items() if not name.endswith("-1gpu")}
    assert several["vgg19-dp8"] > 50
    assert several["vgg19-conv7fc1"] < several["vgg19-dp8"] / 3, "PipeDream's plan avoids the all-reduce of fc6"
    light = {name for name, value in several.items() if value < COMM_HEAVY}
    assert {"t5-11b-pp4", "gpt-6.7b-pp2", "gpt-175b-pp16"} <= light
    assert {load_profile(name, []).gpus for name in ratios} >= {1, 2, 4, 8, 16}


def test_cuts_are_optimal() -> None:
    work, replicas = (3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0), (2, 1, 3)
    bounds = [(0, *cuts, len(work)) for cuts in itertools.combinations(range(1, len(work)), 2)]

    def bottleneck(bound: tuple[int, ...]) -> float:
        return max(sum(work[a:b]) / k for a, b, k in zip(bound, bound[1:], replicas, strict=False))

    best = bottleneck((0, *balanced_ends(work, replicas)))
    assert best == min(bottleneck(bound) for bound in bounds)


def test_every_stage_has_work() -> None:
    assert balanced_ends((0.0, 1.0, 0.0, 1.0), (1, 1)) == (2, 4)
    with pytest.raises(ValueError, match="cannot be cut"):
        balanced_ends((0.0, 1.0), (1, 1))


def test_invalid_configurations_are_rejected() -> None:
    by_key = {model.key: model for model in TABLE1_MODELS}
    with pytest.raises(ValueError, match="cannot be split over 8 replicas"):
        build(by_key["resnet152"], even(1, 8))
    with pytest.raises(ValueError, match="do not fit on one GPU"):
        build(by_key["gpt-13b"], even(2))
    assert build(by_key["vgg19"], Plan("x", (3, 1), ends=(16, 19))).profile.gpus == 4


TODAY = {
    "llama-3-8b": (8_030_261_248, None),
    "llama-3-70b": (70_553_706_496, None),
    "vit-l16": (304_326_632, 61.555e9),
    "mixtral-8x7b": (46_702_792_704, None),
}
"""Parameters from the models' own weights; multiply-adds of ViT from torchvision."""


@pytest.mark.parametrize("model", architectures.RECENT_MODELS, ids=lambda model: model.key)
def test_recent_models_add_up_to_the_published_size(model: Model) -> None:
    params, macs = TODAY[model.key]
    assert model.params == params
    if macs is not None:
        assert model.flops / 2 == pytest.approx(macs, rel=1e-4)


def test_the_uncut_library_equals_the_output_of_its_script(tmp_path: Path) -> None:
    (tmp_path / "stale.toml").write_text("")
    (tmp_path / "own.toml").write_text('[provenance]\nkind = "measured"\n')
    count = analytic.write_library(tmp_path)
    (tmp_path / "own.toml").unlink()  # the file still exists
    written = {path.name: path.read_text() for path in tmp_path.glob("*.toml")}
    shipped = {path.name: path.read_text() for path in UNCUT.glob("*.toml")}
    computed = {name: text for name, text in shipped.items() if 'kind = "measured"' not in text}
    assert written == computed, "run python -m slurm_asrpt.profile.library_tools.analytic"
    assert count == len(written) == len(TABLE1_MODELS) + len(architectures.RECENT_MODELS)


@pytest.mark.parametrize("model", TABLE1_MODELS, ids=lambda model: model.key)
def test_blocks_and_stages_of_a_model_agree(model: Model) -> None:
    """The same work and gradients as blocks and as cut by the other script."""
    whole = analytic.uncut(model)
    plan = PLANS[model.key][0]
    stages = build(model, plan).profile.stages
    work = sum(stage.replicas * (stage.forward_s + stage.backward_s) for stage in stages)
    assert work == pytest.approx(whole.seconds)
