"""Which submissions are the same recurring job."""

from __future__ import annotations

import pytest

from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.hook.group import Hints, describe, parse_comment
from slurm_asrpt.hook.tag import render_features

RULES = GroupSettings()
PART_BYTES = 2048  # bytes that the hook reads from the start and the end of a script
SCRIPT = b"#!/bin/bash\n#SBATCH -J train\nmodule load cuda\npython train.py --epochs 20\n"


def gid(
    script: bytes = SCRIPT, name: bytes = b"train", uid: int = 1000, args: tuple[bytes, ...] = (), dataset: bytes = b"",
    rules: GroupSettings = RULES,
) -> str:  # fmt: skip
    return describe(uid, name, script, args, dataset, rules).group


@pytest.mark.parametrize(
    "same",
    [
        SCRIPT.replace(b"\n", b"\r\n"),
        SCRIPT[:-1],
        SCRIPT + b"\n\n  \n",
        SCRIPT.replace(b"-J train", b"-J train -o out-%j --time 3:00"),
        SCRIPT.replace(b"module", b"  # today's try\n\tmodule"),
        b"#!/bin/zsh\nmodule load cuda  \n  python train.py --epochs 20",
        SCRIPT.replace(b"load cuda", b"load   cuda # a comment"),
        SCRIPT.replace(b"20", b"21"),
        SCRIPT.replace(b"--epochs 20", b"--seed 3 --output-dir=x --num_epochs=1e3 -o 'my file' 2>&1 | tee log"),
        SCRIPT.replace(b"--epochs 20", b"\\\n  --epochs 20 \\\n --run-name a > log"),
        SCRIPT.replace(b"python", b"SEED=1\necho $SEED; date\nexport EPOCHS=9\nsrun -n 8 torchrun --nproc_per_node 8"),
        SCRIPT.replace(b"python", b"time accelerate launch --num_processes 4"),
        SCRIPT.replace(b"python", b"python3.11 -m torch.distributed.run --nnodes=2"),
        SCRIPT.replace(b"python", b"singularity exec --nv -B /data image.sif python -u"),
        SCRIPT.replace(b"python", b"mpirun -np 4 --mca a b /usr/bin/env SEED=1 python"),
    ],
)
def test_same_job_again(same: bytes) -> None:
    assert gid(same) == gid()


def test_other_jobs() -> None:
    others = {
        gid(SCRIPT.replace(b"train.py", b"test.py")), gid(name=b"other"), gid(uid=1001), gid(args=(b"x",)),
        gid(args=(b"",)), gid(dataset=b"c4"), gid(b""), gid(SCRIPT + b"--model x\n"), gid(SCRIPT + b"--model y\n"),
        gid(SCRIPT.replace(b"20", b"$N")), gid(SCRIPT + b"python train.py"), gid(SCRIPT.replace(b"cuda", b"rocm")),
        gid(SCRIPT + b"--layers 3"), gid(SCRIPT + b"--layers 4"), gid(SCRIPT.replace(b"20", b"20 data=c4")),
        gid(SCRIPT.replace(b"20", b"20 data=c5")),
    }  # fmt: skip
    assert len(others) == 16
    assert gid() not in others


def features(script: bytes, *args: bytes) -> dict[str, float]:
    return describe(1, b"", script, args, b"", RULES).features


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (b"--epochs 90", {"epochs": 90}),
        (b"--max-epochs=1e2 -lr .5", {"epochs": 100, "lr": 0.5}),
        (b"+trainer.max_steps=7 optimizer.lr='1e-4'", {"steps": 7, "lr": 1e-4}),
        (b"--epochs 3 --epochs 5", {"epochs": 5}),
        (b"--epochs --lr 2", {"lr": 2}),
        (b"--max_steps -1 --epochs -2", {"steps": -1, "epochs": -2}),
        (b"--lr 1.2.3 --epochs 1e15 --steps $N --bs 0x10 --wd nan", {}),
        (b"--lr 0.12345678901234 --steps 999999999999999", {"lr": 0.123456789}),
        (b'"--epochs=4" "--lr" "3"', {"epochs": 4, "lr": 3}),
    ],
)
def test_features(options: bytes, found: dict[str, float]) -> None:
    assert features(b"python train.py " + options) == found
    assert features(b"", *options.replace(b"'", b"").replace(b'"', b"").split()) == found
    assert "epochs" not in features(b"echo " + options)


def test_variables_and_arguments() -> None:
    script = b"EPOCHS=90\nexport LR=0.1 BATCH_SIZE=$1\npython train.py --epochs $EPOCHS"
    assert features(script) == {"epochs": 90, "lr": 0.1}
    assert features(script, b"--epochs", b"3", b"--lr=2") == {"epochs": 3, "lr": 2}
    assert gid(script, args=(b"--epochs", b"3")) == gid(script)


def test_features_are_limited_to_the_room_in_the_tag() -> None:
    long = [f"{letter * 20} x{letter}" for letter in "dcba"]
    rules = GroupSettings(features=long)
    found = describe(1, b"", b"python t.py --xa 1 --xb 2.5 --xc 1234567890 --xd 7", (), b"", rules).features
    assert found == {"d" * 20: 7, "c" * 20: 1234567890, "b" * 20: 2.5}
    assert len(render_features(found)) <= 100


def program(script: bytes) -> str:
    return describe(1, b"n", script, (), b"", RULES).program


@pytest.mark.parametrize(
    ("script", "same"),
    [
        (b"torchrun x/train.py --model z", True),
        (b"module load m\ncd x; ls\n/usr/bin/python2 train.py", True),
        (b"srun ./train.py", True),
        (b"./prepare\npython train.py\n./finish", True),
        (b"python train.py; python train.py", True),
        (b"python -m train", False),
        (b"python train.py; python eval.py", False),
        (b"./train.sh", False),
    ],
)
def test_program(script: bytes, same: bool) -> None:
    assert (program(script) == program(b"python train.py")) == same


def test_no_program() -> None:
    assert program(b"echo a; cd b\nmodule load c") == program(b"# nothing\n") == ""


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
    none = GroupSettings(features=[], ignore_options=[], ignore_commands=[], launchers=[], fold_dates=False)
    scripts = [
        SCRIPT + line for line in (b"", b"--lr 1", b"--lr 2", b"SEED=1", b"SEED=2", b"echo 1", b"python", b"20260101")
    ]
    assert len({gid(script, rules=none) for script in scripts}) == 8
    assert gid(SCRIPT + b"\nx_20260101", rules=none) != gid(SCRIPT + b"\nx_20260102", rules=none)


@pytest.mark.parametrize("text", ["2026-11-21", "20261121", "2026_11_21-23.59.59", "2026/01/02_235959", "1795257166"])
def test_dates(text: str) -> None:
    assert gid(SCRIPT + f"cp x/run_{text}.bin y".encode()) == gid(SCRIPT + b"cp x/run_2031-01-02.bin y")
    assert gid(args=(text.encode(),)) == gid(args=(b"20310102",)) != gid(args=(b"1024",))


def test_both_ends_of_a_long_script_count() -> None:
    middle = b"run 0123456789\n" * (2 * PART_BYTES)
    long = b"head 1\n" + middle + b"tail 1\n"
    assert gid(long) != gid(long.replace(b"head 1", b"head 2"))
    assert gid(long) != gid(long.replace(b"tail 1", b"tail 2"))


def test_comments_do_not_split_a_long_script() -> None:
    line = b"python train.py --model m%d\n"
    long = b"".join(line % i for i in range(5000))
    comments = b"# a comment\n\n" * 200
    at = len(line * 30)
    others = [comments + long, long + comments, long[:at] + comments + long[at:], long[:-at] + comments + long[-at:]]
    assert {gid(b"\n" + other) for other in others[:2]} == {gid(long)}
    assert {gid(other.replace(b"\n", b"\r\n")) for other in others[:2]} == {gid(long)}


def test_the_hash_does_not_change() -> None:
    """A changed hash would make every group unseen."""
    job = describe(1000, b"train-17", b"#!/bin/sh\n  python a.py b --lr 3\n#x\n", [b"x"], b"", RULES)
    assert (job.group, job.program) == ("59881554a5905723", "cf8519910bea20e5")
    assert describe(0, b"", b"x" * 100000, [], b"", RULES).group == "828f4306e4f3326c"


def test_many_similar_scripts_do_not_collide() -> None:
    assert len({gid(b"python t.py --layers %d" % seed) for seed in range(20000)}) == 20000


@pytest.mark.parametrize(
    ("comment", "hints"),
    [
        (b"", Hints()),
        (b"nothing for asrpt", Hints()),
        (b"asrpt:profile=gpt2", Hints(profile="gpt2")),
        (b"my run asrpt:profile=gpt2,dataset=c4 more", Hints("gpt2", "c4")),
        (b"x;asrpt:off;y", Hints(off=True)),
        (b"asrpt:interrupt=B:USR1,profile=gpt2", Hints("gpt2", interrupt="B:USR1")),
        (b"asrpt:interrupt=USR2", Hints(interrupt="USR2")),
        (b"asrpt:interrupt=off", Hints(interrupt="off")),
        (b"asrpt:interrupt=B:off", Hints(complaints=(b"interrupt=B:off",))),
        (b"asrpt:interrupt=B:B:USR1", Hints(complaints=(b"interrupt=B:B:USR1",))),
        (b"asrpt:interrupt=KILL", Hints(complaints=(b"interrupt=KILL",))),
        (b"xasrpt:off", Hints()),
        (b"asrpt:profile=../x", Hints(complaints=(b"profile=../x",))),
        (b"asrpt:profile=" + b"x" * 65, Hints(complaints=(b"profile=" + b"x" * 65,))),
        (b"asrpt:speed=9,dataset=a", Hints(dataset="a", complaints=(b"speed=9",))),
    ],
)
def test_hints(comment: bytes, hints: Hints) -> None:
    assert parse_comment(comment) == hints
