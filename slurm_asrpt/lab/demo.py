"""make demo: play a day of a GPU cluster in about four minutes, under plain Slurm and under asrptd, side by side.

Each side is a real Slurm on this machine whose clock goes some hundred times as fast (asrpt-lab up --speed). The same
jobs are submitted to all of them at the same times: those of the last hours of a trace, with their own run times.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from slurm_asrpt import __version__
from slurm_asrpt.config import DEFAULT_POLICY
from slurm_asrpt.config.settings import load_settings
from slurm_asrpt.core.policies import policy_names
from slurm_asrpt.errors import EXIT_INTERRUPTED, AsrptError, InputError, MachineError, one_line
from slurm_asrpt.files import replace_file
from slurm_asrpt.lab import pace
from slurm_asrpt.lab.cluster import Lab, up
from slurm_asrpt.lab.pace import Pace
from slurm_asrpt.lab.processes import interrupts_deferred
from slurm_asrpt.lab.site import figures, simulated
from slurm_asrpt.lab.site.jobs import GPUS, Window, last_hours
from slurm_asrpt.lab.site.report import ratios, show_picture, table, verdict, write_plot
from slurm_asrpt.lab.site.sides import AGE, NO_WEIGHTS, Played, Queue, Setup, Site, down, play_on, spec
from slurm_asrpt.lab.spec import MAX_SPEED, ports
from slurm_asrpt.lab.train import Parser
from slurm_asrpt.slurm.parse import parse_config
from slurm_asrpt.text import counted
from slurm_asrpt.traces.sources import KNOWN, load_trace

BASE_PORT = 16900
OUTPUT = Path("build/demo.json")
PLAIN = Site("plain Slurm", AGE)
TRACE = "philly"
SUBMISSIONS_S = 240.0
"""Of the machine's time, in which all jobs are submitted if nothing else is asked for."""
SLOWEST = 20.0
MOST_HOURS = 24.0 * 31
MOST_LOAD = 5.0
TRIES = 3
"""Times that the labs are started to find a speed that this machine bears."""
USUALLY_LONGER = 1.15
"""Time until the last job has started, over that in which jobs are submitted."""
RECORDED_SETTINGS = (
    "SLURM_VERSION",
    "SchedulerType",
    "SchedulerParameters",
    "SelectType",
    "SelectTypeParameters",
    "PriorityType",
    "PriorityWeightAge",
    "PriorityMaxAge",
    "OverTimeLimit",
)
"""Slurm's settings that demo.json records."""
EXAMPLES = """
examples:
  python -m slurm_asrpt.lab.demo                              # the day that make demo plays
  python -m slurm_asrpt.lab.demo --policies asrpt-gated,asrpt # the paper's policy, too
  python -m slurm_asrpt.lab.demo --load 1.2 --seed 2          # more jobs, other time limits
  python -m slurm_asrpt.lab.demo --servers 0                  # the last day of the trace at its own times
  python -m slurm_asrpt.lab.demo --hours 6 --speed 120        # six hours in three minutes: starts cost less of the time
  python -m slurm_asrpt.lab.demo --trace itp --simulate       # another trace, in asrpt-sim: takes seconds
"""

console = Console(stderr=True)


@dataclass(frozen=True)
class Demo:
    """The command line. hours: in which jobs are submitted. longest_h: the site's MaxTime. speed: 0 for a default.

    servers: 0 for as many as the load needs at the trace's own times of submission. keep: where to keep logs and audit
    trails. simulate: play in asrpt-sim instead.
    """

    trace: str = TRACE
    hours: float = 24.0
    load: float = 1.0
    servers: int = 16
    longest_h: float = 12.0
    speed: float = 0.0
    seed: int = 1
    policies: tuple[str, ...] = (DEFAULT_POLICY,)
    output: Path = OUTPUT
    base_port: int = BASE_PORT
    keep: Path | None = None
    simulate: bool = False

    @property
    def longest_s(self) -> float:
        return self.longest_h * 3600

    @property
    def image(self) -> Path:
        return self.output.with_suffix(".png")

    @property
    def sites(self) -> tuple[Site, ...]:
        return (PLAIN, *(Site(name, NO_WEIGHTS, policy=name) for name in self.policies))

    def window(self) -> Window:
        """The jobs. Raises InputError."""
        trace = load_trace(self.trace, seed=self.seed, processors_as_gpus=True)
        return last_hours(trace, self.hours, self.load, self.servers, self.longest_s, self.seed)

    def first_speed(self, jobs: int) -> float:
        """The speed to try first."""
        if self.speed:
            return self.speed
        bearable = pace.bearable_for(jobs * len(self.sites), self.hours * 3600)
        return float(round(max(SLOWEST, min(self.hours * 3600 / SUBMISSIONS_S, bearable))))


# labs


@dataclass(frozen=True)
class Running:
    """A side and its lab."""

    site: Site
    setup: Setup
    lab: Lab


@contextmanager
def labs(demo: Demo, window: Window, stop: Event) -> Iterator[tuple[list[Running], Pace]]:
    """The labs of all sides at a speed that this machine bears, and that pace. Ended on leaving. Raises AsrptError."""
    speed = demo.first_speed(len(window.jobs))
    for _ in range(TRIES):
        running: list[Running] = []
        try:
            _start(demo, window, speed, stop, running)
            tried = _pace(running)
            if tried.bearable >= speed:
                yield running, tried
                return
        finally:
            with interrupts_deferred():
                for each in running:
                    down(each.lab, each.site, each.setup)
        if demo.speed:
            break
        speed = max(SLOWEST, pace.rounded(tried.bearable))
    raise MachineError(f"{tried}; this machine bears at most --speed {pace.rounded(tried.bearable):g} now")


def _start(demo: Demo, window: Window, speed: float, stop: Event, running: list[Running]) -> None:
    """Start the labs; each is in ``running`` before it is."""
    with console.status(f"starting {counted(len(demo.sites), 'cluster')} with {window.servers} x {GPUS} GPUs"):
        for number, site in enumerate(demo.sites):
            port = demo.base_port + number * ports(window.servers)
            setup = Setup(speed, demo.longest_s, port, demo.keep, stop, to_the_end=False)
            running.append(Running(site, setup, Lab(spec(site, window, setup))))
            up(running[-1].lab.spec)


def _pace(running: Sequence[Running]) -> Pace:
    """What the labs cost when they are all tried at the same time."""
    with console.status("trying the pace"), ThreadPoolExecutor(len(running)) as pool:
        return pace.together(list(pool.map(lambda each: pace.measure(each.lab), running)))


# play


def play(running: Sequence[Running], window: Window, cost: Pace, stop: Event) -> dict[str, Played]:
    """Play all sides at the same time. Raises AsrptError, KeyboardInterrupt."""
    text = TextColumn("{task.fields[queue]}")
    shown = (TextColumn("{task.description}"), BarColumn(20), text, TimeElapsedColumn())
    pool = ThreadPoolExecutor(len(running))
    with Progress(*shown, console=console) as progress:
        sides: list[Future[Played]] = []
        try:
            for each in running:
                task = progress.add_task(each.site.name, total=len(window.jobs), queue="")
                sides.append(pool.submit(_play_one, each, window, cost, progress, task))
            for side in as_completed(sides):
                side.result()
        finally:
            stop.set()
            with interrupts_deferred():
                pool.shutdown(cancel_futures=True)
    return {side.result().site.name: side.result() for side in sides}


def _play_one(each: Running, window: Window, cost: Pace, progress: Progress, task: TaskID) -> Played:
    def listener(queue: Queue) -> None:
        text = f"{queue.ended} of {len(window.jobs)} ended, {queue.running} run, {queue.waiting} wait"
        progress.update(task, completed=queue.submitted - queue.waiting, queue=text)

    try:
        return play_on(each.lab, each.site, window, each.setup, listener, cost)
    except AsrptError as error:
        raise MachineError(f"{each.site.name}: {one_line(error)}") from error


# the simulator


def in_simulator(demo: Demo, window: Window) -> dict[str, Played]:
    """The same jobs in asrpt-sim, on the sides that it has."""
    found = {}
    for site in demo.sites:
        with suppress(InputError):  # not every policy has nodes=fewest
            found[site.name] = simulated.play(site, window, demo.longest_s)
    return found


# the report


def report(demo: Demo, window: Window, played: Mapping[str, Played]) -> dict[str, Any]:
    """Print the picture, the table and the sentences, and write the plot. Returns the figures of all sides."""
    records = {name: side.records for name, side in played.items()}
    found = figures_of(window, played)
    there = found if demo.simulate else figures_of(window, in_simulator(demo, window))
    out = Console(highlight=False)
    show_picture(out, window, records)
    out.print(table(found))
    for name in found if len(found) > 1 else ():
        if name != PLAIN.name:
            out.print(verdict(found, name), soft_wrap=True)
    if not demo.simulate:
        shown = ", ".join(f"{name} {over:.2f}" for name, over in ratios(there).items())
        out.print(f"In asrpt-sim, where a start takes no time, the ratio is: {shown}", soft_wrap=True)
    write_plot(window, records, demo.image)
    for name, side in found.items():
        if failed := len(window.jobs) - side["completed"]:
            print(f"demo: {counted(failed, 'job')} did not complete under {name}", file=sys.stderr)
    return {"jobs": len(window.jobs), "ratio": ratios(found), "sides": found, "simulated": there}


def figures_of(window: Window, played: Mapping[str, Played]) -> dict[str, Any]:
    return {name: figures.figures(window, side.records) for name, side in played.items()}


def conditions(demo: Demo, window: Window) -> dict[str, Any]:
    """What the figures were made from."""
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "slurm_asrpt": __version__,
        "trace": demo.trace,
        "hours": demo.hours,
        "load": window.load,
        "stretch_of_arrivals": window.stretch,
        "seed": demo.seed,
        "servers": window.servers,
        "gpus_a_server": GPUS,
        "longest_h": demo.longest_h,
        "learned_from": len(window.known),
    }


def provenance(running: Sequence[Running], cost: Pace) -> dict[str, Any]:
    """What they were made on."""
    plain = running[0].lab
    slurm = parse_config(plain.run(["scontrol", "show", "config"]).stdout)
    settings = load_settings(plain.settings_path)
    return {
        "cpus": os.cpu_count(),
        "speed": cost.speed,
        "late_s": cost.late_s,
        "cpu": cost.cpu,
        "daemon": settings.daemon.model_dump(mode="json", exclude={"mode"}),
        "slurm": {name: slurm.get(name, "") for name in RECORDED_SETTINGS},
    }


# the command


def parser() -> Parser:
    """The options of the command line."""
    made = Parser(
        prog="demo",
        description=(__doc__ or "").splitlines()[0],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--hours", type=float, default=Demo.hours, help="hours of submissions (default %(default)g)")
    made.add_argument("--load", type=float, default=Demo.load, help="work over capacity (default %(default)g)")
    made.add_argument(
        "--servers",
        type=int,
        default=Demo.servers,
        help="with 8 GPUs each; 0: as many as the load needs without stretching arrivals (default %(default)s)",
    )
    made.add_argument(
        "--longest", type=float, default=Demo.longest_h, help="MaxTime in hours; cuts run times (default %(default)g)"
    )
    made.add_argument(
        "--speed",
        type=float,
        default=0.0,
        help="of the clocks (default: a day in four minutes, if the machine keeps up)",
    )
    made.add_argument("--seed", type=int, default=Demo.seed, help="of the drawn time limits (default %(default)s)")
    made.add_argument(
        "--policies",
        default=DEFAULT_POLICY,
        metavar="NAME,...",
        help=f"of asrptd: {', '.join(policy_names())} (default %(default)s)",
    )
    made.add_argument("--trace", default=TRACE, help=f"{KNOWN} (default %(default)s)")
    made.add_argument("--output", type=Path, default=OUTPUT, help="figures, beside a .png (default %(default)s)")
    made.add_argument("--base-port", type=int, default=BASE_PORT, help="first port (default %(default)s)")
    made.add_argument("--keep", type=Path, metavar="DIR", help="keep logs and audit trails here")
    made.add_argument("--simulate", action="store_true", help="play the same jobs in asrpt-sim instead: seconds")
    return made


def parse_options(arguments: Sequence[str] | None) -> Demo:
    """Parse the command line. Raises InputError."""
    options = parser().parse_args(arguments)
    policies = tuple(dict.fromkeys(options.policies.split(",")))
    for name in policies:
        if name not in policy_names():
            raise InputError(f"--policies {name}: unknown policy; valid: {', '.join(policy_names())}")
    for flag, least, most in (("hours", 0.1, MOST_HOURS), ("load", 0.01, MOST_LOAD), ("longest", 0.1, MOST_HOURS)):
        _check_range(flag, getattr(options, flag), least, most)
    if options.speed:
        _check_range("speed", options.speed, 2.0, MAX_SPEED)
    if options.servers < 0:
        raise InputError(f"--servers {options.servers}: must be at least 0")
    return Demo(
        trace=options.trace,
        hours=options.hours,
        load=options.load,
        servers=options.servers,
        longest_h=options.longest,
        speed=options.speed,
        seed=options.seed,
        policies=policies,
        output=options.output,
        base_port=options.base_port,
        keep=options.keep,
        simulate=options.simulate,
    )


def _check_range(flag: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InputError(f"--{flag} {value:g}: valid: {least:g} to {most:g}")


def _check_output(path: Path) -> None:
    """Raises InputError if the results cannot be written. Checked before the clusters start."""
    if path.suffix == ".png":
        raise InputError(f"--output {path}: name the file for the figures, such as {path.with_suffix('.json')}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise InputError(f"--output {path}: is a directory; specify a file")
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".demo."):
            pass
    except OSError as error:
        raise InputError(f"--output {path}: cannot be written ({error.strerror}); specify another file") from None


def plan(demo: Demo, window: Window, cost: Pace | None) -> str:
    """What the demo does, and how long it takes."""
    stretched = "" if window.stretch == 1 else f", {window.stretch:.2f} times as far apart as there"
    lines = [
        f"{counted(len(window.jobs), 'job')} of {window.trace.name} in {demo.hours:g} hours{stretched}, on",
        f"{window.servers} x {GPUS} GPUs: load {window.load:.2f}. asrptd has learned from {len(window.known)} before.",
        f"Side by side: {', '.join(site.name for site in demo.sites)}.",
    ]
    if cost:
        minutes = max(1, round(demo.hours * 3600 / cost.speed * USUALLY_LONGER / 60))
        lines += [f"Clocks at {cost}.", f"About {minutes} min. Ctrl-C stops everything."]
    return "\n".join(lines)


def perform(demo: Demo) -> dict[str, Any]:
    """Play the demo, and print what it found; all clusters have ended when this returns.

    Returns the contents of demo.json. Raises AsrptError, KeyboardInterrupt.
    """
    _check_output(demo.output)
    began, window = time.monotonic(), demo.window()
    made = conditions(demo, window)
    if demo.simulate:
        say(plan(demo, window, None))
        played = in_simulator(demo, window)
    else:
        stop = Event()
        with labs(demo, window, stop) as (running, cost):
            say(plan(demo, window, cost))
            made |= provenance(running, cost)
            played = play(running, window, cost, stop)
    made["took_s"] = round(time.monotonic() - began, 1)
    return {**report(demo, window, played), "made": made}


def say(text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 success, 1 failure, 2 bad input, 130 interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up after SIGTERM as after Ctrl-C
    try:
        demo = parse_options(arguments)
        found = perform(demo)
        replace_file(demo.output, (json.dumps(found, indent=2) + "\n").encode())
    except KeyboardInterrupt:
        print("demo: interrupted; all clusters have been stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    except OSError as error:
        print(f"demo: {error.filename}: {error.strerror}", file=sys.stderr)
        return MachineError.exit_code
    except AsrptError as error:
        print(f"demo: {one_line(error)}", file=sys.stderr)
        return error.exit_code
    print(
        f"figures are in {demo.output}, the picture is in {demo.image}; it took {found['made']['took_s'] / 60:.1f} min"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
