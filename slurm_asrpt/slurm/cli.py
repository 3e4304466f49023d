"""The client over Slurm's own commands: squeue and scontrol, arguments as lists, no shell."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from slurm_asrpt.config.settings import SlurmSettings
from slurm_asrpt.errors import SlurmError, printable
from slurm_asrpt.slurm import glance, parse
from slurm_asrpt.slurm.client import SlurmConfig
from slurm_asrpt.slurm.records import JobRecord, NodeRecord, Reservation, Update

LONGEST_QUOTE = 200
WIDE = {"TERM": "dumb", "COLUMNS": "32767"}
"""readline echoes what scontrol is fed; where it knows no terminal (systemd), it cuts lines at 79 columns."""
EPOCH = {"SLURM_TIME_FORMAT": "%s", "TZ": "UTC0"}
"""Times are seconds since the epoch. Without TZ squeue takes a quarter longer: it seems to look at the file of the time
zone with each of them."""
WHOLE_ARRAYS = {"SLURM_BITSTR_LEN": "0"}
"""Else the tasks of an array that wait are cut off after 64 characters."""
_SAFE = re.compile(r"[A-Za-z0-9_.,+:;=\[\]-]*")


class CliClient:
    """Reads with squeue and ``scontrol show``, writes with one scontrol process fed through stdin."""

    def __init__(self, settings: SlurmSettings) -> None:
        self.settings = settings
        ours = {k: v for k, v in os.environ.items() if not k.startswith("SQUEUE_")}  # they choose jobs and columns
        self.environment = {**ours, **WIDE, **EPOCH, **WHOLE_ARRAYS, "LC_ALL": "C.UTF-8"}
        if settings.conf:
            self.environment["SLURM_CONF"] = settings.conf
        self._queue = glance.Queue(self._glance, self._all_jobs)

    def config(self) -> SlurmConfig:
        answer = self._run("scontrol", "show", "config")
        values = _values(answer)
        return SlurmConfig(
            version=values["SLURM_VERSION"],
            cluster=values.get("ClusterName", ""),
            multifactor=values.get("PriorityType", "") == "priority/multifactor",
            memory_consumed="memory" in values.get("SelectTypeParameters", "").lower(),
            time=parse.parse_config_time(answer),
            accounts=values.get("AccountingStorageType", "") == "accounting_storage/slurmdbd",
            preempt_by=parse.preempt_by(values),
            slurm_uid=parse.uid_in(values.get("SlurmUser", "")),
            private_jobs="jobs" in values.get("PrivateData", "").split(","),
        )

    def settings_of_slurm(self) -> dict[str, str]:
        """Every setting by its name in slurm.conf, as slurmctld has it. Raises SlurmError."""
        return _values(self._run("scontrol", "show", "config"))

    def check_conf(self) -> None:
        """Raises SlurmError: without its file a Slurm command searches the network for one, and is silent for long."""
        if self.settings.conf and not Path(self.settings.conf).is_file():
            raise SlurmError(f"{self.settings.conf} is not there; mend slurm.conf of asrpt.toml")

    def jobs(self) -> list[JobRecord]:
        return self._queue.jobs()

    def catch_up(self) -> None:
        self._queue.catch_up()

    def _glance(self) -> bytes:
        options = ("--all", "--noheader", "--states=all", "--noconvert", "--array-unique", "-O", glance.OPTION)
        return self._output("squeue", *options)

    def _all_jobs(self) -> list[JobRecord]:
        return parse.parse_jobs(self._run("squeue", self._json, "--states=all"))

    @cached_property
    def _json(self) -> str:
        return parse.json_option(self._run("squeue", "--version"))

    def nodes(self) -> list[NodeRecord]:
        return parse.parse_nodes(self._run("scontrol", "-d", "-o", "show", "node"))

    def reservations(self, nodes: Sequence[NodeRecord]) -> list[Reservation]:
        return parse.parse_reservations(self._run("scontrol", "-o", "show", "reservation"), nodes)

    def fair_shares(self) -> Mapping[tuple[str, str], float]:
        return parse.parse_shares(self._run("sshare", "-P", "-n", "-a", "-o", "User,Account,FairShare"))

    def preempting(self, by: str) -> frozenset[str]:
        if by == "qos":
            return parse.parse_preempting_qos(self._run("sacctmgr", "-n", "-P", "show", "qos", "format=Name,Preempt"))
        return parse.parse_preempting_partitions(self._run("scontrol", "-o", "show", "partition"))

    def allocations(self, job_ids: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
        lines = "".join(f"show job {_checked(job_id)}\n" for job_id in job_ids)
        return parse.parse_allocations(self._run("scontrol", "-d", "-o", stdin=lines, lenient=True))

    def update(self, updates: Sequence[Update]) -> list[str]:
        if not updates:
            return []
        lines = [
            "update " + " ".join(f"{key}={_checked(value)}" for key, value in {"JobId": u.job_id, **u.fields}.items())
            for u in updates
        ]
        said = self._run("scontrol", stdin="\n".join(lines) + "\n", lenient=True)
        errors = parse.parse_update_errors(said)
        if not errors:  # built without readline it does not say which answer belongs to which line
            raise SlurmError(
                f"scontrol echoes no line that it is fed ({printable(said[:LONGEST_QUOTE])}); "
                "asrptd needs one that is built with readline"
            )
        if len(errors) != len(updates):
            raise SlurmError(f"scontrol took {len(errors)} of {len(updates)} updates")
        return errors

    def signal(self, job_id: str, name: str, batch: bool) -> None:
        self._run("scancel", f"--signal={name}", *(["--batch"] if batch else []), _checked(job_id))

    def requeue(self, job_id: str, failed: bool = False) -> None:
        self._run("scontrol", "requeue", *([] if failed else ["incomplete"]), _checked(job_id))

    def _run(self, command: str, *arguments: str, stdin: str = "", lenient: bool = False) -> str:
        return self._output(command, *arguments, stdin=stdin, lenient=lenient).decode(errors="replace")

    def _output(self, command: str, *arguments: str, stdin: str = "", lenient: bool = False) -> bytes:
        """Standard output; with ``lenient`` standard error too and any exit status. Raises SlurmError."""
        path = str(Path(self.settings.bin_dir) / command) if self.settings.bin_dir else command
        try:
            done = subprocess.run(
                [path, *arguments],
                input=stdin.encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if lenient else subprocess.PIPE,
                env=self.environment,
                timeout=self.settings.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SlurmError(f"{command} did not answer within {self.settings.timeout_s:g} s") from None
        except OSError as error:
            raise SlurmError(f"{path} cannot be run ({error.strerror}); set slurm.bin_dir or PATH") from error
        if done.returncode and not lenient:
            text = " ".join((done.stderr or b"").decode(errors="replace").split()) or f"exit status {done.returncode}"
            raise SlurmError(f"{command} failed: {printable(text)}")
        return done.stdout


def _checked(value: str) -> str:
    """A value for a scontrol line. Ours are numbers, ids, node lists and tags; anything else must not get there."""
    if not _SAFE.fullmatch(value):
        raise SlurmError(f"refusing to write {value!r} to scontrol")
    return value


def _values(answer: str) -> dict[str, str]:
    """Raises SlurmError for what is no answer of ``scontrol show config``."""
    values = parse.parse_config(answer)
    if "SLURM_VERSION" not in values:
        raise SlurmError("scontrol show config says no SLURM_VERSION")
    return values
