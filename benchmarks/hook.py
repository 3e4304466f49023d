"""Cost of the job_submit hook for slurmctld and for submissions: python -m benchmarks.hook --json

Two labs run on this machine, one with the hook and one without. The table has one million groups. Scripts have 64 KB,
are all different, and have no key in the table (the longest lookup). ``p50_us`` and ``p99_us``: the whole job_submit
call inside slurmctld, by os.clock, in CPU microseconds of slurmctld's process; other threads of slurmctld count too.
``sbatch_overhead_pct``: the median of the pairwise differences (with - without) over the median without.
``control_p50_us`` and ``control_p99_us``: an arithmetic loop in place of the hook, run after each pair. Its work is
constant, so the distance of its 99th percentile from its median is due to the machine and slurmctld. Needs root.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import track

from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.files import replace_file
from slurm_asrpt.hook.hook_conf import write_hook_conf
from slurm_asrpt.hook.table import FILE_NAME, Entry, render_table
from slurm_asrpt.lab.cluster import Lab, up
from slurm_asrpt.lab.spec import LabSpec

TIMES, CONTROL = Path("log") / "hook-times", Path("log") / "control-times"  # a directory that the lab deletes
CONTROL_NAME = "control"
ROUNDS = 20_000  # iterations of the loop, which takes about as long as the hook
TIMED = """\
local asrpt = dofile("{etc}/job_submit_asrpt.lua").open("{hook}")
local function arithmetic()
  local a = 1
  for i = 1, {rounds} do a = (a * 1000003 + i) % 4294967291 end
  return slurm.SUCCESS
end
function slurm_job_submit(desc, parts, uid)
  local control = desc.name == "{control_name}"
  local call, times = control and arithmetic or asrpt.job_submit, control and "{control}" or "{times}"
  local begun = os.clock()
  local rc = call(desc, parts, uid)
  local took = os.clock() - begun
  local file = io.open(times, "a")
  file:write(string.format("%.0f\\n", took * 1e6))
  file:close()
  return rc
end
function slurm_job_modify(desc, record, parts, uid) return asrpt.job_modify(desc, record, parts, uid) end
"""
BLOCKS = [
    "# what follows was tried on the old partition too, see the notes of last spring\n\n",
    "if [ ! -d $DATA/shard{n} ]; then\n    cp -r /archive/shard{n} $DATA/shard{n}\nfi\n",
    "export STAGE_{n}=$DATA/stage{n} SEED={n} OUTPUT_DIR=/scratch/run{n}\n",
    "echo stage {n} begins at $(date)\n",
    "srun --ntasks=8 --gpus-per-task=1 torchrun --nproc_per_node 8 train.py --model m{n} \\\n"
    "    --dataset $DATA/shard{n} --epochs {n} --lr 1e-4 --batch-size 256 --seed {n} 2>&1 | tee log{n}.txt\n",
    "python - <<'END'\nimport torch\nfor step in range({n}):\n    # one more\n    model.step(lr=0.1 * step)\nEND\n",
]


def script(size: int, draw: random.Random) -> str:
    """A job script of ``size`` bytes: commands, comments, variables and a little Python."""
    text = "#!/bin/bash\n#SBATCH --gpus=8\nmodule load cuda\n"
    while len(text) < size:
        text += draw.choice(BLOCKS).format(n=draw.randrange(10**6))
    return text[: size - 1] + "\n"


@contextmanager
def lab(port: int, hook: bool) -> Iterator[Lab]:
    directory = Path(tempfile.mkdtemp(prefix="asrpt-hook-"))
    directory.rmdir()
    found = up(LabSpec(directory=directory, nodes="1x8", base_port=port, users=0, hook=hook))
    try:
        yield found
    finally:
        found.down(purge=True)


def prepare(found: Lab, groups: int) -> None:
    """A table of random groups, a hook.conf, and the timed job_submit.lua."""
    paths, draw = found.paths, random.Random(1)
    table = render_table({f"{draw.getrandbits(64):016x}": Entry(100, 50, 200) for _ in range(groups)})
    replace_file(paths.hook / FILE_NAME, table)
    text = TIMED.format(
        etc=paths.etc,
        hook=paths.hook,
        times=found.directory / TIMES,
        control=found.directory / CONTROL,
        control_name=CONTROL_NAME,
        rounds=ROUNDS,
    )
    (paths.etc / "job_submit.lua").write_text(text, encoding="utf-8")
    found.restart_slurmctld()


def beat(found: Lab, number: int) -> float:
    """The daemon's heartbeat: write a new hook.conf. Return the time of the write."""
    write_hook_conf(found.paths.hook, ["gpu"], 600, time.time() + 600 + number, GroupSettings())
    return time.monotonic()


def submit(found: Lab, text: str, name: str = "train") -> float:
    """Milliseconds that sbatch takes. Jobs are held, so Slurm does not try to start them, whatever the hook does."""
    begun = time.perf_counter()
    found.run(["sbatch", "--hold", "--gpus=8", "-J", name], input=text)
    return (time.perf_counter() - begun) * 1e3


def measure(with_hook: Lab, without: Lab, options: argparse.Namespace) -> dict[str, object]:
    draw, pairs = random.Random(2), list[tuple[float, float]]()
    console = Console(stderr=True)
    turns, beaten = range(options.pairs + options.warm_up), -math.inf
    for turn in track(turns, "submitting", console=console, disable=not console.is_terminal):
        text = script(options.script_bytes, draw)
        if time.monotonic() >= beaten + options.heartbeat:
            beaten = beat(with_hook, turn)
        if turn % 2:
            pairs.append((submit(with_hook, text), submit(without, text)))
        else:
            plain = submit(without, text)
            pairs.append((submit(with_hook, text), plain))
        submit(with_hook, text, CONTROL_NAME)
    times, control = (_times(with_hook.directory / name)[options.warm_up :] for name in (TIMES, CONTROL))
    return figures(pairs[options.warm_up :], times, control) | {
        "heartbeat_s": options.heartbeat,
        "groups": options.groups,
        "script_bytes": options.script_bytes,
    }


def _times(path: Path) -> list[int]:
    return [int(line) for line in path.read_text(encoding="ascii").split()]


def figures(pairs: Sequence[tuple[float, float]], times: Sequence[int], control: Sequence[int]) -> dict[str, object]:
    """times, control: microseconds of the hook and of the loop; pairs: milliseconds of sbatch with and without it."""
    plain = statistics.median(b for _, b in pairs)
    more = statistics.median(a - b for a, b in pairs)
    p50, p99 = _percentiles(times)
    control_p50, control_p99 = _percentiles(control)
    return {
        "p50_us": p50,
        "p99_us": p99,
        "max_us": max(times),
        "control_p50_us": control_p50,
        "control_p99_us": control_p99,
        "sbatch_overhead_pct": round(100 * more / plain, 2),
        "sbatch_ms": round(plain, 2),
        "sbatch_more_ms": round(more, 3),
        "pairs": len(pairs),
    }


def _percentiles(times: Sequence[int]) -> tuple[int, int]:
    found = statistics.quantiles(times, n=100, method="inclusive")
    return round(found[49]), round(found[98])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object to stdout")
    parser.add_argument("--pairs", type=int, default=400, help="pairs of submissions, with and without the hook")
    parser.add_argument("--warm-up", type=int, default=10, help="warm-up pairs, not counted")
    parser.add_argument(
        "--heartbeat", type=float, default=0.0, help="seconds between versions of hook.conf; 0: always new"
    )
    parser.add_argument("--groups", type=int, default=1_000_000)
    parser.add_argument("--script-bytes", type=int, default=65536)
    parser.add_argument("--port", type=int, default=17600, help="first port of the labs, which use up to 80 more")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        with_hook = stack.enter_context(lab(options.port, hook=True))
        without = stack.enter_context(lab(options.port + 40, hook=False))
        prepare(with_hook, options.groups)
        found = measure(with_hook, without, options)
    print(json.dumps(found, indent=None if options.json else 2), file=sys.stdout)


if __name__ == "__main__":
    main()
