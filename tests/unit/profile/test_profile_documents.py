"""Models as blocks: valid files, JSON and TOML, differences, and cuts."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import Pipeline
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.errors import InputError
from slurm_asrpt.profile.blocks import Block, UncutFile
from slurm_asrpt.profile.cut import Cut, cut_file, even_cut, job_profile, make_stage
from slurm_asrpt.profile.documents import (
    differences,
    format_document,
    load_document,
    load_uncut,
    parse_document,
    to_json,
)
from slurm_asrpt.profile.header import Head, Provenance
from slurm_asrpt.profile.schema import library_names, parse_file, uncut_names

GOOD = """\
version = 1
name = "two-blocks"
model = "a test"
batch = 8
device = "none"
date = 2026-11-21
iteration_s = 5.5
[provenance]
kind = "measured"
origin = "made up"
formula = "none"
[software]
torch = "2.13.0"
[[block]]
name = "one"
forward_s = 0.5
backward_s = 1
bytes_out = 300
update_s = 0.25
outliers = 2
param_bytes = 100
grad_bytes = 100
[[block]]
name = "two"
forward_s = 0.25
backward_s = 0.5
bytes_out = 0
param_bytes = 10
expert_bytes = 5
routed_bytes = 7
"""


def document(*blocks: Block, batch: int = 8) -> UncutFile:
    return UncutFile(Head("n", "m", batch, "d", Provenance("analytic", "o", "f")), blocks)


def test_a_valid_file_is_read() -> None:
    found = parse_document(GOOD, "here")
    assert isinstance(found, UncutFile)
    assert found.blocks[0] == Block("one", 0.5, 1.0, 300.0, 0.25, outliers=2, param_bytes=100.0, grad_bytes=100.0)
    assert (found.head.software, str(found.head.date), found.iteration_s) == ({"torch": "2.13.0"}, "2026-11-21", 5.5)
    assert found.seconds == 2.5


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("date = 2026-11-21\n", "", "date: missing; a measured profile says when"),
        ('[software]\ntorch = "2.13.0"\n', "", "software: missing; a measured profile"),
        ("2026-11-21", '"today"', "line 6: date: must be a date such as 2026-11-21"),
        ('"2.13.0"', "2.13", "line 13: software.torch: must be a text"),
        ("forward_s = 0.25", "forward_s = -1", "line 25: block 2: forward_s: must be a finite number"),
        ("bytes_out = 0", "", "line 23: block 2: bytes_out: missing"),
        ("outliers = 2", "outliers = 1.5", "line 20: block 1: outliers: must be a whole number of at least 0"),
        ("update_s", "updates", "line 19: block 1: updates: unknown key; did you mean update_s?"),
        ("expert_bytes = 5", "expert_bytes = 50", "block 2: expert_bytes: must not exceed param_bytes"),
        ("routed_bytes = 7\n", "", "block 2: expert_bytes: needs routed_bytes"),
        ("batch = 8", "batch = 8\nallreduce = 1", "line 5: allreduce: unknown key"),
    ],
)
def test_an_invalid_file_is_reported_with_line_field_and_remedy(old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(InputError) as caught:
        parse_document(GOOD.replace(old, new), "site.toml")
    assert str(caught.value).startswith(f"site.toml: {said}") if said.startswith("line") else said in str(caught.value)


def test_an_invalid_stage_file_is_reported_with_its_line() -> None:
    text = format_document(
        cut_file(document(Block("a", 1.0, 1.0, 5.0), Block("b", 1.0, 1.0, 5.0)), Cut((1, 2), (1, 1)))
    )
    lines = text.replace("bytes_in = 5", "bytes_in = 6").splitlines()
    with pytest.raises(
        InputError, match=f"x: line {lines.index('bytes_in = 6') + 1}: stage 2: bytes_in: 6 bytes enter"
    ):
        parse_document("\n".join(lines), "x")


def test_an_uncut_model_is_not_a_job_profile() -> None:
    with pytest.raises(InputError, match="not cut yet; cut it with asrpt-profile plan or convert"):
        parse_file(GOOD, "x")


@pytest.mark.parametrize("name", [*uncut_names(), *library_names()[::9]])
def test_every_shipped_profile_is_equal_as_json(name: str) -> None:
    found = load_document(name, [])
    assert parse_document(to_json(found), "x") == parse_document(format_document(found), "x")
    assert found.head.provenance.origin
    assert found.head.provenance.formula


@pytest.mark.parametrize(
    "text", ["{", "{}", '{"block": 1}', '{"version": 1, "block": [{}]}', "[" * 5000, '{"a":' * 5000]
)
def test_any_json_is_a_profile_or_an_input_error(text: str) -> None:
    with pytest.raises(InputError, match=r"^x: "):
        parse_document(text, "x")


def test_a_cut_profile_is_rejected_if_blocks_are_needed() -> None:
    assert load_uncut("bert-large", []).head.model == "BERT-large"
    with pytest.raises(InputError, match="is already cut into stages"):
        load_uncut("bert-large-dp2", [])


figures = st.floats(0, 1e15)
blocks = st.builds(
    Block,
    name=st.text(min_size=1).filter(str.strip),
    forward_s=st.floats(1e-9, 1e3),
    backward_s=figures,
    bytes_out=figures,
    update_s=figures,
    outliers=st.integers(0, 1000),
    kept_bytes=figures,
    param_bytes=figures,
    tensor_bytes=figures,
)


@given(st.lists(blocks, min_size=1, max_size=3), figures)
def test_what_is_written_is_read_again(some: list[Block], whole: float) -> None:
    made = dataclasses.replace(document(*some), iteration_s=whole)
    again = parse_document(format_document(made), "x")
    assert isinstance(again, UncutFile)
    assert differences(again, parse_document(to_json(again), "x")) == []
    assert [b.name for b in again.blocks] == [b.name for b in some]
    assert again.blocks[0].backward_s == pytest.approx(some[0].backward_s, rel=1e-8)


def test_differences_name_their_block() -> None:
    one = document(Block("a", 1.0, 2.0, 3.0), Block("b", 1.0, 2.0, 3.0))
    two = document(Block("a", 1.0, 2.0, 3.0), Block("b", 1.5, 2.0, 3.0, update_s=1.0))
    assert differences(one, one) == []
    assert differences(one, two) == [("block 2.forward_s", 1, 1.5), ("block 2.update_s", None, 1)]


def test_a_stage_has_its_share_of_the_blocks() -> None:
    """By hand: two replicas of two tensor slices of a sliced and an unsliced block."""
    sliced = Block("s", 4.0, 8.0, 100.0, update_s=2.0, grad_bytes=60.0, param_bytes=60.0, tensor_bytes=40.0)
    whole = Block("w", 1.0, 2.0, 50.0, grad_bytes=10.0, param_bytes=10.0)
    stage = make_stage((sliced, whole), 0, 2, replicas=2, tensor=2)
    assert stage.forward_s == 4 / 2 / 2 + 1 / 2
    assert stage.backward_s == 8 / 2 / 2 + 2 / 2 + 2 / 2
    assert stage.param_bytes == 60 + 2 * 10
    assert (stage.bytes_in, stage.bytes_out, stage.tensor_bytes) == (0.0, 0.0, 20.0)
    assert make_stage((sliced, whole), 1, 2, replicas=1, tensor=1).bytes_in == 100.0


def test_a_stage_takes_as_long_as_the_host_launches_it() -> None:
    """The GPU's own time is shared by replicas; what the host launches for each of them is not."""
    block = Block("b", 1.0, 2.0, 8.0, update_s=1.0, launch_s=2.0)
    alone, shared = (make_stage((block,), 0, 1, replicas=k, tensor=1) for k in (1, 4))
    assert (alone.forward_s, alone.backward_s) == (1.0, 3.0)
    assert shared.forward_s + shared.backward_s == pytest.approx(2.0)
    assert shared.forward_s / shared.backward_s == pytest.approx(0.25 / 1.5)
    pieces = make_stage((block,), 0, 1, replicas=1, tensor=1, micro_batches=4)
    assert pieces.forward_s + pieces.backward_s == pytest.approx(8.0)
    assert document(block, replace(block, launch_s=9.0)).seconds == 11.0
    assert document(block, block).seconds == 8.0


def test_experts_are_not_all_reduced_and_tied_weights_are_copied() -> None:
    block = Block("e", 1.0, 1.0, 1.0, param_bytes=100, grad_bytes=50, expert_bytes=80, routed_bytes=12, tied_bytes=7)
    stage = make_stage((block, block), 1, 2, replicas=4, tensor=1)
    assert stage.param_bytes == pytest.approx(10 + 7)
    assert (stage.routed_bytes, stage.routing) == (3.0, (0.25,) * 4)
    assert make_stage((block, block), 0, 1, replicas=4, tensor=1).param_bytes == pytest.approx(10)


def test_one_replica_takes_the_total_time_of_its_blocks() -> None:
    for name in uncut_names():
        found = load_uncut(name, [])
        profile = job_profile(found, even_cut(found, 1, 1, 1), "n")
        assert iteration_time(profile, [0], [8], Fabric(1e9, 1e9)) == pytest.approx(found.seconds)


def test_cut_profiles_have_names_and_provenance() -> None:
    found = load_uncut("llama-3-8b", [])
    cut = even_cut(found, 4, 2, 2)
    made = cut_file(found, cut)
    assert (made.profile.name, made.profile.gpus, made.profile.tensor) == ("llama-3-8b-tp4pp2dp2", 16, 4)
    assert (made.profile.pipeline, made.profile.micro_batches) == (Pipeline.SYNCHRONOUS, 8)
    assert "stages end after layer1" in made.head.provenance.formula
    assert Cut((3, 9), (7, 1)).suffix == "pp2dp7-1"
    assert Cut((9,), (1,)).suffix == "1gpu"
    with pytest.raises(ValueError, match="cannot be split over 64 replicas"):
        even_cut(found, 1, 1, 64)
