"""Compare predicted with measured iteration times: python -m benchmarks.accuracy --json

Models are measured block by block, as in asrpt-profile run, then cut and timed by core/timing, and compared with whole
iterations of a plain training loop. Part one runs the model alone. Part two runs it data-parallel in two processes
that exchange gradients after the backward pass (gloo on a CPU, NCCL on GPUs), at the rate that profile/collective.py
measures at that size. Both processes measure their half of the mini-batch at the same time because they share the
machine; the slower one counts. Exchanges, iterations and rounds of the blocks alternate, so that a disturbance affects
all three. The time of the blocks is that of the median round. A disturbance hits each round and each iteration but few
blocks, so the medians of the blocks do not show it; "disturbed" is the difference. "unsteady" is the interquartile
range of the measured iterations over their median: the larger it is, the less reliable the figure. On a CPU, each
process has one thread. There are two small models for a CPU, and six larger ones with --device cuda, where part two
needs two GPUs. The line of each model is printed as soon as it is done. Needs only torch.

The causes of an error are shown next to it: forward, backward and update, both of the blocks together and inside whole
iterations; rest_s, the time of iterations outside these three; standstill_s, an iteration that finds the GPU idle and
is waited for; launch_s, the host time to launch it. If launch_s is close to measured_s, the GPU waits for the host.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.profile.blocks import UncutFile
from slurm_asrpt.profile.cut import Cut, job_profile

REPLICAS = 2
REPEATS, WARM_UP = 30, 5
LIMIT_S = 600


def predicted(document: UncutFile, replicas: int, intra: float) -> float:
    """alpha (7) of the model on one server, with ``replicas`` data-parallel replicas."""
    profile = job_profile(document, Cut((len(document.blocks),), (replicas,)), "n")
    return iteration_time(profile, [0] * replicas, [replicas], Fabric(intra, intra))


def profiled(
    name: str,
    options: argparse.Namespace,
    begin: Callable[[], None] = lambda: None,
    **size: int,
) -> tuple[UncutFile, Any]:
    """Measure the model's blocks, with whole iterations in between. begin: called in each round."""
    from benchmarks.small_models import MODELS
    from slurm_asrpt.profile.block_timing import MeasureOptions
    from slurm_asrpt.profile.measure import measure_both

    how = MeasureOptions(device=options.device, dtype=options.dtype, warm_up=WARM_UP, repeats=options.repeats)
    make = MODELS[options.device][name]
    return measure_both(lambda: make(**size), name, f"benchmarks.accuracy {name}", how, lambda *_: begin())


def alone(name: str, options: argparse.Namespace) -> dict[str, Any]:
    document, whole = profiled(name, options)
    row = _row(name, 1, document, whole.rounds, whole.seconds) | {"unsteady": whole.spread_s / whole.seconds}
    return row | _parts(document, whole) | {"device": document.head.device}


def _parts(document: UncutFile, whole: Any) -> dict[str, Any]:
    """The causes of the difference."""
    inside = asdict(whole)
    names = ("forward", "backward", "update")
    blocks = {name: sum(getattr(block, f"{name}_s") for block in document.blocks) for name in names}
    parts = {name: {"blocks_s": blocks[name], "whole_s": inside[f"{name}_s"]} for name in names}
    rest = whole.seconds - sum(inside[f"{name}_s"] for name in names)
    return {"parts": parts, "rest_s": rest, "standstill_s": whole.standstill_s, "launch_s": whole.launch_s}


def together(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Two processes with half of the mini-batch each."""
    given = {"--worker": name, "--device": options.device, "--dtype": options.dtype, "--repeats": options.repeats}
    return _torchrun(["-m", "benchmarks.accuracy", *(str(word) for pair in given.items() for word in pair)])


def in_rounds(document: UncutFile, rounds: Sequence[float]) -> UncutFile:
    """The blocks, scaled to the time of the median round: a disturbance hits few blocks, but each round."""
    factor = statistics.median(rounds) / document.blocks_s
    return _times(document, factor, factor, 1)


def of_the_whole(share: UncutFile, replicas: int) -> UncutFile:
    """The blocks of the whole mini-batch, from the share that each replica measured."""
    return _times(share, replicas, 1, replicas)


def _times(document: UncutFile, passes: float, update: float, size: int) -> UncutFile:
    """Multiply the seconds of both passes, of the update, and the bytes by these factors."""
    blocks = (
        replace(
            block,
            forward_s=passes * block.forward_s,
            backward_s=passes * block.backward_s,
            update_s=update * block.update_s,
            bytes_out=size * block.bytes_out,
        )
        for block in document.blocks
    )
    return replace(document, blocks=tuple(blocks))


def _row(
    name: str, processes: int, share: UncutFile, rounds: Sequence[float], truth: float, speed: float = 1.0
) -> dict[str, Any]:
    """share: the blocks with one replica's share of the mini-batch; rounds: their total times on the slower replica."""
    guess = predicted(of_the_whole(in_rounds(share, rounds), processes), processes, speed)
    return {
        "model": name,
        "processes": processes,
        "predicted_s": guess,
        "measured_s": truth,
        "error": guess / truth - 1,
        "disturbed": statistics.median(rounds) / share.blocks_s - 1,
    }


def _torchrun(arguments: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(REPLICAS)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    answer = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=LIMIT_S, env=environment)
    found = [json.loads(line) for line in answer.stdout.splitlines() if line.startswith('{"')]
    if not found:
        raise RuntimeError(answer.stderr[-2000:])
    row: dict[str, Any] = found[0]
    return row


def worker(name: str, options: argparse.Namespace) -> None:
    """One of two processes: measures its share and trains, alternately; exchanges gradients after the backward pass."""
    import torch
    from torch import distributed

    from benchmarks.small_models import MODELS
    from slurm_asrpt.profile.block_timing import OPTIMISERS, MeasureOptions, robust
    from slurm_asrpt.profile.collective import bytes_per_s, exchange, sample, seconds
    from slurm_asrpt.profile.device_clock import timed
    from slurm_asrpt.profile.measure import placed, training_setup

    torch.set_num_threads(1)
    cuda = options.device == "cuda"
    place = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(place)
    distributed.init_process_group("nccl" if cuda else "gloo")
    make = MODELS[options.device][name]
    batch = len(training_setup(make()).inputs) // REPLICAS
    half = placed(training_setup(make(batch=batch)), options.device, MeasureOptions(dtype=options.dtype))
    optimiser = OPTIMISERS["adamw"](half.module.parameters())

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        half.loss(half.module(half.inputs)).backward()
        exchange(None, [parameter.grad for parameter in half.module.parameters()])
        optimiser.step()

    size = sum(parameter.numel() * parameter.element_size() for parameter in half.module.parameters())
    gradients, exchanges, times = sample(size, place), list[float](), list[float]()

    def turn() -> None:
        exchanges.append(seconds(None, gradients))
        distributed.barrier()
        times.append(timed(step, options.device)[1])
        distributed.barrier()

    document, whole = profiled(name, options, turn, batch=batch)
    speed = bytes_per_s(size, REPLICAS, exchanges[WARM_UP:])
    both: list[Any] = [None] * REPLICAS
    distributed.all_gather_object(both, whole.rounds)
    if distributed.get_rank() == 0:
        slower = max(both, key=statistics.median)
        truth, spread, _ = robust(times[WARM_UP:])
        row = _row(name, REPLICAS, document, slower, truth, speed)
        print(json.dumps(row | {"unsteady": spread / truth, "allreduce_bytes_per_s": speed}), flush=True)
    distributed.destroy_process_group()


def rows(names: Sequence[str], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure one model after the other; a failure does not stop the others."""
    import torch

    torch.set_num_threads(1)
    parts: list[tuple[int, Callable[..., dict[str, Any]]]] = [(1, alone)]
    if options.device == "cpu" or torch.cuda.device_count() >= REPLICAS:
        parts.append((REPLICAS, together))
    else:
        print(f"{REPLICAS} processes: skipped, because NCCL needs one GPU for each", file=sys.stderr)
    for name in names:
        for processes, part in parts:
            began = time.monotonic()
            try:
                row = part(name, options)
            except Exception as error:
                row = {"model": name, "processes": processes, "failed": f"{type(error).__name__}: {error}"}
            yield row | {"dtype": options.dtype, "repeats": options.repeats, "took_s": time.monotonic() - began}
            gc.collect()
            if options.device == "cuda":
                torch.cuda.empty_cache()  # avoid fragmented memory for the next model


def line(row: dict[str, Any]) -> str:
    """A row as text."""
    start = f"{row['model']:<17}{row['processes']} process(es)  "
    if "failed" in row:
        return f"{start}failed: {row['failed']}"
    text = f"{start}predicted {_ms(row['predicted_s'])}  measured {_ms(row['measured_s'])}  {row['error']:+.1%}"
    if "parts" not in row:
        return text
    parts = [f"{name} {_ms(p['blocks_s'])}/{_ms(p['whole_s'])}" for name, p in row["parts"].items()]
    more = f"rest {_ms(row['rest_s'])}, from standstill {_ms(row['standstill_s'])}, launching {_ms(row['launch_s'])}"
    return f"{text}\n    blocks/whole: {', '.join(parts)}; {more}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--model", action="append", metavar="NAME", help="run only this model; may be repeated")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options)
        return
    from benchmarks.small_models import MODELS

    known = MODELS[options.device]
    if unknown := set(options.model or ()) - set(known):
        parser.error(f"--model {', '.join(sorted(unknown))}: unknown; the models are {', '.join(known)}")
    failed = False
    for row in rows(options.model or list(known), options):
        print(json.dumps(row) if options.json else line(row), flush=True)
        failed |= "failed" in row
    sys.exit(failed)


if __name__ == "__main__":
    main()
