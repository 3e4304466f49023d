"""Train real models as jobs on a real Slurm, twice: python -m benchmarks.trainings --json

A lab with asrptd in mode enforce runs a model of benchmarks.training_jobs on this machine, one job at a time: a
plain loop, Lightning's Trainer and that of transformers, as far as they are installed. Each kind runs twice, first
with a profile that ``asrpt-profile run`` has just measured here, then without one; asrpt-admin retrain runs after each
first job.

A row has ``iterations`` as the first run reported them, and for the second run ``predicted_iterations`` from the
learned table, ``predicted_s``, ``measured_s`` and the ``error`` (predicted over measured, less 1). With a profile,
predicted_s is iterations times ``alpha_s``, the profile's seconds per iteration: what a job does beside its iterations
(importing torch ...) does not count. ``alpha_observed_s`` is that of the job's reports. Without a profile, asrpt learns
seconds from beginning to end. Needs root, Slurm and torch; takes about ten minutes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.accuracy import predicted
from benchmarks.busylab import big_lab
from slurm_asrpt.config import DEFAULT_POLICY
from slurm_asrpt.errors import AsrptError, MachineError
from slurm_asrpt.history.store import FILE_NAME, History, Run
from slurm_asrpt.lab.asrptd import asrptd
from slurm_asrpt.lab.cluster import Lab
from slurm_asrpt.lab.spec import LabSpec
from slurm_asrpt.profile.documents import load_uncut

T = TypeVar("T")
LIBRARIES = {"plain": "torch", "lightning": "lightning", "transformers": "transformers"}
KINDS = tuple(LIBRARIES)
NAME, WHOLE = "small", "small-1gpu"
"""The profile that is measured, and its name for a job with one GPU."""
COMMANDS = Path(sys.executable).parent
PATIENCE_S = 600.0
ENVIRONMENT = {"PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"}
"""Of the measurement and of the jobs: this checkout, and one thread."""
SETTINGS: dict[str, Any] = {"daemon": {"interval_s": 0.5, "progress_s": 1.0}}


@dataclass(frozen=True)
class Outcome:
    """A finished job: its row of the history, and asrpt-status's row while it ran."""

    run: Run
    shown: dict[str, Any]

    @property
    def seconds(self) -> int:
        return self.run.end_time - self.run.start_time


def measured_profile(folder: Path, device: str, on: str) -> float:
    """Measure the model on this machine, for the lab's profiles; returns its seconds per iteration."""
    path = folder / f"{NAME}.toml"
    factory = device if on == "text" else f"{device}_{on}"
    command: list[str | Path] = [COMMANDS / "asrpt-profile", "run", f"benchmarks.training_jobs:{factory}"]
    command += ["--name", NAME, "--device", device, "--repeats", "30", "-o", path]
    subprocess.run(command, env=os.environ | ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)
    folder.chmod(0o755)
    path.chmod(0o644)
    return predicted(load_uncut(str(path), ()), 1, 1.0)


class Site:
    """A lab under asrptd, on which one training at a time runs."""

    def __init__(self, lab: Lab, device: str, on: str) -> None:
        self._lab, self._device, self._on = lab, device, on

    def _run(self, command: str, *words: str) -> str:
        return self._lab.run([COMMANDS / command, *words], timeout_s=PATIENCE_S).stdout

    def train(self, kind: str, iterations: int, profile: str) -> Outcome:
        """Submit a training and wait for its end. Raises MachineError if it fails."""
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in ENVIRONMENT.items())
        command = [sys.executable, "-m", "benchmarks.training_jobs", kind, "--device", self._device]
        command += ["--on", self._on, "--iterations", str(iterations)]
        script = f"#!/bin/sh\n{exports}exec {shlex.join(command)}\n"
        options = ["--parsable", "-n1", "--gpus-per-task=1", f"--job-name={kind}{profile and '-profiled'}"]
        options += [f"--comment=asrpt:profile={profile}"] if profile else []
        job = self._lab.run(["sbatch", *options], input=script).stdout.strip()
        shown: dict[str, Any] = {}

        def ended() -> Run | None:
            shown.update(self._shown(job))
            return self._recorded(job)

        run = _await(ended, f"job {job} ({kind}) ends")
        if run.state != "COMPLETED":
            raise MachineError(f"job {job} ({kind}): {run.state}; see the log {self._lab.home() / f'slurm-{job}.out'}")
        return Outcome(run, shown)

    def retrain(self) -> None:
        self._run("asrpt-admin", "retrain")

    def _shown(self, job: str) -> dict[str, Any]:
        rows = json.loads(self._run("asrpt-status", "--json"))["jobs"]
        return next((row for row in rows if row["job_id"] == job and row["state"] == "running"), {})

    def _recorded(self, job: str) -> Run | None:
        with History(self._lab.directory / "asrpt" / "state" / FILE_NAME, read_only=True) as history:
            return next((run for run in history.runs() if run.job_id == job), None)


def _await(found: Callable[[], T | None], what: str) -> T:
    deadline = time.monotonic() + PATIENCE_S
    while (value := found()) is None:
        if time.monotonic() > deadline:
            raise MachineError(f"after {PATIENCE_S:g} s still not: {what}")
        time.sleep(0.5)
    return value


def rows(
    site: Site, kinds: list[str], alpha: float, seconds: float, profiles: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """alpha: seconds per iteration of the profile. seconds: of a training, by the profile."""
    iterations = max(10, round(seconds / alpha))
    for profile in profiles:
        for kind in kinds:
            first = site.train(kind, iterations, profile)
            site.retrain()
            yield row(kind, first, site.train(kind, iterations, profile), alpha if profile else None)


def row(kind: str, first: Outcome, second: Outcome, alpha: float | None) -> dict[str, Any]:
    guess, truth = second.shown["predicted_run_s"], second.seconds
    return {
        "kind": kind,
        "profile": bool(alpha),
        "iterations": first.run.iterations,
        "source": str(first.run.iterations_source),
        "reported_total": first.run.reported_total,
        "predicted_iterations": second.run.predicted_iterations,
        "predicted_by": second.run.predicted_by,
        "alpha_s": alpha,
        "alpha_observed_s": second.shown.get("alpha_observed"),
        "first_s": first.seconds,
        "predicted_s": guess,
        "measured_s": truth,
        "error": guess / truth - 1,
    }


def line(found: dict[str, Any]) -> str:
    """A row as text."""
    name = f"{found['kind']}, {'with' if found['profile'] else 'without'} profile"
    counts = f"{found['iterations']} {found['source']}, predicted {found['predicted_iterations']}"
    times = f"predicted {found['predicted_s']:.1f} s, ran {found['measured_s']} s  {found['error']:+.1%}"
    return f"{name:<30}{counts:<34}{times}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--seconds", type=float, default=30.0, metavar="S", help="of the iterations of a training")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: the first GPU")
    parser.add_argument("--on", choices=("text", "images"), default="text", help="images: ResNet50; needs a GPU")
    parser.add_argument("--profiled", action="store_true", help="only with a profile")
    parser.add_argument("--base-port", type=int, default=18300)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    options = parser.parse_args()
    if options.on == "images" and options.device == "cpu":
        parser.error("--on images needs --device cuda")
    kinds = installed(options.kinds)
    if missing := [kind for kind in options.kinds if kind not in kinds]:
        print(f"skipped, because their library is not installed: {', '.join(missing)}", file=sys.stderr)
    try:
        for found in in_a_lab(kinds, options):
            print(json.dumps(found) if options.json else line(found), flush=True)
    except AsrptError as error:
        sys.exit(f"trainings: {error}")


def installed(kinds: Sequence[str]) -> list[str]:
    """Those that have their library here."""
    return [kind for kind in kinds if importlib.util.find_spec(LIBRARIES[kind])]


def in_a_lab(kinds: list[str], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="asrpt-profiles-") as folder:
        alpha = measured_profile(Path(folder), options.device, options.on)
        spec = LabSpec(
            nodes="1x1",
            base_port=options.base_port,
            users=1,
            settings=SETTINGS | {"paths": {"profiles": [folder]}},
        )
        with big_lab(spec) as lab, asrptd(lab, "enforce", DEFAULT_POLICY):
            site = Site(lab, options.device, options.on)
            yield from rows(site, kinds, alpha, options.seconds, [WHOLE] if options.profiled else [WHOLE, ""])


if __name__ == "__main__":
    main()
