"""A real Slurm on this machine for the tests, and asrptd beside it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slurm_asrpt.config.settings import SlurmSettings
from slurm_asrpt.daemon.record.history import REQUEUED
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.files import replace_file
from slurm_asrpt.history.store import FILE_NAME as HISTORY
from slurm_asrpt.history.store import History, Run
from slurm_asrpt.hook.group import owned
from slurm_asrpt.hook.table import FILE_NAME as TABLE
from slurm_asrpt.hook.table import Entry, render_table
from slurm_asrpt.hook.tag import parse_tag
from slurm_asrpt.lab.cluster import Lab, up
from slurm_asrpt.lab.machine import identity
from slurm_asrpt.lab.spec import LabSpec
from slurm_asrpt.slurm.cli import CliClient
from slurm_asrpt.slurm.records import PENDING, JobRecord
from slurm_asrpt.status.document import read_status

COMMANDS = Path(sys.executable).parent
LEASE_S = 8
QUICK: dict[str, Any] = {"daemon": {"interval_s": 1.0, "forecast_s": 0, "lease_s": LEASE_S, "unpin_after_s": 5.0}}
"""Without estimates of start times, which take CPU time: ``start_forecasting_daemon``."""
PATIENCE = 3
"""Timeouts are for an idle machine; tests also run in parallel and on slower machines."""
SOON_S = 30
"""A job that nothing delays starts within this time, even on a busy machine."""
MIN_JOB_AGE_S = 300
"""For so long, in the machine's time, Slurm still shows a job that has ended."""
REQUEUE_PAUSE_S = 121
"""For so long Slurm delays a requeued job by default: a second more than the lifetime of credentials."""
BASE_PORT = int(os.environ.get("ASRPT_TEST_PORT", "17500"))


def quick(speed: float) -> dict[str, Any]:
    """asrptd's settings on a clock of this speed: as quick as QUICK in the machine's time, with leases as on a site."""
    return {"daemon": {"interval_s": speed, "forecast_s": 0, "unpin_after_s": 5 * speed}} if speed > 1 else QUICK


def can_run_slurm() -> str:
    """Why no lab cluster can run here, or "" if one can."""
    if os.geteuid() != 0:
        return "needs root (many slurmd on one machine)"
    return _missing(("slurmctld", "slurmd", "munged"), "make setup")


def _missing(commands: Sequence[str], remedy: str) -> str:
    missing = [name for name in commands if shutil.which(name) is None]
    return f"missing: {', '.join(missing)} ({remedy})" if missing else ""


@contextmanager
def own_lab(
    port: int, nodes: str, settings: dict[str, Any] | None = None, folder: Path | None = None, **spec: Any
) -> Iterator[Lab]:
    """A lab cluster for one test at BASE_PORT + ``port``; skips the test if none can run here.

    settings: of asrptd, instead of QUICK. folder: a new directory, instead of one in /tmp. speed: gives the lab a clock
    of its own: settings, job lengths and limits are in its time, timeouts of tests in the machine's.
    """
    speed = spec.get("speed", 1.0)
    accounting = ("slurmdbd", "mariadbd") if spec.get("accounting") else ()
    clock = ("faketime",) if speed > 1 else ()
    why_not = can_run_slurm() or _missing(clock, "make setup") or _missing(accounting, "make test installs them")
    if why_not:
        pytest.skip(why_not)
    directory = folder or Path(tempfile.mkdtemp(prefix="asrpt-own-"))
    if folder is None:
        directory.chmod(0o755)
        directory.rmdir()
    if speed > 1:
        spec["slurm_conf_extra"] = f"{spec.get('slurm_conf_extra', '')}\nMinJobAge={round(MIN_JOB_AGE_S * speed)}"
    settings = quick(speed) if settings is None else settings
    lab = up(LabSpec(directory, nodes, BASE_PORT + port, settings=settings, **spec))
    try:
        yield lab
    finally:
        lab.down(purge=True)
        shutil.rmtree(directory, ignore_errors=True)  # what the test has written there, which the lab does not remove


@contextmanager
def own_cluster(port: int, nodes: str, settings: dict[str, Any] | None = None, **spec: Any) -> Iterator[Cluster]:
    """Like ``own_lab``, with asrptd: the test starts it, and it is stopped here."""
    with own_lab(port, nodes, settings, **spec) as lab:
        cluster = Cluster(lab)
        try:
            yield cluster
        finally:
            cluster.stop_daemon()


class Cluster:
    """A lab with asrptd: what the tests do and query."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.client = CliClient(SlurmSettings(conf=str(lab.slurm_conf)))
        self.client.environment |= lab.clock.variables if lab.clock else {}
        self.paths = lab.directory / "asrpt"
        self.daemon: subprocess.Popen[bytes] | None = None
        self.log = lab.directory / "log" / "asrptd.log"

    # asrptd

    def start_daemon(self, *arguments: str) -> None:
        """As the lab's SlurmUser, with the umask of the unit."""
        uid, gid = identity(self.lab.spec.slurm_user)
        with self.log.open("ab") as log:
            command: list[str | Path] = [COMMANDS / "asrptd", "--log-level", "debug", *arguments]
            self.daemon = subprocess.Popen(
                command, env=self.lab.env, stdout=log, stderr=log, user=uid, group=gid, extra_groups=[], umask=0o077
            )
        before = self.time()
        wait_for(lambda: self.status_written() > before, "asrptd writes its status", 15)

    def start_forecasting_daemon(self, forecast_s: float = 1.0) -> None:
        """asrptd that also estimates start times, so often."""
        settings = self.lab.directory / "forecast.toml"
        text = self.lab.settings_path.read_text("utf-8")
        settings.write_text(re.sub(r"(?m)^forecast_s = .*$", f"forecast_s = {forecast_s}", text), "utf-8")
        self.start_daemon("--config", str(settings))

    def status_written(self) -> float:
        with contextlib.suppress(Exception):
            return read_status(self.paths / "run").written
        return 0.0

    def stop_daemon(self, number: int = signal.SIGTERM) -> int | None:
        daemon, self.daemon = self.daemon, None
        if daemon is None:
            return None
        daemon.send_signal(number)
        return daemon.wait(timeout=20)

    def kill_daemon(self) -> None:
        """Kill asrptd, and its guard, which would hand the jobs back to Slurm in the middle of what comes next."""
        assert self.daemon is not None
        threads = Path(f"/proc/{self.daemon.pid}/task").iterdir()
        children = [int(pid) for thread in threads for pid in (thread / "children").read_text("ascii").split()]
        (guard,) = [pid for pid in children if b"read -r" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(guard, signal.SIGKILL)
        self.stop_daemon(signal.SIGKILL)

    # time

    def time(self) -> float:
        """Seconds since 1970 on the lab's clock."""
        return self.lab.time()

    def sleep(self, seconds: float) -> None:
        """Wait for seconds of the lab's time."""
        time.sleep(seconds / self.lab.spec.speed)

    # Slurm

    def submit(self, *options: str, script: str = "sleep 2", user: str | None = "asrpt1") -> str:
        done = self.lab.run(["sbatch", "--parsable", *options], user=user, input=f"#!/bin/sh\n{script}\n")
        return done.stdout.strip()

    def submit_or_skip(self, *options: str, script: str) -> str:
        """For requests of more CPUs than the tasks need, which Slurm 24.11 and 26.05 refuse if GPUs go with them."""
        try:
            return self.submit(*options, script=script)
        except SlurmError as error:
            if "Requested node configuration is not available" not in str(error):
                raise
            pytest.skip("Slurm refuses the request (24.11 and 26.05)")

    def block(self, node: str, gpus: int) -> str:
        """A job in the unmanaged partition that uses GPUs of a node until it is cancelled."""
        options = ["-p", "other", "-w", node, "-N1", f"--gres=gpu:{gpus}"]
        job_id = self.submit(*options, script=f"sleep {600 * self.lab.spec.speed:g}", user=None)
        self.wait(job_id, "RUNNING")
        return job_id

    def block_all(self) -> list[str]:
        """Unmanaged jobs on every GPU of the cluster."""
        return [self.block(node.name, node.gpus) for node in self.lab.spec.node_list]

    def cancel(self, *job_ids: str) -> None:
        self.lab.run(["scancel", *job_ids])

    def train(self, iterations: int, profile: str, *options: str, speedup: float = 1.0, user: str = "asrpt1") -> str:
        """A recurring training job; jobs with the same number of iterations are in the same group."""
        script = f"exec {self.lab.train} --profile {profile} --iterations {iterations} --speedup {speedup}"
        comment = f"--comment=asrpt:profile={profile}"
        return self.submit(comment, *options, script=script, user=user)

    def scontrol(self, *words: str, user: str | None = None) -> str:
        return self.lab.run(["scontrol", *words], user=user).stdout

    def start_now(self, job_id: str, user: str | None = None) -> None:
        """End the job's lease, as its owner can. If it has started meanwhile, Slurm refuses that, and all is well."""
        self.lab.run(["scontrol", "update", f"JobId={job_id}", "StartTime=now"], user=user, check=False)

    def jobs(self) -> dict[str, JobRecord]:
        return {job.job_id: job for job in self.client.jobs()}

    def job(self, job_id: str) -> JobRecord:
        return self.jobs()[job_id]

    def wait(self, job_id: str, *states: str, timeout: float = 30) -> JobRecord:
        wait_for(lambda: self.job(job_id).state in states, f"job {job_id} is {' or '.join(states)}", timeout)
        return self.job(job_id)

    def wait_all(self, job_ids: list[str], state: str, timeout: float = 60) -> dict[str, JobRecord]:
        def all_in_state() -> bool:
            jobs = self.jobs()
            return all(j in jobs and jobs[j].state == state for j in job_ids)

        wait_for(
            all_in_state, lambda: f"all {state}: {[self.jobs().get(job_id, job_id) for job_id in job_ids]}", timeout
        )
        jobs = self.jobs()
        return {job_id: jobs[job_id] for job_id in job_ids}

    def output(self, name: str, user: str = "asrpt1") -> str:
        return (self.lab.home(user) / name).read_text(encoding="utf-8", errors="replace")

    def start_again(self, *job_ids: str) -> None:
        """Start the job now, as an owner may who does not wait for two minutes after a requeue.

        Only after asrptd has removed its pin: a lease that is being written would delay the job again. And
        not in the second of the requeue: Slurm itself would start the job at once, and it would end as FAILED, as its
        credential is revoked.
        """
        for job_id in job_ids:
            wait_for(partial(self._may_start_again, job_id), f"job {job_id} may start again", 15)
            self.start_now(job_id, user="asrpt1")

    def _may_start_again(self, job_id: str) -> bool:
        job = self.job(job_id)
        return job.state == PENDING and not job.required_nodes and self.time() > job.submit_time + 2

    # asrpt's own

    def predict(self, iterations: Mapping[tuple[str, str], int], scripts: Mapping[str, str] | None = None) -> None:
        """Set the predicted iterations of jobs, by user and job name. scripts: those other than the default script."""
        given = {name: {"script": script} for name, script in (scripts or {}).items()}
        probes = [
            self.submit("--gpus=1", "--hold", "-J", name, user=user, **given.get(name, {})) for user, name in iterations
        ]
        found = [self.job(probe) for probe in probes]
        self.cancel(*probes)
        keys = [owned(job.uid, tag.group) for job in found if (tag := parse_tag(job.admin_comment))]
        table = render_table(dict(zip(keys, map(Entry.plain, iterations.values()), strict=True)))
        replace_file(self.paths / "hook" / TABLE, table)

    def order(self) -> list[str]:
        """The pending jobs in the policy's order."""
        rows = [row for row in self.status().values() if row["rank"]]
        return [row["job_id"] for row in sorted(rows, key=lambda row: row["rank"])]

    def status(self) -> dict[str, dict[str, Any]]:
        done = self.lab.run([COMMANDS / "asrpt-status", "--json"])
        return {row["job_id"]: row for row in json.loads(done.stdout)["jobs"]}

    def state_of(self, job_id: str) -> str:
        return str(self.status().get(job_id, {}).get("state", ""))

    def text_of(self, job_id: str) -> str:
        return str(self.status().get(job_id, {}).get("text", ""))

    def audit(self, job_id: str, event: str) -> list[dict[str, Any]]:
        path = self.paths / "state" / "audit.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        entries = [json.loads(line) for line in lines]
        return [e for e in entries if e.get("job") == job_id and e["event"] == event]

    def recorded(self, job_id: str) -> Run:
        """The job's row of the history, once asrptd has written it: shortly after its audit entry."""
        return self.all_recorded([job_id])[job_id]

    def all_recorded(self, job_ids: Sequence[str]) -> dict[str, Run]:
        wait_for(lambda: set(job_ids) <= self.runs().keys(), f"jobs {job_ids} are in the history", 30)
        return self.runs()

    def runs(self) -> dict[str, Run]:
        """The history, without runs that were requeued."""
        with History(self.paths / "state" / HISTORY, read_only=True) as history:
            return {run.job_id: run for run in history.runs() if run.state != REQUEUED}

    def admin(self, *arguments: str, user: str | None = None) -> str:
        command: list[str | Path] = [COMMANDS / "asrpt-admin", *arguments]
        return self.lab.run(command, user=user, timeout_s=120).stdout

    def controller_log(self) -> str:
        return (self.lab.directory / "log" / "slurmctld.log").read_text(encoding="utf-8", errors="replace")

    def idle(self) -> None:
        """Cancel all jobs and wait for their end."""
        for user in ("root", *self.lab.spec.user_names):
            self.lab.run(["scancel", f"--user={user}"], check=False)
        idle = re.compile(r"^(idle\n)+$")
        wait_for(lambda: idle.match(self.lab.run(["sinfo", "-h", "-N", "-o", "%t", "-p", "other"]).stdout), "idle", 30)

    def clean(self) -> None:
        """No jobs, no daemon, no saved state: the next test starts on a fresh cluster."""
        self.stop_daemon()
        self.idle()
        if "ASRPT_TEST_KEEP" in os.environ:
            return
        for name in ("state", "hook", "run"):
            for path in (self.paths / name).iterdir():
                path.unlink() if path.is_file() else shutil.rmtree(path)


def wait_for(condition: Callable[[], Any], what: str | Callable[[], str], timeout: float) -> None:
    """Poll until the condition holds, or fail the test. what: describes the condition; evaluated only on failure.

    What takes long is asked less often: the CPUs are for the clusters of all tests that run.
    """
    began = asked = time.monotonic()
    while not condition():
        if (now := time.monotonic()) - began > PATIENCE * timeout:
            pytest.fail(f"after {PATIENCE * timeout:g} s still not: {what if isinstance(what, str) else what()}")
        time.sleep(min(0.5, max(0.1, 3 * (now - asked))))
        asked = time.monotonic()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of the lab first: some check what is left when no other lab is up."""
    items.sort(key=lambda item: "e2e" in item.keywords and item.path.name != "test_lab.py")


@pytest.fixture(scope="session")
def session_lab() -> Iterator[Lab]:
    """One cluster of 4 x 4 GPUs for all tests."""
    why_not = can_run_slurm()
    if why_not:
        pytest.skip(why_not)
    directory = Path(tempfile.mkdtemp(prefix="asrpt-e2e-"))
    directory.chmod(0o755)
    directory.rmdir()
    settings: dict[str, dict[str, Any]] = {
        "daemon": {**QUICK["daemon"], "progress_s": 0.5},
        "policy": {"name": "asrpt", "tau": 20.0},
        "paths": {"profiles": [str(directory / "profiles")]},
    }
    lab = up(LabSpec(directory=directory, nodes="4x4", base_port=BASE_PORT, users=2, settings=settings))
    (directory / "profiles").mkdir(exist_ok=True)
    try:
        yield lab
    finally:
        lab.down(purge="ASRPT_TEST_KEEP" not in os.environ)
        if "ASRPT_TEST_KEEP" not in os.environ:
            shutil.rmtree(directory, ignore_errors=True)  # what tests have written there, which the lab does not remove


@pytest.fixture
def cluster(session_lab: Lab) -> Iterator[Cluster]:
    """The idle cluster without asrptd, which the test starts."""
    cluster = Cluster(session_lab)
    try:
        yield cluster
    finally:
        cluster.clean()


@pytest.fixture
def lab(one_lab: Cluster) -> Iterator[Cluster]:
    """The cluster of a file's fixture ``one_lab``, shared by its tests; idle again after each."""
    yield one_lab
    one_lab.idle()


@pytest.fixture
def asrpt(cluster: Cluster) -> Cluster:
    """The cluster with asrptd in mode enforce."""
    cluster.start_daemon()
    return cluster
