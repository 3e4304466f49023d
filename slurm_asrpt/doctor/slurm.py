"""Checks of Slurm: its release, and settings that asrptd needs or that conflict with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurm_asrpt.config import DEFAULT_POLICY
from slurm_asrpt.config.settings import Mode, Settings
from slurm_asrpt.core.policies.registry import policy_class
from slurm_asrpt.doctor.checks import Finding, Snapshot, failure, ok, warning
from slurm_asrpt.install.slurm_conf import ON_CONTROLLER, SCRIPTS, State, wanted_lines, words
from slurm_asrpt.slurm.incremental import MANY, prints_records, too_many_tasks
from slurm_asrpt.slurm.pace import number_in, pace_of
from slurm_asrpt.slurm.parse import release
from slurm_asrpt.slurm.preemption import MANAGED_MODES, defaults_of
from slurm_asrpt.slurm.writeback import TURN
from slurm_asrpt.text import counted

OLDEST = (22, 5)
FULL = 0.8
"""Share of MaxJobCount above which Slurm may soon reject submissions."""


def answers(settings: Settings, now: float, snapshot: Snapshot) -> Iterator[Finding]:
    version = snapshot.config.get("SLURM_VERSION", "")
    if release(version) < OLDEST:
        yield failure("slurm", f"Slurm {version} is older than 22.05", "upgrade Slurm; see docs/compatibility.md")
    else:
        yield ok(
            "slurm",
            f"Slurm {version} answers, {counted(len(snapshot.jobs), 'job')}, {counted(len(snapshot.nodes), 'node')}",
        )


def conf(settings: Settings, now: float, snapshot: Snapshot) -> Iterator[Finding]:
    """slurm.conf has the lines that asrpt needs. ``hook.plugin`` checks the Lua plugin's line."""
    found = [
        line for line in wanted_lines(snapshot.config, settings.paths.scripts) if not line.text.startswith("JobSubmit")
    ]
    bad = [line for line in found if line.state is not State.PRESENT]
    for line in bad:
        kind, remedy = failure if line.needed else warning, "add it to slurm.conf, then scontrol reconfigure"
        key = line.text.partition("=")[0]
        script = settings.paths.scripts / SCRIPTS.get(key, "")
        if not script.exists():  # with the line alone, Slurm would drain all nodes
            copy = "" if key in ON_CONTROLLER else f"copy {script} to the nodes (Slurm drains nodes without it), then "
            remedy = f"asrpt-admin install --apply, then {copy}{remedy}"
        yield kind("slurm.conf", f"{line.state}: {line.text} ({line.why})", remedy)
    if not bad:
        yield ok("slurm.conf", "has the required lines")


def fights(settings: Settings, now: float, snapshot: Snapshot) -> Iterator[Finding]:
    """No setting of Slurm limits asrptd or undoes what it does."""
    checks = (
        _pace(settings, snapshot.config),
        _priority(settings, snapshot.config),
        _age(settings, snapshot.config),
        _preemption(settings, snapshot.config),
        _cloud(snapshot.config),
    )
    more = (
        _prologs(snapshot.config),
        _remembers(settings, snapshot.config),
        _room(snapshot),
        _tasks(snapshot),
        _requeues(settings, snapshot.config),
    )
    found = [finding for check in (*checks, *more) for finding in check]
    yield from found or [ok("settings", "no setting in slurm.conf conflicts with asrptd")]


def _pace(settings: Settings, config: Mapping[str, str]) -> Iterator[Finding]:
    """Slurm starts a released job soon. asrptd waits for it, while the job's GPUs idle."""
    delay, culprit = pace_of(config)
    if culprit == "sched_interval=-1" and config.get("SchedulerType") == "sched/builtin":
        yield failure("pace", f"{culprit} with sched/builtin: no job starts", "remove sched_interval=-1")
    elif delay >= settings.daemon.unpin_after_s:
        text = f"{culprit}: a start may take {delay:g} s, during which the GPUs of the job idle"
        yield warning("pace", text, f"remove {culprit} from SchedulerParameters")


def _priority(settings: Settings, config: Mapping[str, str]) -> Iterator[Finding]:
    multifactor = config.get("PriorityType") == "priority/multifactor"
    if settings.daemon.mode is Mode.ORDER and not multifactor:
        yield failure(
            "priority", "mode order requires PriorityType=priority/multifactor", "set it, or change daemon.mode"
        )
    plugin = config.get("PrioritySiteFactorPlugin", "(null)")
    if multifactor and plugin not in ("(null)", "", "none", "site_factor/none"):
        text = f"PrioritySiteFactorPlugin={plugin} overwrites the SiteFactor that asrptd writes"
        yield warning(
            "priority", text, "remove it: a released job has the highest priority only with asrptd's SiteFactor"
        )
    weights = sum(number_in(value) for key, value in config.items() if key.startswith("PriorityWeight"))
    if multifactor and weights >= TURN:
        text = f"the priority weights add up to {weights:.3g}; jobs released to Slurm may start in another order"
        remedy = f"divide all PriorityWeight settings by the same number, so that they stay below {TURN:,}"
        yield warning("priority", text, remedy)


def _age(settings: Settings, config: Mapping[str, str]) -> Iterator[Finding]:
    """Slurm counts the age of jobs with a begin time ahead only if it is told to."""
    multifactor = config.get("PriorityType") == "priority/multifactor"
    weighs = multifactor and number_in(config.get("PriorityWeightAge", "0")) > 0
    if settings.daemon.mode is Mode.ENFORCE and weighs and "ACCRUE_ALWAYS" not in words(config, "PriorityFlags"):
        text = "PriorityFlags has no ACCRUE_ALWAYS: sprio leaves out leased jobs, and jobs handed back have lost age"
        yield warning("age", text, "add it to PriorityFlags, unless you need MaxJobsAccrue or GrpJobsAccrue")


def _preemption(settings: Settings, config: Mapping[str, str]) -> Iterator[Finding]:
    rules = defaults_of(config)
    if rules.by and not MANAGED_MODES.issuperset({rules.mode}):
        text = f"PreemptMode={rules.mode}: jobs that may preempt others in this way are left to Slurm"
        yield warning("preemption", text, "set PreemptMode=REQUEUE or CANCEL for the jobs that may be preempted")
    elif rules.by and not policy_class(settings.policy.name).preempting:
        name = settings.policy.name
        text = f"PreemptType=preempt/{rules.by}: jobs that may preempt others are left to Slurm under policy {name}"
        yield warning("preemption", text, "use policy asrpt-gated")


def _cloud(config: Mapping[str, str]) -> Iterator[Finding]:
    """slurmctld hides cloud nodes that are powered down, even from root."""
    if config.get("SuspendProgram", "(null)") != "(null)" and "cloud" not in words(config, "PrivateData"):
        text = "PrivateData has no cloud: Slurm hides nodes with State=CLOUD while they are powered down"
        yield warning("cloud", text, "if you have such nodes, add it, or asrptd does not power them up")


def _prologs(config: Mapping[str, str]) -> Iterator[Finding]:
    if "nohold" in (word.lower() for word in words(config, "PrologFlags")):
        text = "PrologFlags=NoHold: a job may start before its progress directory exists"
        yield warning("prolog", text, "remove NoHold")


def _remembers(settings: Settings, config: Mapping[str, str]) -> Iterator[Finding]:
    age, cycles = number_in(config.get("MinJobAge", "300 sec")), 3 * settings.daemon.interval_s
    if 0 < age < cycles:
        text = f"MinJobAge={age:.0f}: Slurm may forget ended jobs before asrptd records them"
        yield warning("memory", text, f"set MinJobAge={max(300, round(cycles))}")


def _room(snapshot: Snapshot) -> Iterator[Finding]:
    most = number_in(snapshot.config.get("MaxJobCount", "0"))
    if most and len(snapshot.jobs) > FULL * most:
        text = f"{len(snapshot.jobs)} of at most {most:.0f} jobs: Slurm will soon reject submissions"
        yield warning("room", text, "increase MaxJobCount and restart slurmctld")


def _tasks(snapshot: Snapshot) -> Iterator[Finding]:
    """From 23.02 on, squeue may be slower with a line for each task than with all jobs as JSON."""
    tasks = too_many_tasks(snapshot.jobs) if len(snapshot.jobs) >= MANY else 0
    if tasks and not prints_records(snapshot.config.get("SLURM_VERSION", "")):
        text = f"{tasks} tasks of arrays are pending: squeue reads slowly, all jobs in full in each cycle"
        yield warning("queue", text, "increase daemon.interval_s if cycles take long")


def _requeues(settings: Settings, config: Mapping[str, str]) -> Iterator[Finding]:
    """Jobs are preempted in managed partitions, by a requeue, which Slurm must allow."""
    for name in ("partitions", "partition_signals"):
        strange = sorted(set(getattr(settings.interrupt, name)) - set(settings.slurm.partitions))
        if strange:
            text = f"interrupt.{name}: {', '.join(strange)} is not managed by asrptd"
            yield failure("interrupt", text, f"fix interrupt.{name} or slurm.partitions in asrpt.toml")
    policy = settings.policy
    preempts = policy.name == "hlas" or (policy.name == DEFAULT_POLICY and policy.interrupts)
    if preempts and config.get("JobRequeue") == "0":
        text = f"JobRequeue=0: policy {policy.name} can only preempt jobs that were submitted with --requeue"
        yield warning("interrupt", text, "set JobRequeue=1 in slurm.conf, or tell users to submit with --requeue")


def gpus(settings: Settings, now: float, snapshot: Snapshot) -> Iterator[Finding]:
    """The managed partitions have GPU nodes, and either all GPUs have a type or none has."""
    managed = set(settings.slurm.partitions)
    known = {name for node in snapshot.nodes for name in node.partitions}
    missing = sorted(managed - known)
    ours = [node for node in snapshot.nodes if node.partitions & managed]
    typed = {bool(part.gpu_type) for node in ours for part in node.parts if node.gpus}
    shared = [node.name for node in ours if node.other_gres]
    if missing:
        remedy = f"fix slurm.partitions in asrpt.toml; partitions with nodes: {', '.join(sorted(known)) or 'none'}"
        yield failure("gpus", f"no node is in partition {', '.join(missing)}", remedy)
    elif not typed:
        yield failure(
            "gpus", "no node of the managed partitions has GPUs", "set Gres=gpu:N on the nodes and write gres.conf"
        )
    elif len(typed) == 2:
        text = "some GPUs have a type and some have none: requests for a type match only the former"
        yield warning("gpus", text, "set a type for all GPUs in gres.conf and Gres=")
    elif shared:
        text = f"{counted(len(shared), 'node')} with shared GPUs (shard, mps), e.g. {shared[0]}"
        yield warning("gpus", f"{text}: asrptd does not use them", "no action needed if this is intended")
    else:
        yield ok("gpus", f"{counted(sum(node.gpus for node in ours), 'GPU')} on {counted(len(ours), 'node')}")
