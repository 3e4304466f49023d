"""Profile files: valid contents, and error messages."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.core.job import AllReduce, JobProfile, Overlap, Pipeline, Stage
from slurm_asrpt.errors import InputError, printable
from slurm_asrpt.profile.header import Head, Provenance
from slurm_asrpt.profile.schema import (
    LIBRARY,
    ProfileFile,
    find_profile,
    format_profile,
    library_names,
    load_file,
    load_profile,
    parse_file,
)

GOOD = """
version = 1
name = "two-stages"
model = "a test"
batch = 8
allreduce = "tree"
device = "none"
date = 2026-11-21
[provenance]
kind = "measured"
origin = "made up"
formula = "none"
[software]
torch = "2.13.0"
[[stage]]
replicas = 2
forward_s = 0.5
backward_s = 1
bytes_in = 0
bytes_out = 300
param_bytes = 1e6
[[stage]]
replicas = 3
forward_s = 0.25
backward_s = 0.5
bytes_in = 200
bytes_out = 0
param_bytes = 0
"""


def test_a_valid_file_gives_a_profile() -> None:
    profile = parse_file(GOOD, "here").profile
    assert profile == JobProfile(
        "two-stages", (Stage(2, 0.5, 1.0, 0.0, 300.0, 1e6), Stage(3, 0.25, 0.5, 200.0, 0.0, 0.0)), AllReduce.TREE
    )
    assert profile.gpus == 5


def test_other_keys_of_the_file_are_kept() -> None:
    document = parse_file(GOOD, "here")
    assert (document.head.model, document.head.batch, document.head.device) == ("a test", 8, "none")
    assert document.head.provenance == Provenance("measured", "made up", "none")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("version = 1", "version = 2", "version: this release reads version 1"),
        ("version = 1", "version = true", "version: must be a whole number"),
        ('name = "two-stages"', "", "name: missing"),
        ('"two-stages"', '"../../etc/passwd"', "name: must match"),
        ('"two-stages"', '"-rf"', "name: must match"),
        ('"two-stages"', '"a\\n"', "name: must match"),
        ('"two-stages"', f'"{"a" * 65}"', "name: must match"),
        ('allreduce = "tree"', 'allreduce = "star"', "must be one of ring, tree"),
        ('kind = "measured"', 'kind = "guessed"', "provenance.kind: must be one of analytic, measured"),
        ('origin = "made up"', 'origin = " "', "provenance.origin: must be a text"),
        ("batch = 8", "bacth = 8", "bacth: unknown key; did you mean batch?"),
        ("batch = 8", "batch = 0", "batch: must be a whole number of at least 1"),
        ("batch = 8", f"batch = -{'9' * 3000}", "found a huge number"),
        ("replicas = 3", "replicas = 2.5", "stage 2: replicas: must be a whole number"),
        ("replicas = 3", "replicas = 1000000", "more than 100000 GPUs"),
        ("forward_s = 0.25", "forward_s = nan", "stage 2: forward_s: must be a finite number"),
        ("forward_s = 0.25", "forward_s = -1", "stage 2: forward_s: must be a finite number"),
        ("forward_s = 0.25", f"forward_s = {'9' * 400}", "stage 2: forward_s: must be a finite number"),
        ("forward_s = 0.25", 'forward_s = "1"', "stage 2: forward_s: must be a finite number"),
        ("forward_s = 0.25\nbackward_s = 0.5", "forward_s = 0\nbackward_s = 0", "an iteration takes time"),
        ("bytes_in = 200", "bytes_in = 300", "stage 2: bytes_in: 900 bytes enter (3 replicas together) but"),
        ("bytes_in = 0", "bytes_in = 1", "stage 1: bytes_in: must be 0, no stage comes before"),
        ("bytes_out = 0", "bytes_out = 1", "stage 2: bytes_out: must be 0, no stage comes after"),
        ("bytes_in = 200", "bytes_inn = 200", "stage 2: bytes_inn: unknown key; did you mean bytes_in?"),
        ("[provenance]", "[provenance", "invalid TOML"),
        ("batch = 8", f"batch = {'[' * 5000}", "invalid TOML"),
    ],
)
def test_an_invalid_file_is_reported_with_its_place(old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(InputError) as caught:
        parse_file(GOOD.replace(old, new), "site.toml")
    assert str(caught.value).startswith("site.toml: ")
    assert said in str(caught.value)


EXTENDED = """
version = 1
name = "moe-tp2"
model = "a test"
batch = 8
allreduce = "ring"
device = "none"
date = 2026-11-21
tensor = 2
pipeline = "synchronous"
micro_batches = 4
[overlap]
backward = 1.25
allreduce = 0.5
[provenance]
kind = "measured"
origin = "made up"
formula = "none"
[software]
torch = "2.13.0"
[[stage]]
replicas = 3
forward_s = 0.5
backward_s = 1
bytes_in = 0
bytes_out = 0
param_bytes = 1e6
tensor_bytes = 2e6
routed_bytes = 3e6
routing = [0.5, 0.25, 0.25]
"""


def test_optional_keys_are_read_and_written() -> None:
    profile = parse_file(EXTENDED, "here").profile
    stage = Stage(3, 0.5, 1.0, 0.0, 0.0, 1e6, 2e6, 3e6, (0.5, 0.25, 0.25))
    overlap = Overlap(backward=1.25, allreduce=0.5)
    assert profile == JobProfile("moe-tp2", (stage,), AllReduce.RING, 2, Pipeline.SYNCHRONOUS, 4, overlap)
    assert profile.gpus == 6
    assert parse_file(format_profile(parse_file(EXTENDED, "here")), "again") == parse_file(EXTENDED, "here")


def test_missing_optional_keys_are_not_written() -> None:
    text = format_profile(parse_file(GOOD, "here"))
    assert not any(key in text for key in ("tensor", "pipeline", "micro_batches", "overlap", "routed", "routing"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tensor = 2", "tensor = 0", "tensor: must be a whole number of at least 1"),
        ("tensor = 2", "tensor = 2.0", "tensor: must be a whole number of at least 1"),
        ("tensor = 2", "tensor = 50000", "more than 100000 GPUs in all"),
        ("tensor = 2", f"tensor = {'9' * 3000}", "more than 100000 GPUs in all"),
        ("tensor = 2", "", "stage 1: tensor_bytes: requires tensor slices"),
        ('"synchronous"', '"sometimes"', "pipeline: must be one of asynchronous, synchronous"),
        ('"synchronous"', "1", "pipeline: must be a text"),
        ('pipeline = "synchronous"', "", "micro_batches: requires a synchronous pipeline"),
        ("micro_batches = 4", "micro_batches = 1000001", "micro_batches: must be at most 1000000"),
        ("micro_batches = 4", "micro_batches = -1", "micro_batches: must be a whole number"),
        ("backward = 1.25", "backward = -1", "overlap.backward: must be a finite number of at least 0"),
        ("backward = 1.25", "backward = 11", "overlap.backward: must be a factor of at most 10"),
        ("backward = 1.25", "backwards = 1", "overlap.backwards: unknown key; did you mean backward?"),
        ("[overlap]\nbackward = 1.25\nallreduce = 0.5", "overlap = 1", "overlap: must be a table"),
        ("tensor_bytes = 2e6", "tensor_bytes = inf", "tensor_bytes: must be a finite number"),
        ("routed_bytes = 3e6", "routed_bytes = -1", "routed_bytes: must be a finite number"),
        ("routing = [0.5, 0.25, 0.25]", "", "routed_bytes: needs routing"),
        ("[0.5, 0.25, 0.25]", "[0.5, 0.5]", "routing: must be 3 numbers from 0 to 1 that sum to 1"),
        ("[0.5, 0.25, 0.25]", "[0.5, 0.25, 0.2]", "routing: must be 3 numbers"),
        ("[0.5, 0.25, 0.25]", "[1.5, -0.25, -0.25]", "routing: must be 3 numbers"),
        ("[0.5, 0.25, 0.25]", "[nan, 0.5, 0.5]", "routing: must be 3 numbers"),
        ("[0.5, 0.25, 0.25]", '["1", 0, 0]', "routing: must be 3 numbers"),
        ("[0.5, 0.25, 0.25]", "0.5", "routing: must be 3 numbers"),
    ],
)
def test_an_invalid_optional_key_is_reported_with_its_place(old: str, new: str, said: str) -> None:
    assert old in EXTENDED
    with pytest.raises(InputError) as caught:
        parse_file(EXTENDED.replace(old, new), "site.toml")
    assert str(caught.value).startswith("site.toml: ")
    assert said in str(caught.value)


shares = st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any)


@given(
    shares,
    st.sampled_from([1, 2, 8]),
    st.one_of(st.just((Pipeline.ASYNCHRONOUS, 1)), st.tuples(st.just(Pipeline.SYNCHRONOUS), st.integers(1, 64))),
    st.floats(0, 10),
    st.floats(0, 10),
    st.booleans(),
)
def test_every_profile_survives_a_round_trip(weights, tensor, schedule, backward, allreduce, experts) -> None:  # type: ignore[no-untyped-def]
    routing = tuple(weight / sum(weights) for weight in weights) if experts else ()
    stage = Stage(len(weights), 1.0, 1.0, 0.0, 0.0, 1e9, 1e6 if tensor > 1 else 0.0, 1e5 if experts else 0.0, routing)
    profile = JobProfile("n", (stage,), AllReduce.TREE, tensor, *schedule, Overlap(backward, allreduce))
    document = ProfileFile(profile, Head("n", "m", 4, "d", Provenance("analytic", "o", "f")))
    again = parse_file(format_profile(document), "x").profile
    close = JobProfile(
        "n", (replace(stage, routing=again.stages[0].routing),), AllReduce.TREE, tensor, *schedule, again.overlap
    )
    assert again == close
    assert again.stages[0].routing == pytest.approx(routing, abs=1e-8)
    assert (again.overlap.backward, again.overlap.allreduce) == pytest.approx((backward, allreduce), rel=1e-8)


def test_stage_and_provenance_must_be_tables() -> None:
    head = GOOD[: GOOD.index("[provenance]")]
    with pytest.raises(InputError, match=r"provenance: must be a table"):
        parse_file(head + "provenance = 1\n" + GOOD[GOOD.index("[[stage]]") :], "x")
    provenance = GOOD[GOOD.index("[provenance]") : GOOD.index("[[stage]]")]
    with pytest.raises(InputError, match=r"stage: must be one or more tables; write \[\[stage\]\]"):
        parse_file(head + "stage = []\n" + provenance, "x")


texts = st.text(min_size=1).filter(lambda text: bool(text.strip()))
figures = st.floats(min_value=0, max_value=1e20)


@given(texts, texts, texts, st.sampled_from(AllReduce), st.lists(figures, min_size=3, max_size=3))
def test_what_is_written_is_read_again(
    model: str, origin: str, device: str, allreduce: AllReduce, numbers: list[float]
) -> None:
    stages = (Stage(1, 1.0 + numbers[0], numbers[1], 0.0, 0.0, numbers[2]),)
    document = ProfileFile(
        JobProfile("n", stages, allreduce), Head("n", model, 4, device, Provenance("analytic", origin, "f"))
    )
    again = parse_file(format_profile(document, "made\nby a test"), "x")
    assert again.head == document.head
    assert again.profile.stages[0].param_bytes == pytest.approx(numbers[2], rel=1e-8)


@given(st.text())
def test_any_text_is_a_profile_or_an_input_error(text: str) -> None:
    with pytest.raises(InputError):
        parse_file(text, "x")


def test_a_site_directory_has_precedence_over_the_library(tmp_path: Path) -> None:
    (tmp_path / "vgg19-dp4.toml").write_text(GOOD)
    assert find_profile("vgg19-dp4", [tmp_path / "absent", tmp_path]).parent == tmp_path
    assert find_profile("vgg19-dp4", []).parent == LIBRARY
    assert load_profile("vgg19-dp4", [tmp_path]).name == "two-stages"


def test_an_unknown_name_is_reported_with_similar_ones(tmp_path: Path) -> None:
    (tmp_path / "vgg19-dp44.toml").write_text(GOOD)
    with pytest.raises(InputError, match=r"unknown profile vgg19-dp5; did you mean .*vgg19-dp44"):
        load_profile("vgg19-dp5", [tmp_path])
    with pytest.raises(InputError, match=r"known: "):
        load_profile("zzzzzzzzz", [])


@pytest.mark.parametrize("name", ["", "..", ".hidden", "-x", "a b", "$(id)", "a;b", "\x1b[31m", "a" * 65, "a\n", "é"])
def test_an_invalid_name_is_rejected(name: str) -> None:
    with pytest.raises(InputError, match="is not a valid profile name") as caught:
        load_profile(name, [])
    assert printable(str(caught.value)) == str(caught.value)


def test_names_never_refer_to_files_outside_the_directories(tmp_path: Path) -> None:
    (tmp_path / "outside.toml").write_text(GOOD)
    with pytest.raises(InputError, match="is not a valid profile name"):
        find_profile("../outside", [tmp_path / "inside"])


def test_a_path_is_read_as_a_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert load_file(str(path), []).profile.name == "two-stages"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"mine\.toml: not UTF-8"):
        load_file(str(path), [])
    path.write_text("#" * (1 << 21))
    with pytest.raises(InputError, match="larger than"):
        load_file(str(path), [])
    with pytest.raises(InputError, match="no such file"):
        load_file(str(tmp_path / "absent.toml"), [])
    with pytest.raises(InputError, match="no such file"):
        load_file("/dev/zero", [])


def test_the_schema_needs_only_the_standard_library() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from slurm_asrpt.profile.schema import load_profile, library_names\n"
        "print(load_profile(library_names()[0], []).gpus)\n"
    )
    root = str(Path(__file__).parents[3])
    answer = subprocess.run(
        [sys.executable, "-S", "-I", "-c", code, root], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(answer.stdout) >= 1
    assert library_names()
