"""The library's models in torch equal those of the tables, and the measuring script writes valid profiles."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_asrpt.profile.documents import load_uncut, parse_document
from slurm_asrpt.profile.library_tools.analytic import uncut
from slurm_asrpt.profile.library_tools.architectures import RECENT_MODELS, TABLE1_MODELS, Model

torch = pytest.importorskip("torch", reason="needs the extra profile: make test-profile")

from slurm_asrpt.profile.blocks import format_uncut  # noqa: E402
from slurm_asrpt.profile.library_tools import measured  # noqa: E402
from slurm_asrpt.profile.torch_blocks import trace  # noqa: E402
from tests.integration.fake_cuda import FakeGpu, gpu  # noqa: E402

__all__ = ["gpu"]

MODELS = {model.key: model for model in (*TABLE1_MODELS, *RECENT_MODELS)}


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    torch.set_num_threads(1)
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def run(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["measured", "--repeats", "2", *arguments])
    measured.main()


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.key)
def test_blocks_are_the_layers_of_the_table(model: Model) -> None:
    """Names, parameters, activations and tied weights, on the meta device."""
    with torch.device("meta"):
        module, batch, loss = measured.PLANS[model.key].make(batch=1)
        pieces, output = trace(module, batch)
        assert loss(output).ndim == 0
    found = [(p.name, sum(t.numel() for t in p.own), p.out_bytes // 4, p.tied_bytes // 4) for p in pieces]
    assert found == [(layer.name, layer.params, layer.out, layer.tied) for layer in model.layers]


@pytest.mark.parametrize("name", ["vit-l16", "xlnet-large", "t5-11b", "mixtral-8x7b"])
def test_a_small_model_is_measured_and_its_profile_can_be_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(name, "--device", "cpu", "--small", "--into", str(tmp_path), monkeypatch=monkeypatch)
    found = load_uncut(str(tmp_path / f"{name}-cpu.toml"), [])
    assert found.head.provenance.kind == "measured"
    names = [block.name for block in found.blocks if block.name != "loss"]
    assert names == [layer.name for layer in MODELS[name].layers]
    assert all(block.forward_s > 0 for block in found.blocks)


def test_existing_gpu_measurements_are_not_repeated(
    gpu: FakeGpu,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys,  # type: ignore[no-untyped-def]
) -> None:
    monkeypatch.setattr(measured, "PLANS", {name: measured.PLANS[name] for name in ("bert-large", "gpt-6.7b")})
    monkeypatch.setattr(measured, "TABLE1_MODELS", [MODELS[name] for name in measured.PLANS])
    monkeypatch.setattr(measured, "RECENT_MODELS", [])
    options = ("--small", "--into", str(tmp_path))
    run("bert-large", *options, monkeypatch=monkeypatch)
    run(*options, monkeypatch=monkeypatch)
    assert {path.name for path in tmp_path.iterdir()} == {"bert-large-h100.toml", "gpt-6.7b-h100.toml"}
    assert "bert-large: exists already" in capsys.readouterr().out
    gpu.memory = 1000
    run("bert-large", *options, monkeypatch=monkeypatch)
    assert "bert-large: skipped: the GPU's memory is too small" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["llama-3-70b", "mixtral-8x7b", "vgg19"])
def test_derived_fields_and_the_whole_mini_batch_are_filled_in(name: str) -> None:
    model = MODELS[name]
    computed = uncut(model)
    bare = tuple(replace(b, tensor_bytes=0.0, expert_bytes=0.0, routed_bytes=0.0) for b in computed.blocks)
    head = replace(computed.head, batch=model.batch // 4)
    found = measured.completed(replace(computed, head=head, blocks=bare), model, 4)
    assert found.head.batch == model.batch
    assert "its seconds and activations times 4" in found.head.provenance.formula
    for one, other in zip(found.blocks, computed.blocks, strict=True):
        assert (one.tensor_bytes, one.expert_bytes, one.routed_bytes) == (
            other.tensor_bytes, other.expert_bytes, other.routed_bytes
        )  # fmt: skip
        assert (one.forward_s, one.bytes_out, one.param_bytes) == (
            4 * other.forward_s, 4 * other.bytes_out, other.param_bytes
        )  # fmt: skip
    assert parse_document(format_uncut(found), "it") is not None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["vgg20"], "vgg20: unknown; valid models: vgg19"),
        (["--small"], "specify a directory"),
        ([], "torch sees no GPU"),
    ],
)
def test_invalid_options_are_rejected(arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:  # type: ignore[no-untyped-def]
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit):
        run(*arguments, monkeypatch=monkeypatch)
    assert said in capsys.readouterr().err
