"""The hook gives the same results on every Lua: groups, keys, hints and lookups, byte for byte.

The tools run the hook's file on the Lua of lupa; slurmctld may link another version.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.hook import table
from slurm_asrpt.hook.attachments import GROUP, JOB_NAME, Attachments, attach
from slurm_asrpt.hook.group import Identity, attached, describe, keys_of, parse_comment
from slurm_asrpt.hook.hook_conf import render_hook_conf
from slurm_asrpt.hook.table import Answer, Entry
from slurm_asrpt.hook.tag import render_features
from slurm_asrpt.profile.sizes import NO_SIZES
from tests.benches import job_scripts
from tests.benches.lua_hook import INTERPRETERS, LuaHook
from tests.examples import examples

pytestmark = pytest.mark.skipif(not INTERPRETERS, reason="no lua5.1, lua5.3 or lua5.4 on PATH")

PART_BYTES, LONG, TAIL_BYTES, HEAD_BYTES = 2048, 16384, 8192, 32768  # limits of what the hook reads of a script
MANY = settings(max_examples=examples(5000), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SOME = settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

PIECES = b"\n|\r\n|#| |\t|\x0b|\x0c|\0|\xff|\xc2\xa0|\x1c|\x85|train.py|#SBATCH -J x|--output|%d|%|[".split(b"|")
PIECES += b"# comment\n|#!/bin/sh\n|1795|2026-11-21|2026-11-21_12:30:00|1795257166|20260230|1e400|\\\n|;".split(b"|")
PIECES += b"&&|>|2>&1|>>|'|\"|=|-|--|.|/|1.2.3|@12:30|-0|9|xxxxxxxxxxxxx".split(b"|")
WORDS = b"""srun -n 8 --ntasks=4 python python3.11 -m torch.distributed.run torchrun --nproc_per_node 2
--nnodes=2 --nnodes $N --tensor-model-parallel-size 4 --pipeline_model_parallel_size=2 --tensor-model-parallel-size=$T
accelerate launch deepspeed --num_gpus 8
mpirun --mca a b -x A=b -np singularity exec image.sif env nice time timeout 60 bash
./run.sh train.py
pkg.train --epochs 90 --epochs=1e2 --max-steps -1 --lr 1e-4 --lr=0.1 -lr .5 --batch-size 1.2.3 lr=3 EPOCHS=9
+trainer.max_epochs=7 --epochs --lr --seed 17 SEED=17 --seed=-1 --seed -o FILE --output-dir=x --run-name "a b" 'c "d e'
f" > log 2>&1 >>x | tee --model resnet50 model.name=x --dataset imagenet data=c4 --flag export A=1 module load cuda cd
echo mkdir runs/20261121 then do fi ; && || & # \\ -- - "" '' "--lr=2" --lr=$LR --epochs=" --seed=" \xff \0""".split()
scripts = st.one_of(
    st.binary(max_size=400),
    st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join),
    st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=30)), max_size=20).map(b"".join),
    st.lists(st.one_of(st.sampled_from([*WORDS, b"\n", b"\\\n"]), st.binary(max_size=5)), max_size=60).map(b" ".join),
)
arguments = st.lists(st.one_of(st.sampled_from(WORDS), st.binary(max_size=20)), max_size=6)
DEFAULTS = GroupSettings()
some_rules = st.builds(
    GroupSettings,
    strip_comments=st.booleans(),
    fold_digits=st.booleans(),
    fold_dates=st.booleans(),
    arguments=st.booleans(),
    ignore_lines=st.lists(st.sampled_from(["--output", "%d", "[", "x", "é"]), max_size=2),
    features=st.lists(st.sampled_from(["epochs e", "a-B lr", "lr LR learning_rate", *DEFAULTS.features]), max_size=9),
    ignore_options=st.lists(st.sampled_from(["seed", "Output-Dir", "lr", "o"]), max_size=3),
    ignore_commands=st.lists(st.sampled_from(["echo", "python", "srun", "tee"]), max_size=3),
    setup_commands=st.lists(st.sampled_from(["cd", "python", "["]), max_size=2),
    launchers=st.lists(st.sampled_from([*DEFAULTS.launchers, "cd/x*3 a=2"]), max_size=20),
    sizes=st.lists(st.sampled_from([*DEFAULTS.sizes, "tp lr seed", "pp n x", "nodes"]), max_size=4),
)
rules_of = st.one_of(st.just(DEFAULTS), some_rules)
HINTS = [
    b"asrpt:",
    b"profile=",
    b"dataset=",
    b"interrupt=",
    b"interrupt=off",
    b"USR1",
    b"B:",
    b"off",
    b",",
    b";",
    b" ",
    b"a",
    b"gpt-2",
    b"=",
    b"\0",
    b"\n",
    b"-",
]
plain_words = st.text("abc \n\0é", max_size=20).map(str.encode)
groups = st.binary(min_size=8, max_size=8).map(bytes.hex)
figures = st.one_of(st.floats(0, 1e13), st.integers(0, 10**6).map(lambda i: i / 1000))
entries = st.builds(Entry, figures, figures, figures, st.sampled_from("-es"), figures)
tables = st.dictionaries(groups, entries, max_size=30)
features = st.dictionaries(st.sampled_from(["epochs", "steps"]), st.floats(-1e3, 1e14).map(float))


@pytest.fixture(scope="module")
def luas() -> Iterator[list[LuaHook]]:
    hooks = [LuaHook(name) for name in INTERPRETERS]
    yield hooks
    for hook in hooks:
        hook.close()


def described_by_all(
    luas: list[LuaHook],
    script: bytes,
    args: list[bytes],
    name: bytes = b"",
    rules: GroupSettings = DEFAULTS,
    uid: int = 7,
    dataset: bytes = b"",
) -> Identity:
    """The tools' description of a job, checked to be the same on each Lua."""
    found = describe(uid, name, script, args, dataset, rules)
    for lua in luas:
        assert lua.describe(uid, name, script, args, dataset, rules) == found
    return found


@MANY
@given(
    uid=st.integers(0, 2**32 - 1),
    name=st.binary(max_size=30),
    script=scripts,
    args=arguments,
    dataset=st.binary(max_size=10),
    rules=rules_of,
)
def test_same_group(
    luas: list[LuaHook], uid: int, name: bytes, script: bytes, args: list[bytes], dataset: bytes, rules: GroupSettings
) -> None:
    described_by_all(luas, script, args, name, rules, uid, dataset)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(st.one_of(scripts, st.binary(min_size=1, max_size=50)), min_size=1, max_size=4),
    size=st.one_of(
        *(st.integers(n - 40, n + 40) for n in (PART_BYTES, 2 * PART_BYTES, LONG, LONG + TAIL_BYTES, HEAD_BYTES)),
        st.integers(0, 1 << 20),
    ),
    end=scripts,
)
def test_same_group_for_long_scripts(luas: list[LuaHook], pieces: list[bytes], size: int, end: bytes) -> None:
    piece = b"".join(pieces) or b"x"
    script = (piece * (size // len(piece) + 1))[:size] + end
    described_by_all(luas, script, [script[:99], script, b"--epochs", b"3"])


@settings(max_examples=examples(1500), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(training=job_scripts.trainings, data=st.data())
def test_realistic_scripts(luas: list[LuaHook], training: job_scripts.Training, data: st.DataObject) -> None:
    script = data.draw(job_scripts.submission_of(training))
    found = described_by_all(luas, script, training.arguments(), b"train")
    assert found.features == {name: float(value) for name, value in training.numbers.items()}


@settings(max_examples=examples(300), deadline=None)
@given(training=job_scripts.trainings, other=job_scripts.trainings, data=st.data())
def test_which_differences_split_a_group(
    training: job_scripts.Training, other: job_scripts.Training, data: st.DataObject
) -> None:
    """Program, model and dataset split a group; comments, seeds, outputs, dates, GPUs and hyperparameters do not."""

    def submitted(job: job_scripts.Training) -> Identity:
        found = describe(7, b"train", data.draw(job_scripts.submission_of(job)), [], b"", DEFAULTS)
        return replace(found, sizes=NO_SIZES)  # options of launchers, which do not count

    one = submitted(training)
    assert submitted(training) == one
    assert submitted(replace(training, numbers=other.numbers, options=other.options)).group == one.group
    for change in ("program", "model", "dataset"):
        changed = replace(training, **{change: getattr(other, change)})
        found = submitted(changed)
        assert (found.group == one.group) == (changed == training)
        assert (found.program == one.program) == (changed.program == training.program)


@pytest.mark.parametrize(
    "script", [b"", b"\n", b"#!/bin/sh", b"\0", b"x", b" \t\r", b"\xff" * (1 << 20), b"\n" * 99999, b"a " * (1 << 19)]
)
def test_same_group_at_the_limits(luas: list[LuaHook], script: bytes) -> None:
    described_by_all(luas, script, [])


@SOME
@given(job=st.tuples(groups, st.one_of(st.just(""), groups)), uid=st.integers(0, 2**32), gpus=st.integers(0, 9999))
def test_same_keys(luas: list[LuaHook], job: tuple[str, str], uid: int, gpus: int) -> None:
    wanted = {"lr": 1e-05, "epochs": 90.0}
    expected = " ".join(level[0] + key for level, key in keys_of(*job, uid, gpus, wanted)).encode()
    assert {lua.ask("keys", *job, uid, gpus, render_features(wanted)) for lua in luas} == {expected}


def found_by_all(luas: list[LuaHook], path: Path, keys: list[str], wanted: dict[str, float]) -> tuple[Answer, str]:
    """The tools' lookup, checked to be the same on each Lua."""
    found = table.lookup(path, [(str(i), key) for i, key in enumerate(keys, 1)], wanted)
    assert [lua.lookup(path, keys, wanted) for lua in luas] == [found] * len(luas)
    return found


@SOME
@given(predictions=tables, others=st.lists(groups, max_size=5), wanted=features, data=st.data())
def test_same_lookup_in_a_table(
    luas: list[LuaHook],
    tmp_path: Path,
    predictions: dict[str, Entry],
    others: list[str],
    wanted: dict[str, float],
    data: st.DataObject,
) -> None:
    path = tmp_path / "table.txt"
    path.write_bytes(table.render_table(predictions))
    stored = table.read_table(path)
    assert stored.keys() == predictions.keys()
    for key in [*predictions, *others]:
        chain = [*data.draw(st.lists(st.sampled_from([*predictions, *others]), max_size=4)), key]
        found = found_by_all(luas, path, chain, wanted)
        levels = [(str(i), key) for i, key in enumerate(chain, 1)]
        assert found == (table.answer(levels, wanted, stored.get), "")


@SOME
@given(
    predictions=tables.filter(bool),
    at=st.integers(0, 1000),
    junk=st.binary(min_size=1, max_size=80),
    cut=st.booleans(),
)
def test_same_lookup_in_a_damaged_table(
    luas: list[LuaHook], tmp_path: Path, predictions: dict[str, Entry], at: int, junk: bytes, cut: bool
) -> None:
    path = tmp_path / "table.txt"
    whole = table.render_table(predictions)
    at %= len(whole)
    path.write_bytes(whole[:at] + junk + (b"" if cut else whole[at + len(junk) :]))
    for group in predictions:
        found, trouble = found_by_all(luas, path, [group], {})
        assert found == Answer() or not trouble


def test_a_table_of_another_format_or_without_an_end_line_is_rejected(luas: list[LuaHook], tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    path.write_text("asrpt-table 2 0".ljust(table.RECORD - 1) + "\n")
    assert found_by_all(luas, path, ["0" * 16], {}) == (Answer(), "table.txt is damaged: format 2, not 5")
    header = "asrpt-table 4 1 5000 500000 500000".ljust(table.RECORD - 1) + "\n"
    path.write_text(header + 5000 * f"{'1' * 16} {'1' * 15} {'1' * 15} {'1' * 15} {'1' * 15} -\n")
    assert found_by_all(luas, path, ["0" * 16], {}) == (Answer(), "table.txt is damaged: no blank")


@SOME
@given(comment=st.one_of(st.binary(max_size=60), st.lists(st.sampled_from(HINTS), max_size=12).map(b"".join)))
def test_same_hints(luas: list[LuaHook], comment: bytes) -> None:
    hints = parse_comment(comment)
    told = (hints.profile, hints.dataset, hints.interrupt, str(hints.off).lower(), len(hints.complaints))
    expected = " ".join(map(str, told)).encode()
    assert {lua.ask("comment", comment) for lua in luas} == {expected}


patterns = st.lists(st.sampled_from(["*", "a", "ab", "%", ".", "-1", "é", "train"]), min_size=1, max_size=6).map(
    "".join
)


@SOME
@given(
    names=st.dictionaries(patterns, st.sampled_from(["p", "q", "vgg19-dp4"]), max_size=5),
    by_group=st.dictionaries(groups, st.just("g.1"), max_size=2),
    name=st.one_of(patterns.map(str.encode), st.binary(max_size=6)),
    data=st.data(),
)
def test_same_profile_attached(
    luas: list[LuaHook], names: dict[str, str], by_group: dict[str, str], name: bytes, data: st.DataObject
) -> None:
    attachments = Attachments()
    for what, profile in names.items():
        attachments = attach(attachments, JOB_NAME, what, profile)
    for what, profile in by_group.items():
        attachments = attach(attachments, GROUP, what, profile)
    group = data.draw(st.sampled_from([*by_group, "0" * 16]))
    profile = attached(attachments, group, name)
    conf = render_hook_conf([], 0, 0, DEFAULTS, attachments)
    for lua in luas:
        lua.ask("rules", conf)
        lua.forget_rules()
        assert lua.ask("attached", group, name).decode() == profile


@SOME
@given(a=plain_words.filter(bool), b=plain_words, name=st.binary(max_size=5))
def test_fields_of_a_key_are_separated(a: bytes, b: bytes, name: bytes) -> None:
    rules = GroupSettings(fold_digits=False)
    ids = {describe(1, name, b"x", [a, b], b"", rules).group, describe(1, name, b"x", [a + b], b"", rules).group}
    ids |= {describe(1, name + a, b"x", [b], b"", rules).group, describe(1, name, b"x", [b], a, rules).group}
    assert len(ids) == 4
