"""How near predicted iteration times come to measured ones: python -m benchmarks.accuracy --json

Models, measured block by block as asrpt-profile run does, are cut and timed by core/timing, and compared with whole
iterations of a plain training loop: alone, and data-parallel in two processes that exchange their gradients once the
backward pass is done (gloo on a CPU, NCCL on GPUs), at the rate that profile/collective.py measures at that size. Both
processes measure their half of the mini-batch at the same time, for they share the machine, and the slower one counts;
blocks, rate and training take turns. One thread each on a CPU. Two small models on a CPU, six larger ones with --device
cuda, where the second part needs two GPUs. Needs torch. Has not been run on GPUs yet.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
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
    name: str, device: str, repeats: int, begin: Callable[..., object] = lambda *_: None, **options: int
) -> UncutFile:
    """The model's blocks as measured here and now, with whole iterations between them. begin: called at each round."""
    from benchmarks.small_models import MODELS
    from slurm_asrpt.profile.measure import How, measure

    how = How(device=device, warm_up=WARM_UP, repeats=repeats)
    make = MODELS[device][name]
    return measure(lambda: make(**options), name, f"benchmarks.accuracy {name}", how, lambda *_: begin())


def alone(name: str, device: str, repeats: int) -> dict[str, Any]:
    document = profiled(name, device, repeats)
    return _row(name, 1, predicted(document, 1, 1.0), document.iteration_s)


def together(name: str, device: str, repeats: int) -> dict[str, Any]:
    """Two processes with half of the mini-batch each."""
    return _torchrun(["-m", "benchmarks.accuracy", "--worker", name, "--device", device, "--repeats", str(repeats)])


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
    found: dict[str, Any] = json.loads(next(line for line in answer.stdout.splitlines() if line.startswith("{")))
    return found


def worker(name: str, device: str, repeats: int) -> None:
    """One process of two: measures its share and trains in turns, exchanging gradients after the backward pass."""
    import torch
    from torch import distributed

    from benchmarks.small_models import MODELS
    from slurm_asrpt.profile.collective import exchange, rate
    from slurm_asrpt.profile.measure import subject, timed

    torch.set_num_threads(1)
    place = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if device == "cuda" else torch.device("cpu")
    if device == "cuda":
        torch.cuda.set_device(place)
    distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    make = MODELS[device][name]
    batch = len(subject(make()).inputs) // REPLICAS
    half = subject(make(batch=batch))
    module, inputs = half.module.to(place), half.inputs.to(place)
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-5)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        half.loss(module(inputs)).backward()
        exchange(None, [parameter.grad for parameter in module.parameters()])
        optimiser.step()

    size = sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
    guesses, times, rates = list[float](), list[float](), list[float]()
    for _ in range(TURNS):
        document = profiled(name, device, max(2, repeats // TURNS), distributed.barrier, batch=batch)
        rates.append(rate(None, place, size))
        guesses.append(predicted(of_the_whole(document), REPLICAS, rates[-1]))
        times += [timed(step, device)[1] for _ in range(WARM_UP + max(2, repeats // TURNS))][WARM_UP:]
    both: list[Any] = [None] * REPLICAS
    distributed.all_gather_object(both, statistics.median(guesses))
    if distributed.get_rank() == 0:
        row = _row(name, REPLICAS, max(both), statistics.median(times))
        print(json.dumps(row | {"allreduce_bytes_per_s": statistics.median(rates)}), flush=True)
    distributed.destroy_process_group()


def rows(device: str, repeats: int) -> Iterator[dict[str, Any]]:
    import torch

    from benchmarks.small_models import MODELS

    torch.set_num_threads(1)
    for name in MODELS[device]:
        yield alone(name, device, repeats)
        if device == "cpu" or torch.cuda.device_count() >= REPLICAS:
            yield together(name, device, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.device, options.repeats)
        return
    found = list(rows(options.device, options.repeats))
    if options.json:
        print(json.dumps({"device": options.device, "repeats": options.repeats, "rows": found}))
        return
    for row in found:
        line = f"{row['model']:<14}{row['processes']} process(es)  predicted {row['predicted_s'] * 1e3:7.2f} ms"
        print(f"{line}  measured {row['measured_s'] * 1e3:7.2f} ms  {row['error']:+.1%}")


if __name__ == "__main__":
    main()
