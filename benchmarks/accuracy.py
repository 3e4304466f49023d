"""How near predicted iteration times come to measured ones: python -m benchmarks.accuracy --json

Models, measured block by block as asrpt-profile run does, are cut and timed by core/timing, and compared with whole
iterations of a plain training loop: alone, and data-parallel in two processes that exchange their gradients once the
backward pass is done (gloo on a CPU, NCCL on GPUs), at the rate that profile/collective.py measures at that size. Both
processes measure their half of the mini-batch at the same time, for they share the machine, and the slower one counts;
blocks, rate and training take turns. One thread each on a CPU. Two small models on a CPU, six larger ones with --device
cuda, where the second part needs two GPUs. Each model's line is printed when it is done. Needs torch and nothing else.
Has not been run on GPUs yet.

What explains an error stands beside it: forward, backward and update of the blocks together and inside of whole
iterations; rest_s, what those take beside these three; standstill_s, an iteration that finds the GPU idle and is waited
for; launch_s, the host's time to launch it. Where that is near measured_s the GPU waits for the host.
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
TURNS = 3
LIMIT_S = 600


def predicted(document: UncutFile, replicas: int, intra: float) -> float:
    """alpha (7) of the model on one server, in ``replicas`` data-parallel replicas."""
    profile = job_profile(document, Cut((len(document.blocks),), (replicas,)), "n")
    return iteration_time(profile, [0] * replicas, [replicas], Fabric(intra, intra))


def profiled(
    name: str,
    options: argparse.Namespace,
    begin: Callable[..., object] = lambda *_: None,
    repeats: int = 0,
    **size: int,
) -> tuple[UncutFile, Any]:
    """The model's blocks as measured here and now, and the whole iterations between them. begin: called each round."""
    from benchmarks.small_models import MODELS
    from slurm_asrpt.profile.measure import How, measure_both

    how = How(device=options.device, dtype=options.dtype, warm_up=WARM_UP, repeats=repeats or options.repeats)
    make = MODELS[options.device][name]
    return measure_both(lambda: make(**size), name, f"benchmarks.accuracy {name}", how, lambda *_: begin())


def alone(name: str, options: argparse.Namespace) -> dict[str, Any]:
    document, whole = profiled(name, options)
    row = _row(name, 1, predicted(document, 1, 1.0), whole.seconds)
    return row | {"spread_s": whole.spread_s} | _parts(document, whole) | {"device": document.head.device}


def _parts(document: UncutFile, whole: Any) -> dict[str, Any]:
    """Where the difference comes from."""
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


def of_the_whole(half: UncutFile) -> UncutFile:
    """The blocks of a mini-batch of which each replica has measured its share."""
    blocks = (
        replace(
            b, forward_s=REPLICAS * b.forward_s, backward_s=REPLICAS * b.backward_s, bytes_out=REPLICAS * b.bytes_out
        )
        for b in half.blocks
    )
    return replace(half, blocks=tuple(blocks))


def _row(name: str, processes: int, guess: float, truth: float) -> dict[str, Any]:
    return {
        "model": name,
        "processes": processes,
        "predicted_s": guess,
        "measured_s": truth,
        "error": guess / truth - 1,
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
    """One process of two: measures its share and trains in turns, exchanging gradients after the backward pass."""
    import torch
    from torch import distributed

    from benchmarks.small_models import MODELS
    from slurm_asrpt.profile.clock import timed
    from slurm_asrpt.profile.collective import exchange, rate
    from slurm_asrpt.profile.measure import OPTIMISERS, How, placed, subject

    torch.set_num_threads(1)
    cuda = options.device == "cuda"
    place = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(place)
    distributed.init_process_group("nccl" if cuda else "gloo")
    make = MODELS[options.device][name]
    batch = len(subject(make()).inputs) // REPLICAS
    half = placed(subject(make(batch=batch)), options.device, How(dtype=options.dtype))
    optimiser = OPTIMISERS["adamw"](half.module.parameters())

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        half.loss(half.module(half.inputs)).backward()
        exchange(None, [parameter.grad for parameter in half.module.parameters()])
        optimiser.step()

    size = sum(parameter.numel() * parameter.element_size() for parameter in half.module.parameters())
    guesses, times, rates = list[float](), list[float](), list[float]()
    repeats = max(2, options.repeats // TURNS)
    for _ in range(TURNS):
        document, _whole = profiled(name, options, distributed.barrier, repeats, batch=batch)
        rates.append(rate(None, place, size))
        guesses.append(predicted(of_the_whole(document), REPLICAS, rates[-1]))
        times += [timed(step, options.device)[1] for _ in range(WARM_UP + repeats)][WARM_UP:]
    both: list[Any] = [None] * REPLICAS
    distributed.all_gather_object(both, statistics.median(guesses))
    if distributed.get_rank() == 0:
        row = _row(name, REPLICAS, max(both), statistics.median(times))
        print(json.dumps(row | {"allreduce_bytes_per_s": statistics.median(rates)}), flush=True)
    distributed.destroy_process_group()


def rows(names: Sequence[str], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One model after the other; what fails does not keep the others from being measured."""
    import torch

    torch.set_num_threads(1)
    parts: list[tuple[int, Callable[..., dict[str, Any]]]] = [(1, alone)]
    if options.device == "cpu" or torch.cuda.device_count() >= REPLICAS:
        parts.append((REPLICAS, together))
    else:
        print(f"{REPLICAS} processes: left out, for NCCL needs a GPU for each", file=sys.stderr)
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
                torch.cuda.empty_cache()  # or the next one finds it in pieces


def line(row: dict[str, Any]) -> str:
    """A row for people."""
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
    parser.add_argument("--model", action="append", metavar="NAME", help="only this one; can be given again")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options)
        return
    from benchmarks.small_models import MODELS

    known = MODELS[options.device]
    if unknown := set(options.model or ()) - set(known):
        parser.error(f"--model {', '.join(sorted(unknown))}: there are {', '.join(known)}")
    failed = False
    for row in rows(options.model or list(known), options):
        print(json.dumps(row) if options.json else line(row), flush=True)
        failed |= "failed" in row
    sys.exit(failed)


if __name__ == "__main__":
    main()
