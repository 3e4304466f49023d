"""GPU-only code on a fake GPU: the calls and their order, not the times."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

import pytest

from slurm_asrpt.errors import InputError

torch = pytest.importorskip("torch", reason="needs the extra profile: make test-profile")

from benchmarks import accuracy, small_models  # noqa: E402
from slurm_asrpt.profile import block_timing, collective, device_clock  # noqa: E402
from slurm_asrpt.profile.block_timing import MeasureOptions  # noqa: E402
from slurm_asrpt.profile.measure import measure, measure_both  # noqa: E402
from tests.integration.fake_cuda import NAME, TICK_MS, FakeGpu, gpu  # noqa: E402

__all__ = ["gpu"]

TICK_S = TICK_MS / 1e3
SIZE = {"layers": 3, "width": 32, "words": 50, "length": 8, "batch": 4}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def transformer() -> Any:
    return small_models.transformer(**SIZE)


def how(**options: Any) -> MeasureOptions:
    return MeasureOptions(**{"device": "cuda", "warm_up": 1, "repeats": 3} | options)


def silent(*_: object) -> None:
    pass


def test_the_fake_gpu_fails_like_a_real_one(gpu: FakeGpu) -> None:
    one, other = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with pytest.raises(ValueError, match="must be recorded"):
        one.elapsed_time(other)
    one.record()
    other.record()
    with pytest.raises(RuntimeError, match="must be completed"):
        one.elapsed_time(other)
    torch.cuda.synchronize()
    assert one.elapsed_time(other) == TICK_MS
    with pytest.raises(ValueError, match="enable_timing"):
        torch.cuda.Event().elapsed_time(one)
    here, there = torch.ones(3), torch.ones(3).to("cuda")
    assert (here.is_cuda, there.is_cuda, there.device.type) == (False, True, "cuda")
    with pytest.raises(RuntimeError, match="same device"):
        here + there
    assert (there + torch.ones((), device=there.device)).is_cuda
    with pytest.raises(RuntimeError, match="same device"):
        torch.nn.Linear(3, 3)(there)
    assert torch.nn.Linear(3, 3).to("cuda")(there).is_cuda


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_block_times_come_from_gpu_events(gpu: FakeGpu, dtype: str) -> None:
    found, whole = measure_both(transformer, "m", "a test", how(dtype=dtype), silent)
    assert [block.forward_s for block in found.blocks] == pytest.approx([TICK_S] * len(found.blocks))
    assert all(block.backward_s == pytest.approx(TICK_S) for block in found.blocks)
    assert sum(block.update_s for block in found.blocks) == pytest.approx(TICK_S)
    assert all(
        b.update_s * found.blocks[0].param_bytes == pytest.approx(found.blocks[0].update_s * b.param_bytes)
        for b in found.blocks
    )
    assert (whole.forward_s, whole.backward_s, whole.update_s) == pytest.approx((TICK_S, TICK_S, TICK_S))
    assert found.iteration_s == whole.seconds == pytest.approx(7 * TICK_S)
    assert 0 < whole.launch_s <= whole.standstill_s
    assert all(block.peak_bytes >= block.bytes_out for block in found.blocks)
    assert found.head.device == NAME
    assert {"torch", "python", "cuda", "cudnn"} == set(found.head.software)


def test_rounds_are_measured_without_synchronization(gpu: FakeGpu) -> None:
    def waits(repeats: int) -> int:
        before = gpu.waits
        measure(transformer, "m", "a test", how(repeats=repeats), silent)
        return gpu.waits - before

    assert waits(3) == waits(30)


def test_measured_work_is_queued_during_a_pause_of_the_gpu(gpu: FakeGpu) -> None:
    """For blocks and the optimizer step; whole iterations run in a plain loop."""
    found = measure(transformer, "m", "a test", how(warm_up=2, repeats=3), silent)
    assert len(gpu.pauses) == 3 * (len(found.blocks) + 1)
    assert all(cycles > 1e-5 * 1e9 for cycles in gpu.pauses)  # a block is more than 10 us of work
    gpu.pauses.clear()
    measure(transformer, "m", "a test", how(warm_up=0, repeats=2), silent)
    assert not any(gpu.pauses)  # duration unknown


def test_input_gradients_of_blocks_are_random(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    original = block_timing.output_gradient
    monkeypatch.setattr(block_timing, "output_gradient", lambda output: given.append(original(output)) or given[-1])
    found = measure(transformer, "m", "a test", how(warm_up=0, repeats=2), silent)
    assert len(given) == 2 * len(found.blocks)
    assert [bool((g == g.flatten()[0]).all()) for g in given] == 2 * ([False] * (len(found.blocks) - 1) + [True])


def test_a_whole_iteration_follows_another(gpu: FakeGpu) -> None:
    calls: list[int] = []

    def counted() -> Any:
        module, tokens, loss = transformer()
        return module, tokens, lambda scores: (calls.append(1), loss(scores))[1]

    measure(counted, "m", "a test", how(warm_up=1, repeats=3), silent)
    check, kept, alone, standstills = 1, 1, 4, 3
    assert len(calls) == check + kept + alone + 2 * 4 + standstills


def test_equal_layers_are_created_on_the_gpu(gpu: FakeGpu) -> None:
    whole = measure(transformer, "m", "a test", how(dtype="bfloat16"), silent)
    some = measure(transformer, "m", "a test", how(dtype="bfloat16", layers=(1, 3)), silent)
    for one, other in zip(some.blocks, whole.blocks, strict=False):
        assert (one.param_bytes, one.bytes_in, one.bytes_out) == (other.param_bytes, other.bytes_in, other.bytes_out)
        assert one.kept_bytes == pytest.approx(other.kept_bytes, rel=0.3)
    assert whole.blocks[2].param_bytes == 2 * sum(p.numel() for p in transformer()[0].layers[0].parameters())


def test_out_of_memory_is_reported_with_a_remedy(gpu: FakeGpu) -> None:
    gpu.memory = 100_000
    with pytest.raises(InputError, match="for the model; try --dtype bfloat16, a smaller --batch, or --layers"):
        measure(transformer, "m", "a test", how(), silent)
    with pytest.raises(InputError, match=r"a smaller --batch$"):
        measure(transformer, "m", "a test", how(layers=(1, 3)), silent)


def test_a_batch_on_the_host_is_reported_as_an_error_of_the_model(gpu: FakeGpu) -> None:
    def wrong() -> Any:
        wanted = torch.randint(50, (32,))
        module, tokens, _ = transformer()
        return module, tokens, lambda scores: torch.nn.functional.cross_entropy(scores.flatten(0, 1), wanted)

    with pytest.raises(RuntimeError, match="same device"):
        measure(wrong, "m", "a test", how(), silent)


def test_measuring_from_idle_waits_for_the_gpu(gpu: FakeGpu) -> None:
    before = gpu.waits
    assert device_clock.timed(lambda: 7, "cuda") == (7, TICK_S)
    assert gpu.waits == before + 2


def test_the_gpu_is_warmed_up(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_clock, "WAKE_S", 0.01)
    device_clock.warm_clock("cuda")
    assert gpu.waits > 0


def test_accuracy_continues_after_a_model_that_fails(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setitem(small_models.MODELS, "cuda", {"bad": lambda: None, "good": transformer})
    options = Namespace(device="cuda", dtype="bfloat16", repeats=3)
    bad, good = accuracy.rows(["bad", "good"], options)
    assert "must return" in bad["failed"]
    assert accuracy.line(bad).startswith("bad")
    assert good["predicted_s"] == pytest.approx(TICK_S * 17)
    assert good["error"] == pytest.approx(17 / 7 - 1)
    assert good["parts"]["forward"] == pytest.approx({"blocks_s": 8 * TICK_S, "whole_s": TICK_S})
    assert (good["device"], good["dtype"]) == (NAME, "bfloat16")
    assert "blocks/whole: forward 8.00 ms/1.00 ms" in accuracy.line(good)
    assert json.loads(json.dumps(good)) == good
    assert "2 processes: skipped" in capsys.readouterr().err


def test_all_reduce_is_measured_if_each_process_has_a_gpu(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_NNODES", raising=False)
    with pytest.raises(InputError, match="torch sees 1 GPU"):
        collective.check(2, "cuda")
    with pytest.raises(InputError, match="has no peer"):
        collective.check(1, "cuda")
    collective.check(2, "cpu")
    monkeypatch.setenv("SLURM_NNODES", "2")
    collective.check(1, "cuda")


@pytest.mark.parametrize("name", small_models.MODELS["cuda"])
def test_the_models_for_gpus_can_be_built(name: str) -> None:
    """Without memory: they are too large for some machines."""
    with torch.device("meta"):
        module, inputs, loss = small_models.MODELS["cuda"][name]()
        assert loss(module(inputs)).ndim == 0
