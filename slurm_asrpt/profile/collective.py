"""Measure the rate of all-reduces between processes: NCCL between GPUs, gloo between CPUs. Needs torch.

torchrun starts it on each node; the first process prints bytes/s as JSON:

    torchrun --nproc-per-node 2 -m slurm_asrpt.profile.collective --device cpu --bytes 7000000

It times what a training loop does: copy gradients into a buffer, all-reduce it, and copy back, 25 MiB at a time as DDP
does. The rate is that of (6): 2 (k-1)/k times the bytes over the seconds, so it includes copies and latency at this
size. ``intra`` is among the processes of the first node, ``inter`` among one process of each node, ``full`` among all
processes of all nodes: B_inter of nodes with several NICs, of which one process uses one. Not yet run on GPUs or on
several machines.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import torch
from torch import distributed

from slurm_asrpt.errors import InputError, MachineError

SIZE = 64 << 20
"""Default bytes of gradients."""
BUCKET = 25 << 20
"""Bytes per all-reduce, the default of torch's DistributedDataParallel."""
PIECE = 1 << 20
"""Bytes of one gradient."""
REPEATS, WARM_UP = 9, 3
LIMIT_S = 300


def launch(processes: int, device: str, size: int = SIZE) -> dict[str, float]:
    """Run torchrun on this node, or on all nodes of this job; bytes/s by name. Raises MachineError.

    size: bytes of gradients.
    """
    command = [*_spread(), sys.executable, "-m", "torch.distributed.run", *_meeting()]
    command += ["--nproc-per-node", str(processes), "-m", __name__]
    command += ["--device", device, "--bytes", str(size)]
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment)
        found = next(line for line in answer.stdout.splitlines() if line.startswith('{"'))
        return {str(name): float(rate) for name, rate in json.loads(found).items()}
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"the processes did not connect within {LIMIT_S} s; check that the nodes can reach each other"
        ) from None
    except (OSError, StopIteration, ValueError):
        raise MachineError("torchrun failed; run it by hand: " + " ".join(command)) from None


def check(processes: int, device: str) -> None:
    """Raises InputError if there is nothing to measure."""
    if processes * _nodes() < 2:
        raise InputError(f"--torchrun {processes}: one process has no peer; specify at least 2")
    if device == "cuda" and processes > torch.cuda.device_count():
        raise InputError(
            f"--torchrun {processes}: torch sees {torch.cuda.device_count()} GPU(s) here, and NCCL needs one for each "
            "process; specify fewer, or omit the option"
        )


def _nodes() -> int:
    return int(os.environ.get("SLURM_NNODES", "1"))


def _spread() -> list[str]:
    """The prefix that starts one torchrun on each node of a job."""
    return ["srun", "--ntasks-per-node=1", f"--nodes={_nodes()}"] if _nodes() > 1 else []


def _meeting() -> list[str]:
    if _nodes() == 1:
        return ["--standalone"]
    first = os.environ.get("SLURMD_NODENAME", "localhost")  # the batch script runs on the first node
    port = 20000 + int(os.environ.get("SLURM_JOB_ID", "0")) % 20000
    return [f"--nnodes={_nodes()}", "--rdzv-backend=c10d", f"--rdzv-endpoint={first}:{port}"]


def rate(group: distributed.ProcessGroup | None, device: torch.device, size: int = SIZE) -> float:
    """Bytes/s at which the group, including this process, exchanges ``size`` bytes of gradients; (6) solved for the
    rate."""
    gradients = sample(size, device)
    times = [seconds(group, gradients) for _ in range(WARM_UP + REPEATS)][WARM_UP:]
    return bytes_per_s(size, distributed.get_world_size(group), times)


def bytes_per_s(size: int, members: int, times: Sequence[float]) -> float:
    """The rate of (6) at which ``members`` processes take the median of these seconds for ``size`` bytes."""
    return float(2 * (members - 1) / members * size / statistics.median(times))


def sample(size: int, device: torch.device) -> list[torch.Tensor]:
    """``size`` bytes of gradients."""
    return [torch.ones(max(1, count // 4), device=device) for count in _pieces(size, PIECE)]


def seconds(group: distributed.ProcessGroup | None, gradients: Sequence[torch.Tensor]) -> float:
    """Time of one exchange that all processes start together."""
    distributed.barrier(group)
    begin = time.perf_counter()
    exchange(group, gradients)
    if gradients[0].is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def exchange(group: distributed.ProcessGroup | None, gradients: Sequence[torch.Tensor]) -> None:
    """Replace the gradients by their mean over the group."""
    for bucket in _buckets(gradients):
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        distributed.all_reduce(flat, group=group)
        flat.div_(distributed.get_world_size(group))
        for gradient, part in zip(bucket, flat.split([gradient.numel() for gradient in bucket]), strict=True):
            gradient.copy_(part.view_as(gradient))


def _buckets(gradients: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Groups of as many gradients as BUCKET holds, at least one."""
    bucket, room = list[torch.Tensor](), BUCKET
    for gradient in gradients:
        size = gradient.numel() * gradient.element_size()
        if bucket and size > room:
            yield bucket
            bucket, room = [], BUCKET
        bucket.append(gradient)
        room -= size
    if bucket:
        yield bucket


def _pieces(size: int, most: int) -> list[int]:
    return [min(most, size - at) for at in range(0, size, most)]


def measure(device: torch.device, local: int, size: int) -> dict[str, float]:
    """Rates among this node's ``local`` processes, among the first of each node, and among all."""
    rank, world = distributed.get_rank(), distributed.get_world_size()
    found = dict[str, float]()
    groups = {
        "intra": [list(range(first, first + local)) for first in range(0, world, local)],
        "inter": [list(range(0, world, local))],
        "full": [list(range(world))] if 1 < local < world else [],
    }
    for name, members in groups.items():
        made = [distributed.new_group(group) for group in members]  # all processes take part in this
        for group, process_group in zip(members, made, strict=True):
            if rank in group and len(group) > 1:
                found[name] = rate(process_group, device, size)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--bytes", type=int, default=SIZE, help="of gradients")
    options = parser.parse_args()
    place = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", place) if options.device == "cuda" else torch.device("cpu")
    if options.device == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if options.device == "cuda" else "gloo")
    found = measure(device, int(os.environ["LOCAL_WORLD_SIZE"]), options.bytes)
    if distributed.get_rank() == 0:
        print(json.dumps(found), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
