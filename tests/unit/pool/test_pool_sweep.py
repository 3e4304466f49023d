"""Sweep files: what they mean, and one line for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_asrpt.errors import InputError
from slurm_asrpt.pool.sweep import Spec, read_sweep

TRAINING = '[[training]]\nname = "a"\nuses = "m:F"\n'


def read(folder: Path, text: str) -> tuple[Spec, ...]:
    (folder / "sweep.toml").write_text(text)
    return read_sweep(folder / "sweep.toml").trainings


def test_each_combination_of_a_grid_is_a_training(tmp_path: Path) -> None:
    found = read(tmp_path, TRAINING + "with = { depth = [1, 2] }\ngrid = { lr = [0.1, 1e-3], big = [true] }\n")
    assert [spec.name for spec in found] == ["a-lr=0.1-big=true", "a-lr=0.001-big=true"]
    assert found[1] == Spec("a-lr=0.001-big=true", "m:F", {"depth": [1, 2], "lr": 0.001, "big": True})


def test_the_folder_is_beside_the_file(tmp_path: Path) -> None:
    for text, name in (("", "sweep.pool"), ('[pool]\nfolder = "out/x"\n', "out/x")):
        (tmp_path / "sweep.toml").write_text(text)
        found = read_sweep(tmp_path / "sweep.toml")
        assert (found.folder, found.code) == (tmp_path / name, tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[pool", "invalid TOML"),
        ("[pool]\nswitsh = 1\n", "pool.switsh: no such key"),
        ('[pool]\nswitch = "warmer"\n', "pool.switch: Input should be 'process', 'warm', 'layers' or 'ahead'"),
        ('[pool]\npolicy = "best"\n', "no policy 'best'; known: 2d-las, 2d-las-released, arrival, "),
        ("[pool]\nkeep = 0\n", "pool.keep"),
        (TRAINING + TRAINING, "two trainings are called 'a'"),
        (TRAINING + '[[training]]\nname = "b"\n', "training 2.uses: missing"),
        (TRAINING.replace("m:F", "m.F"), "training 1.uses"),
        (TRAINING.replace('"a"', '"../a"'), "training '../a': use up to 120 letters"),
        (TRAINING.replace('"a"', '""'), "training '': use up to 120 letters"),
        (TRAINING + 'grid = { x = ["a b"] }\n', "in names"),
        (TRAINING + "grid = { x = [] }\n", "training 1.grid.x"),
        (TRAINING + "grid = { x = 3 }\n", "training 1.grid.x"),
        (TRAINING + "with = { x = 1 }\ngrid = { x = [1] }\n", "x is in both with and grid"),
        (TRAINING + "with = { x = 2026-01-01 }\n", "with.x: dates and times must be strings"),
        (TRAINING + "grid = { x = [%s], y = [%s] }\n" % ((",".join(map(str, range(101))),) * 2), "more than 10000"),
    ],
)
def test_a_mistake_is_told_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError) as told:
        read(tmp_path, text)
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_sweep(tmp_path / "sweep.toml")
    (tmp_path / "sweep.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        read_sweep(tmp_path / "sweep.toml")
