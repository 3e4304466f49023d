"""asrpt-profile: what its commands print, write and reject."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from slurm_asrpt_cli.profile import main
from slurm_asrpt_cli.profile.output import amount, seconds
from slurm_asrpt_cli.profile.plan import read_amount

from slurm_asrpt.errors import InputError
from slurm_asrpt.profile.blocks import format_uncut
from slurm_asrpt.profile.documents import load_document, load_uncut
from slurm_asrpt.profile.schema import ProfileFile


@pytest.fixture
def asrpt_profile(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):  # type: ignore[no-untyped-def]
    """(exit status, standard output, standard error) of a command in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ASRPT_CONFIG", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["asrpt-profile", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return (int(left.value.code or 0), *capsys.readouterr())

    return run


def test_list_shows_models_and_cut_profiles(asrpt_profile) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = asrpt_profile("list", "--json")
    found = json.loads(out)
    assert code == 0
    models = {row["name"]: row for row in found["models"]}
    cut = {row["name"]: row for row in found["cut"]}
    assert {"llama-3-8b", "llama-3-70b", "vit-l16", "mixtral-8x7b", "vgg19"} <= models.keys()
    assert (models["vgg19"]["gpus"], cut["vgg19-dp4"]["gpus"]) == (None, 4)
    assert models["vgg19"]["param_bytes"] == cut["vgg19-dp4"]["param_bytes"]
    assert models["vgg19"]["iteration_s"] / 4 < cut["vgg19-dp4"]["iteration_s"] < models["vgg19"]["iteration_s"]


@pytest.mark.parametrize(("whole", "doubted"), [(3.0, False), (1.0, True), (9.0, True)])
def test_show_warns_if_blocks_do_not_add_up_to_an_iteration(asrpt_profile, whole: float, doubted: bool) -> None:  # type: ignore[no-untyped-def]
    model = replace(load_uncut("vgg19", ()), iteration_s=whole / 3 * load_uncut("vgg19", ()).seconds)
    Path("mine.toml").write_text(format_uncut(model))
    assert ("measure again" in asrpt_profile("show", "./mine.toml")[1]) == doubted


def test_list_shows_gpus_parameters_and_iteration_time_of_each_profile(asrpt_profile) -> None:  # type: ignore[no-untyped-def]
    title, *lines = asrpt_profile("list")[1].splitlines()
    assert title.split() == ["PROFILE", "GPUS", "PARAMETERS", "ITERATION", "FROM"]
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert rows["vgg19"] == ["any", "575", "MB", "377", "ms", "computed,", "NVIDIA", "A100", "80", "GB"]
    assert rows["vgg19-h100"][-5:] == ["measured,", "NVIDIA", "H100", "80GB", "HBM3"]
    assert rows["vgg19-dp4"][0] == "4"


def test_list_shows_the_sites_profiles_and_those_that_cannot_be_read(asrpt_profile) -> None:  # type: ignore[no-untyped-def]
    Path("site").mkdir()
    Path("site/mine.toml").write_text(format_uncut(replace(load_uncut("vgg19", ()), iteration_s=0.0)))
    Path("site/broken.toml").write_text("[profile")
    Path("asrpt.toml").write_text('[paths]\nprofiles = ["site"]\n')
    code, out, _ = asrpt_profile("list", "--config", "asrpt.toml")
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert code == 0
    assert rows["mine"].endswith("this site: computed, NVIDIA A100 80 GB")
    assert "invalid: " in rows["broken"]


def test_show_folds_equal_blocks(asrpt_profile) -> None:  # type: ignore[no-untyped-def]
    lines = asrpt_profile("show", "llama-3-8b")[1].splitlines()
    (row,) = (line for line in lines if "layer" in line and "TIME" not in line and ":" not in line)
    assert row.startswith("32 x layer1-32 ")
    assert "94%" in row


def test_show_says_when_the_host_is_the_limit(asrpt_profile) -> None:  # type: ignore[no-untyped-def]
    launched, computed = (asrpt_profile("show", name)[1] for name in ("resnet152-h100", "vgg19-h100"))
    assert "58 ms per iteration, the host's time to launch it; the blocks take 14.5 ms" in " ".join(launched.split())
    assert "sum of the blocks" in computed
    shares = [int(line.split("%")[-2].split()[-1]) for line in launched.splitlines() if "█" in line]
    assert 80 < sum(shares) < 120  # of 53 rounded shares


def test_show_names_the_origin_of_the_values(asrpt_profile) -> None:  # type: ignore[no-untyped-def]
    for name in ("llama-3-8b", "vgg19-conv3fc1"):
        code, out, _ = asrpt_profile("show", name)
        assert code == 0
        assert "analytic:" in out
        assert "formula:" in out
    assert json.loads(asrpt_profile("show", "vgg19", "--json")[1])["block"][0]["name"] == "conv1_1"


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("words", [("show", "resnet152"), ("show", "vgg19-pp2dp2"), ("plan", "gpt-13b", "-g", "16")])
def test_output_fits_a_terminal(asrpt_profile, monkeypatch, width: int, words: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((width, 24)))
    code, out, _ = asrpt_profile(*words)
    assert code == 0
    assert max(map(len, out.splitlines())) <= width
    bars = [line.count("█") for line in out.splitlines()]
    assert words[0] == "plan" or 11 <= max(bars) <= 30


def test_diff_has_an_exit_status(asrpt_profile) -> None:  # type: ignore[no-untyped-def]
    assert asrpt_profile("diff", "vgg19", "vgg19")[:2] == (0, "")
    code, out, _ = asrpt_profile("diff", "bert-large", "xlnet-large", "--json")
    assert code == 1
    assert {"block 2.forward_s", "model"} <= {row["key"] for row in json.loads(out)}
    assert "block 2.forward_s" not in asrpt_profile("diff", "bert-large", "xlnet-large", "--tolerance", "0.1")[1]


def test_convert_round_trip(asrpt_profile, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert asrpt_profile("convert", "gpt-13b", "-o", "a.json")[:2] == (0, "wrote a.json: gpt-13b\n")
    assert asrpt_profile("convert", "a.json", "-o", "b.toml")[0] == 0
    assert asrpt_profile("diff", "gpt-13b", "b.toml")[:2] == (0, "")
    assert json.loads((tmp_path / "a.json").read_text())["name"] == "gpt-13b"


def test_convert_cuts(asrpt_profile, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert asrpt_profile("convert", "llama-3-8b", "--tp", "2", "--pp", "4", "--dp", "2", "-o", "c.toml")[0] == 0
    found = load_document(str(tmp_path / "c.toml"), [])
    assert isinstance(found, ProfileFile)
    assert (found.profile.gpus, found.profile.name) == (16, "llama-3-8b-tp2pp4dp2")
    code, _, err = asrpt_profile("convert", "vgg19-dp4", "--dp", "2")
    assert (code, "already has stages" in err) == (2, True)


def test_validate_names_file_line_and_field(asrpt_profile, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    asrpt_profile("convert", "vgg19", "-o", "good.toml")
    text = (tmp_path / "good.toml").read_text().replace("batch = 32", "batch = 0")
    (tmp_path / "bad.toml").write_text(text)
    code, out, _ = asrpt_profile("validate", "good.toml", "bad.toml")
    assert code == 2
    line = text.splitlines().index("batch = 0") + 1
    wrong = f"bad.toml: line {line}: batch: must be a whole number of at least 1, found 0"
    assert out.splitlines() == ["good.toml: valid", wrong]
    assert json.loads(asrpt_profile("validate", "vgg19", "--json")[1]) == {"vgg19": ""}


def test_plan_lists_and_writes_usable_profiles(asrpt_profile, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = asrpt_profile("plan", "bert-large", "-g", "4", "-w", "p.toml", "--name", "mine", "--json")
    best = json.loads(out)[0]
    found = load_document(str(tmp_path / "p.toml"), [])
    assert code == 0
    assert isinstance(found, ProfileFile)
    assert (found.profile.name, found.profile.gpus) == ("mine", best["gpus"])
    times = [plan["iteration_s"] for plan in json.loads(out)]
    assert times == sorted(times)
    assert "computed, not measured" in asrpt_profile("plan", "bert-large", "-g", "4")[1]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["plan", "gpt-175b", "-g", "8"], 1, "no plan fits; parameters, gradients and optimizer need 2.79 TB"),
        (["plan", "vgg19-dp4", "-g", "8"], 2, "is already cut into stages"),
        (["plan", "vgg19", "-g", "8", "--nodes", "two"], 2, "write servers x GPUs per server"),
        (["plan", "vgg19", "-g", "8", "--nodes", "0x8"], 2, "write servers x GPUs per server"),
        (["plan", "vgg19", "-g", "8", "--nodes", "1x4"], 2, "has 4 GPUs, fewer than --gpus 8"),
        (["plan", "vgg19", "-g", "8", "--inter", "fast"], 2, "--inter fast: write an amount"),
        (["show", "vgg20"], 2, "did you mean vgg19"),
        (["show", "./\x1b[31m.toml"], 2, "\\x1b[31m.toml: no such file"),
        (["convert", "vgg19", "--name", "x"], 2, "--name requires"),
        (["convert", "vgg19", "--dp", "64"], 2, "cannot be split over 64 replicas"),
        (["convert", "vgg19", "-o", "nowhere/x.toml"], 2, "cannot write"),
    ],
)
def test_invalid_input_is_a_one_line_error(asrpt_profile, arguments: list[str], status: int, said: str) -> None:  # type: ignore[no-untyped-def]
    code, _, err = asrpt_profile(*arguments)
    assert code == status
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is here; tests/integration has this")
def test_without_torch_run_says_what_to_install(asrpt_profile) -> None:  # type: ignore[no-untyped-def]
    code, _, err = asrpt_profile("run", "json:dumps")
    assert (code, "pip install 'slurm-asrpt[profile]'" in err) == (1, True)


def test_without_torch_a_factory_that_imports_it_gives_the_same_error(
    asrpt_profile, tmp_path: Path, monkeypatch
) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "wants_torch.py").write_text("import torch\n\ndef make(): ...\n")
    monkeypatch.setitem(sys.modules, "torch", None)
    code, _, err = asrpt_profile("run", "wants_torch:make")
    assert (code, "pip install 'slurm-asrpt[profile]'" in err, len(err.splitlines())) == (1, True, 1)


def test_run_needs_few_packages_besides_torch() -> None:
    """It runs on compute nodes with few packages installed: numpy, rich, and typer with its dependencies."""
    program = "import sys, slurm_asrpt_cli.profile; print(*{name.partition('.')[0] for name in sys.modules})"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    needed = set(answer.stdout.split())
    assert {"typer", "slurm_asrpt"} <= needed
    assert not needed & {
        "ClusterShell", "highspy", "joblib", "matplotlib", "networkx", "pandas", "prometheus_client", "pydantic",
        "scipy", "sklearn", "torch",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [("80G", 80e9), ("300GB", 300e9), ("10Gb", 1.25e9), ("10Gbit/s", 1.25e9), ("1.5 GB/s", 1.5e9), ("512B", 512.0)],
)
def test_amounts_are_bytes_or_bits(text: str, value: float) -> None:
    assert read_amount("--x", text) == value


@pytest.mark.parametrize("text", ["", "0G", "G", "-1G", "1e9", "80 GiB", "1GB/h", "9" * 20, "10", "80"])
def test_an_invalid_amount_is_rejected(text: str) -> None:
    with pytest.raises(InputError, match="write an amount"):
        read_amount("--x", text)


@pytest.mark.parametrize("option", ["--inter", "--intra", "--memory-per-gpu"])
def test_plan_takes_no_amount_without_a_unit(asrpt_profile, option: str) -> None:  # type: ignore[no-untyped-def]
    code, out, err = asrpt_profile("plan", "vgg19", "-g", "8", option, "10")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{option} 10: write an amount with its unit, such as 80G, 300GB (bytes) or 10Gb (bits)" in err


def test_values_have_three_digits() -> None:
    assert [seconds(value) for value in (0, 2.5, 0.0124, 99e-6, 3e-9, 1234)] == [
        "-", "2.5 s", "12.4 ms", "99 us", "3 ns", "1234 s",
    ]  # fmt: skip
    assert [amount(value) for value in (0, 12, 5.37e6, 999.6e6)] == ["-", "12 B", "5.37 MB", "1 GB"]
