"""Which submissions are the same recurring job."""

from __future__ import annotations

import pytest

from slurm_asrpt.config import GroupSettings
from slurm_asrpt.predict.group import CLIP_BYTES, Hints, group_id, parse_comment

RULES = GroupSettings()
SCRIPT = b"#!/bin/bash\n#SBATCH -J train\nmodule load cuda\npython train.py --epochs 20\n"


def gid(
    script: bytes = SCRIPT, name: bytes = b"train", uid: int = 1000, args: tuple[bytes, ...] = (), dataset: bytes = b"",
    rules: GroupSettings = RULES,
) -> str:  # fmt: skip
    return group_id(uid, name, script, args, dataset, rules)


@pytest.mark.parametrize(
    "same",
    [
        SCRIPT.replace(b"\n", b"\r\n"),
        SCRIPT[:-1],
        SCRIPT + b"\n\n  \n",
        SCRIPT.replace(b"-J train", b"-J train -o out-%j --time 3:00"),
        SCRIPT.replace(b"module", b"  # today's try\n\tmodule"),
        b"#!/bin/zsh\nmodule load cuda  \n  python train.py --epochs 20",
    ],
)
def test_same_job_again(same: bytes) -> None:
    assert gid(same) == gid()


def test_other_jobs() -> None:
    others = {
        gid(SCRIPT.replace(b"20", b"21")), gid(name=b"other"), gid(uid=1001), gid(args=(b"x",)), gid(args=(b"",)),
        gid(dataset=b"c4"), gid(b""), gid(SCRIPT.replace(b"module load", b"module  load")),
    }  # fmt: skip
    assert len(others) == 8
    assert gid() not in others


def test_digits_in_names() -> None:
    assert gid(name=b"train-17-b2") == gid(name=b"train-018-b3") != gid(name=b"train-b2")
    plain = GroupSettings(fold_digits=False)
    assert gid(name=b"train-17", rules=plain) != gid(name=b"train-18", rules=plain)


def test_rules_are_settings() -> None:
    kept = GroupSettings(strip_comments=False)
    assert gid(SCRIPT + b"# x\n", rules=kept) != gid(rules=kept)
    ignoring = GroupSettings(ignore_lines=["export RUN_ID="])
    assert gid(SCRIPT + b" export RUN_ID=7\n", rules=ignoring) == gid(rules=ignoring)
    assert gid(args=(b"a",), rules=GroupSettings(arguments=False)) == gid(rules=GroupSettings(arguments=False))


def test_of_a_long_script_both_ends_and_the_length_count() -> None:
    middle = b"echo 0123456789\n" * (CLIP_BYTES // 4)
    long = b"head 1\n" + middle + b"tail 1\n"
    assert gid(long) == gid(long)
    assert gid(long) != gid(long.replace(b"head 1", b"head 2"))
    assert gid(long) != gid(long.replace(b"tail 1", b"tail 2"))
    assert gid(long) != gid(b"head 1\n" + middle + b"echo\ntail 1\n")


def test_the_hash_does_not_change() -> None:
    """A changed id would make every group unseen: figures of the first release."""
    assert group_id(1000, b"train-17", b"#!/bin/sh\n  a b \n#x\n", [b"x"], b"", RULES) == "9e307463a6fbdc77"
    assert group_id(0, b"", b"x" * 100000, [], b"", RULES) == "fc995dc5191cb736"


def test_many_similar_scripts_do_not_collide() -> None:
    assert len({gid(b"python t.py --seed %d" % seed) for seed in range(20000)}) == 20000


@pytest.mark.parametrize(
    ("comment", "hints"),
    [
        (b"", Hints()),
        (b"nothing for asrpt", Hints()),
        (b"asrpt:profile=gpt2", Hints(profile="gpt2")),
        (b"my run asrpt:profile=gpt2,dataset=c4 more", Hints("gpt2", "c4")),
        (b"x;asrpt:off;y", Hints(off=True)),
        (b"xasrpt:off", Hints()),
        (b"asrpt:profile=../x", Hints(complaints=(b"profile=../x",))),
        (b"asrpt:profile=" + b"x" * 65, Hints(complaints=(b"profile=" + b"x" * 65,))),
        (b"asrpt:speed=9,dataset=a", Hints(dataset="a", complaints=(b"speed=9",))),
    ],
)
def test_hints(comment: bytes, hints: Hints) -> None:
    assert parse_comment(comment) == hints
