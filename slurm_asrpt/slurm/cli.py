"""The Slurm client that runs squeue and scontrol, by argument lists."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from slurm_asrpt.config.settings import SlurmSettings
from slurm_asrpt.errors import SlurmError, printable
from slurm_asrpt.slurm import incremental, parse, preemption
from slurm_asrpt.slurm.client import SlurmConfig
from slurm_asrpt.slurm.commands import environment_of, run_slurm
from slurm_asrpt.slurm.limits import default_account, qos_of_partitions
from slurm_asrpt.slurm.node_list import expand
from slurm_asrpt.slurm.pace import pace_of
from slurm_asrpt.slurm.partitions import rows_of
from slurm_asrpt.slurm.preemption import PreemptionDefaults, PreemptionRules
from slurm_asrpt.slurm.priorities import with_single_flags
from slurm_asrpt.slurm.records import JobRecord, NodeRecord, Reservation, Update
from slurm_asrpt.slurm.site import Site, needs_accounts, site_of
from slurm_asrpt.slurm.topology import Topology, parse_topology, topologies_of
from slurm_asrpt.slurm.writeback import lost_by_updates, repeating
from slurm_asrpt.throttle import Throttle

LONGEST_QUOTE = 200
WIDE = {"TERM": "dumb", "COLUMNS": "32767"}
"""readline echoes scontrol's input, and without a terminal (systemd) it cuts lines at 79 columns."""
EPOCH = {"SLURM_TIME_FORMAT": "%s", "TZ": "UTC0"}
"""Times in seconds since the epoch. Without TZ squeue takes a quarter longer; it seems to check the time
zone's file for each of them."""
WHOLE_ARRAYS = {"SLURM_BITSTR_LEN": "0"}
"""Without it, the list of an array's pending tasks is cut off at 64 characters."""
QOS_PAUSE_FACTOR = 199.0
"""Asking for the flags of QOS takes half a percent of the time at most."""
_SAFE = re.compile(r"[A-Za-z0-9_.,+:;=\[\]-]*")


class CliClient:
    """Reads with squeue and ``scontrol show``; writes through the stdin of one scontrol process."""

    def __init__(self, settings: SlurmSettings) -> None:
        self.settings = settings
        # these select jobs and columns, or cut lines
        found = environment_of(settings)
        ours = {k: v for k, v in found.items() if not k.startswith("SQUEUE_") and k != "SLURM_TOPO_LEN"}
        self.environment = {**ours, **WIDE, **EPOCH, **WHOLE_ARRAYS, "LC_ALL": "C.UTF-8"}
        self._order: dict[str, int] = {}  # of the node table
        self._lost: dict[str, dict[str, str]] = {}  # what updates must repeat, by job and array
        self._qos_flags, self._qos_throttle = "", Throttle(time.monotonic, pause_factor=QOS_PAUSE_FACTOR)

    def config(self) -> SlurmConfig:
        answer = self.run("scontrol", "show", "config")
        values = _values(answer)
        return SlurmConfig(
            version=values["SLURM_VERSION"],
            cluster=values.get("ClusterName", ""),
            multifactor=values.get("PriorityType", "") == "priority/multifactor",
            memory_consumed="memory" in values.get("SelectTypeParameters", "").lower(),
            whole_cores="cr_cpu" not in values.get("SelectTypeParameters", "").lower(),
            time=parse.parse_config_time(answer),
            accounts=values.get("AccountingStorageType", "") == "accounting_storage/slurmdbd",
            preemption=preemption.defaults_of(values),
            slurm_uid=parse.uid_in(values.get("SlurmUser", "")),
            private_jobs="jobs" in values.get("PrivateData", "").split(","),
            resume_timeout_s=parse.seconds_in(values.get("ResumeTimeout", "")),
            start_delay_s=pace_of(values).delay_s,
        )

    def settings_of_slurm(self) -> dict[str, str]:
        """slurmctld's settings by their names in slurm.conf. Raises SlurmError."""
        return _values(self.run("scontrol", "show", "config"))

    def default_account(self, user: str) -> str:
        """ "" if the user has none, or Slurm has no accounts. Raises SlurmError."""
        return default_account(self.run("scontrol", "-o", "show", "assoc_mgr", f"users={user}", "flags=users"), user)

    def check_conf(self) -> None:
        """Raises SlurmError if slurm.conf is missing: Slurm's commands would search the network for it, for long."""
        if self.settings.conf and not Path(self.settings.conf).is_file():
            raise SlurmError(f"{self.settings.conf} does not exist; fix slurm.conf in asrpt.toml")

    def jobs(self) -> list[JobRecord]:
        found = self._queue.jobs()
        self._lost = {job.job_id: lost for job in found if job.tasks_per_gpu and (lost := lost_by_updates(job))}
        return found

    def catch_up(self) -> None:
        self._queue.catch_up()

    @cached_property
    def _queue(self) -> incremental.IncrementalQueue:
        task_lines = not incremental.prints_records(self._version)
        some = self._some_jobs if incremental.prints_single_jobs(self._version) else None
        readers = (self._lines, self._all_jobs, self._allocated_gres)
        return incremental.IncrementalQueue(*readers, task_lines=task_lines, some=some)

    def _lines(self) -> bytes:
        separate = "--array-unique" if incremental.prints_records(self._version) else "--array"
        options = ("--all", "--noheader", "--states=all", "--noconvert", separate, "-O", incremental.OPTION)
        return self._output("squeue", *options)

    def _all_jobs(self) -> list[JobRecord]:
        text = self.run("squeue", self._json, "--states=all")
        found = parse.parse_jobs(text, self._order)
        if not self._order and any(len({*job.gpus_by_node.values()}) > 1 for job in found):
            self.nodes()  # the order of the nodes matters, and is not known yet
            return parse.parse_jobs(text, self._order)
        return found

    def _some_jobs(self, job_ids: Sequence[str]) -> list[JobRecord]:
        named = f"--jobs={','.join(map(_checked, job_ids))}"
        return parse.parse_jobs(self.run("squeue", self._json, "--states=all", named), self._order)

    def _allocated_gres(self, job_ids: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        return parse.parse_allocated_gres(self._show_jobs(job_ids))

    def _show_jobs(self, job_ids: Sequence[str]) -> str:
        lines = "".join(f"show job {_checked(job_id)}\n" for job_id in job_ids)
        return self.run("scontrol", "-d", "-o", stdin=lines, lenient=True)

    @cached_property
    def _version(self) -> str:
        return self.run("squeue", "--version")

    @property
    def _json(self) -> str:
        return parse.json_option(self._version)

    def nodes(self) -> list[NodeRecord]:
        found = parse.parse_nodes(self.run("scontrol", "-d", "-o", "show", "node"))
        self._order = {node.name: node.index for node in found}
        return found

    def reservations(self, nodes: Sequence[NodeRecord]) -> list[Reservation]:
        return parse.parse_reservations(self.run("scontrol", "-o", "show", "reservation"), nodes)

    def fair_shares(self) -> Mapping[tuple[str, str], float]:
        return parse.parse_shares(self.run("sshare", "-P", "-n", "-a", "-o", "User,Account,FairShare"))

    def preemption(self, defaults: PreemptionDefaults) -> PreemptionRules:
        if defaults.by == "qos":
            return preemption.parse_qos(
                self.run("sacctmgr", "-n", "-P", "show", "qos", preemption.QOS_FORMAT), defaults
            )
        return preemption.rules_of_partitions(rows_of(self._partitions()), defaults)

    def topology(self, partitions: Sequence[str]) -> Topology:
        found = Topology()
        for name in topologies_of(rows_of(self._partitions()), partitions):
            text = self.run("scontrol", "show", "topology", *([name] if name else []))
            found = parse_topology(text, expand) | found
        return found

    def _partitions(self) -> str:
        return self.run("scontrol", "-o", "show", "partition")

    def site(self) -> Site:
        config = self.settings_of_slurm()
        config["PriorityFlags"] = with_single_flags(config.get("PriorityFlags", ""), self._conf(config))
        licenses = self.run("scontrol", "-o", "show", "license")
        asked = needs_accounts(config)
        accounts = self.run("scontrol", "-o", "show", "assoc_mgr", "flags=qos,assoc") if asked else ""
        partitions = self._partitions()
        asked = parse.enforces_limits(config) and bool(qos_of_partitions(rows_of(partitions)))
        return site_of(config, partitions, licenses, accounts, self._flags_of_qos() if asked else "")

    def _conf(self, config: Mapping[str, str]) -> str:
        """The text of slurm.conf, "" if it cannot be read here."""
        path = Path(self.settings.conf or config.get("SLURM_CONF", ""))
        with suppress(OSError):
            return path.read_text(encoding="utf-8", errors="replace")
        return ""

    def _flags_of_qos(self) -> str:
        """Only slurmdbd has them, which takes its time; while it does not answer, the previous ones stay in force."""
        if self._qos_throttle.due:
            with suppress(SlurmError), self._qos_throttle.spending():
                self._qos_flags = self.run("sacctmgr", "-n", "-P", "show", "qos", "format=Name,Flags")
        return self._qos_flags

    def allocations(self, job_ids: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
        return parse.parse_allocations(self._show_jobs(job_ids))

    def update(self, updates: Sequence[Update]) -> list[str]:
        updates = [self._repeating(update) for update in updates] if self._lost else updates
        errors = self._write(updates)
        going_on = [at for at, update in enumerate(updates) if update.then and not errors[at]]
        rest = [Update(updates[at].job_id, updates[at].then) for at in going_on]
        for at, error in zip(going_on, self._write(rest), strict=True):
            errors[at] = error
        return errors

    def _repeating(self, update: Update) -> Update:
        array = update.job_id.partition("_")[0]
        lost = self._lost.get(update.job_id) or self._lost.get(array)
        return repeating(update, lost) if lost else update

    def _write(self, updates: Sequence[Update]) -> list[str]:
        lines = [_line_or_error(update) for update in updates]
        written = [line for line, error in lines if not error]
        answers = iter(self._updated(written) if written else [])
        return [error or next(answers) for _, error in lines]

    def _updated(self, lines: Sequence[str]) -> list[str]:
        answer = self.run("scontrol", stdin="\n".join(lines) + "\n", lenient=True)
        errors = parse.parse_update_errors(answer)
        if not errors:  # without readline, answers cannot be assigned to updates
            raise SlurmError(
                f"scontrol does not echo its input ({printable(answer[:LONGEST_QUOTE])}); "
                "asrptd requires a scontrol with readline"
            )
        if len(errors) != len(lines):
            raise SlurmError(f"scontrol processed {len(errors)} of {len(lines)} updates")
        return errors

    def signal(self, job_id: str, name: str, batch: bool) -> None:
        self.run("scancel", f"--signal={name}", *(["--batch"] if batch else []), _checked(job_id))

    def notify(self, job_id: str, text: str) -> None:
        self.run("scontrol", "notify", _checked(job_id), text)

    def requeue(self, job_id: str, failed: bool = False) -> None:
        self.run("scontrol", "requeue", *([] if failed else ["incomplete"]), _checked(job_id))

    def run(self, command: str, *arguments: str, stdin: str = "", lenient: bool = False) -> str:
        """Run a command of Slurm; its standard output. lenient: with standard error, at any exit status.

        Raises SlurmError.
        """
        return self._output(command, *arguments, stdin=stdin, lenient=lenient).decode(errors="replace")

    def _output(self, command: str, *arguments: str, stdin: str = "", lenient: bool = False) -> bytes:
        """As ``run``; the bytes."""
        return run_slurm(self.settings, command, *arguments, environment=self.environment, stdin=stdin, lenient=lenient)


def _line_or_error(update: Update) -> tuple[str, str]:
    """The line of an update, or why it is not written: the value of one job must not keep back all others."""
    fields = {"JobId": update.job_id, **update.fields}
    try:
        return "update " + " ".join(f"{key}={_checked(value)}" for key, value in fields.items()), ""
    except SlurmError as error:
        return "", str(error)


def _checked(value: str) -> str:
    """A value for a scontrol line: numbers, ids, node lists and tags are allowed. Raises SlurmError."""
    if not _SAFE.fullmatch(value):
        raise SlurmError(f"refusing to write {value!r} to scontrol")
    return value


def _values(answer: str) -> dict[str, str]:
    """Parse ``scontrol show config``. Raises SlurmError."""
    values = parse.parse_config(answer)
    if "SLURM_VERSION" not in values:
        raise SlurmError("scontrol show config printed no SLURM_VERSION")
    return values
