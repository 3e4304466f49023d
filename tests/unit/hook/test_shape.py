"""Uncut models, cut to the sizes in a job's script or to a shape in the profile name."""

from __future__ import annotations

import inspect
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.core.job import UNPROFILED, Pipeline
from slurm_asrpt.daemon.profiles import Profiles
from slurm_asrpt.errors import InputError
from slurm_asrpt.hook.group import describe
from slurm_asrpt.profile.cut import balanced_ends, even_cut
from slurm_asrpt.profile.documents import load_named, load_uncut
from slurm_asrpt.profile.schema import library_names, uncut_names
from slurm_asrpt.profile.shape import cut_for, cut_named, split_name
from slurm_asrpt.profile.sizes import Sizes, parse_sizes

LARGEST = 99_999  # of five digits
some_sizes = st.builds(Sizes, *[st.integers(0, LARGEST)] * 4)
MEGATRON = b"""torchrun --nnodes 2 --nproc_per_node=8 pretrain_gpt.py --tensor-model-parallel-size 4 \\
  --pipeline-model-parallel-size 2 --lr 1e-4"""


def sizes_of(script: bytes, *args: bytes) -> Sizes:
    return describe(7, b"n", script, args, b"", GroupSettings()).sizes


@given(some_sizes)
def test_sizes_round_trip(sizes: Sizes) -> None:
    assert parse_sizes(str(sizes)) == sizes


@pytest.mark.parametrize(
    ("script", "sizes"),
    [
        (MEGATRON, Sizes(8, 2, 4, 2)),
        (b"srun torchrun --nproc-per-node 4 train.py", Sizes(4)),
        (b"python -m torch.distributed.run --nproc_per_node='4' train.py", Sizes(4)),
        (b"deepspeed --num_gpus 8 --num_nodes 2 train.py --deepspeed ds.json", Sizes(8, 2)),
        (b"torchrun --nproc_per_node=gpu train.py", Sizes()),
        (b"torchrun --nproc_per_node $SLURM_GPUS_ON_NODE train.py --lr 8", Sizes()),
        (b"torchrun --nnodes=1:4 --nproc_per_node 8 train.py", Sizes(8)),
        (b"torchrun --nproc_per_node 4 a.py\ntorchrun --nproc_per_node $N b.py", Sizes()),
        (b"python train.py --num_gpus 4 --nodes 2", Sizes()),
        (b"python train.py --tensor-model-parallel-size 0 --pipeline-model-parallel-size 1.5", Sizes()),
        (b"python train.py --tensor-model-parallel-size 1e9", Sizes()),
        (b"TENSOR_MODEL_PARALLEL_SIZE=2 python train.py", Sizes(tp=2)),
        (b"# torchrun --nproc_per_node 4\npython train.py", Sizes()),
    ],
)
def test_sizes_in_scripts(script: bytes, sizes: Sizes) -> None:
    assert sizes_of(script) == sizes


def test_sizes_in_arguments_count_and_do_not_split_a_group() -> None:
    assert sizes_of(b"python t.py $@", b"--tensor-model-parallel-size", b"8").tp == 8
    one, two = (
        describe(7, b"n", MEGATRON.replace(b"size 4", b"size " + n), (), b"", GroupSettings()) for n in (b"4", b"2")
    )
    assert one.group == two.group
    assert one.features == two.features == {"lr": 1e-4}


@pytest.mark.parametrize(
    ("sizes", "gpus", "suffix"),
    [
        (Sizes(8, 2, 4, 2), 16, "tp4pp2dp2"),
        (Sizes(8), 8, "dp8"),
        (Sizes(8), 16, "dp16"),
        (Sizes(tp=8), 16, "tp8dp2"),
        (Sizes(pp=4), 4, "pp4"),
        (Sizes(1, 1), 1, "1gpu"),
    ],
)
def test_a_model_is_cut_as_the_script_specifies(sizes: Sizes, gpus: int, suffix: str) -> None:
    document = load_uncut("llama-3-8b", ())
    cut = cut_for(document, sizes, gpus)
    assert (cut.suffix, cut.gpus, cut.pipeline) == (suffix, gpus, Pipeline.SYNCHRONOUS)
    assert cut_named(document, suffix) == cut
    assert split_name(f"llama-3-8b-{suffix}") == ("llama-3-8b", suffix)


@pytest.mark.parametrize(
    ("sizes", "gpus", "complaint"),
    [
        (Sizes(), 8, "does not say in numbers"),
        (Sizes(nodes=2), 8, "does not say in numbers"),
        (Sizes(8, 2), 8, "starts 8 processes on each of 2 nodes, which are not the job's 8 GPUs"),
        (Sizes(3), 8, "starts 3 processes a node"),
        (Sizes(tp=8), 4, "do not share 4 GPUs evenly"),
        (Sizes(tp=2, pp=3), 8, "do not share 8 GPUs evenly"),
        (Sizes(pp=64), 64, "34 layers cannot be cut into 64 stages"),
        (Sizes(pp=LARGEST), LARGEST, "cannot be cut"),
        (Sizes(64), 64, "mini-batch of 32 cannot be split over 64 replicas"),
    ],
)
def test_ambiguous_sizes_are_rejected(sizes: Sizes, gpus: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        cut_for(load_uncut("llama-3-8b", ()), sizes, gpus)


@pytest.mark.parametrize("name", uncut_names())
def test_each_shipped_model_can_be_cut_for_up_to_eight_processes(name: str) -> None:
    profiles = Profiles(lambda name: load_named(name, ()))
    replicas = min(load_uncut(name, ()).head.batch, 8)
    found = profiles.get(name, replicas, Sizes(replicas))
    assert (found.name, found.gpus, profiles.problems) == (f"{name}-dp{replicas}", replicas, {})
    assert profiles.get(found.name, replicas) == found


def test_a_job_with_an_ambiguous_shape_counts_as_unprofiled_with_a_log_message() -> None:
    profiles = Profiles(lambda name: load_named(name, ()))
    assert profiles.get("llama-3-8b", 8, Sizes()).name == UNPROFILED
    assert "cannot be cut into stages: the script does not say" in profiles.problems["llama-3-8b"][0]
    assert profiles.get("vgg19-dp4", 4, Sizes(tp=2)).gpus == 4  # is already cut


def test_no_shipped_name_is_ambiguous_with_a_shape_of_another() -> None:
    for name in library_names():
        model, shape = split_name(name)
        assert model not in uncut_names() or not shape or load_named(name, ()) is not None


@pytest.mark.parametrize(
    "name", ["llama-3-8b-", "llama-3-8b-dp0", "llama-3-8b-pp4tp2", "vgg19-dp4-dp4", "-dp4", "x-dp4"]
)
def test_other_names_are_still_unknown(name: str) -> None:
    with pytest.raises(InputError, match=r"unknown profile|not a valid profile name"):
        load_named(name, ())


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, 5.0]), min_size=1, max_size=6).map(tuple), st.data())
def test_stages_are_as_balanced_as_possible(work: tuple[float, ...], data: st.DataObject) -> None:
    """Compared with all possible cuts."""
    from itertools import combinations

    widths = tuple(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=len(work))))
    ways = [(*cuts, len(work)) for cuts in combinations(range(1, len(work)), len(widths) - 1)]

    def slowest(ends: tuple[int, ...]) -> float:
        amounts = [sum(work[a:b]) / k for a, b, k in zip((0, *ends), ends, widths, strict=False)]
        return max(amounts) if min(amounts) > 0 else float("inf")

    best = min(map(slowest, ways))
    if best == float("inf"):
        with pytest.raises(ValueError, match="cannot be cut"):
            balanced_ends(work, widths)
    else:
        found = balanced_ends(work, widths)
        assert slowest(found) == best


def test_many_stages_do_not_exceed_the_recursion_limit() -> None:
    """With a lower limit than usual: the time grows with the third power of the number of stages."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 60)
    try:
        assert len(balanced_ends((1.0,) * 130, (1,) * 110)) == 110
    finally:
        sys.setrecursionlimit(usual)
    assert even_cut(load_uncut("gpt-175b", ()), 8, 96, 1).gpus == 768
