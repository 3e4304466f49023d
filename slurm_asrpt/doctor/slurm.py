"""Slurm's settings: those that asrptd needs, and those that fight with it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from slurm_asrpt.config.settings import Mode, Settings
from slurm_asrpt.doctor.findings import Finding, failure, ok, warning
from slurm_asrpt.doctor.look import Look
from slurm_asrpt.install.slurmlines import SCRIPTS, State, wanted_lines, words
from slurm_asrpt.slurm.parse import release
from slurm_asrpt.slurm.writeback import PINNED_SITE_FACTOR
from slurm_asrpt.text import counted

OLDEST = (22, 5)
FULL = 0.8
"""Share of MaxJobCount from which submissions may soon be refused."""


def answers(settings: Settings, now: float, look: Look) -> Iterator[Finding]:
    version = look.config.get("SLURM_VERSION", "")
    if release(version) < OLDEST:
        yield failure("slurm", f"Slurm {version} is older than 22.05", "update Slurm; docs/compatibility.md")
    else:
        yield ok(
            "slurm", f"Slurm {version} answers, {counted(len(look.jobs), 'job')}, {counted(len(look.nodes), 'node')}"
        )


def conf(settings: Settings, now: float, look: Look) -> Iterator[Finding]:
    """The lines that slurm.conf needs; that of the Lua plugin is another check's."""
    found = [
        line for line in wanted_lines(look.config, settings.paths.scripts) if not line.text.startswith("JobSubmit")
    ]
    bad = [line for line in found if line.state is not State.PRESENT]
    for line in bad:
        kind, remedy = failure if line.needed else warning, "put it into slurm.conf, scontrol reconfigure"
        script = settings.paths.scripts / SCRIPTS.get(line.text.partition("=")[0], "")
        if not script.exists():  # whoever only did as the line says would have no node left
            remedy = (
                f"asrpt-admin install --apply, copy {script} to the nodes (Slurm drains those without it), {remedy}"
            )
        yield kind("slurm.conf", f"{line.state}: {line.text} ({line.why})", remedy)
    if not bad:
        yield ok("slurm.conf", "has the lines that it needs")


def fights(settings: Settings, now: float, look: Look) -> Iterator[Finding]:
    """Settings under which asrptd does less than it says, or Slurm undoes it."""
    checks = (_pace(settings, look.config), _priority(settings, look.config), _preemption(look.config))
    more = (_prologs(look.config), _remembers(settings, look.config), _room(look), _requeues(settings, look.config))
    found = [finding for check in (*checks, *more) for finding in check]
    yield from found or [ok("settings", "nothing in slurm.conf fights with asrptd")]


def _pace(settings: Settings, config: Mapping[str, str]) -> Iterator[Finding]:
    """How long Slurm may take to start a job that asrptd has released."""
    parameters = dict(word.partition("=")[::2] for word in words(config, "SchedulerParameters"))
    patience = settings.daemon.unpin_after_s
    if _number(parameters.get("sched_interval", "60")) == -1:
        culprit, delay = "sched_interval=-1", _number(parameters.get("bf_interval", "30"))
        if config.get("SchedulerType") == "sched/builtin":
            yield failure("pace", f"{culprit} under sched/builtin: nothing starts", "take sched_interval=-1 out")
            return
    else:
        culprit = "sched_min_interval"
        delay = _number(parameters.get(culprit, "0")) / 1e6  # microseconds
    if delay >= patience:
        text = f"{culprit}: a start may take {delay:g} s, and asrptd takes it back after {patience:g} s"
        yield failure("pace", text, f"take {culprit} out of SchedulerParameters, or raise daemon.unpin_after_s")


def _priority(settings: Settings, config: Mapping[str, str]) -> Iterator[Finding]:
    multifactor = config.get("PriorityType") == "priority/multifactor"
    if settings.daemon.mode is Mode.ORDER and not multifactor:
        yield failure("priority", "mode order needs PriorityType=priority/multifactor", "set it, or daemon.mode")
    plugin = config.get("PrioritySiteFactorPlugin", "(null)")
    if multifactor and plugin not in ("(null)", "", "none", "site_factor/none"):
        text = f"PrioritySiteFactorPlugin={plugin} overwrites the SiteFactor that asrptd writes"
        yield warning("priority", text, "take it out: a released job is only sure to be first with asrptd's")
    weights = sum(_number(value) for key, value in config.items() if key.startswith("PriorityWeight"))
    if multifactor and weights >= PINNED_SITE_FACTOR:
        text = f"the priority weights add up to {weights:.3g}, more than a released job gets ({PINNED_SITE_FACTOR:.0e})"
        yield warning("priority", text, "divide all PriorityWeight settings by the same number")


def _preemption(config: Mapping[str, str]) -> Iterator[Finding]:
    kind = config.get("PreemptType", "preempt/none")
    if kind not in ("preempt/none", "(null)", ""):
        text = f"PreemptType={kind}: Slurm may preempt what asrptd has placed; asrptd itself waits for free GPUs"
        yield warning("preemption", text, "PreemptMode=OFF for the managed partitions, unless that is wanted")


def _prologs(config: Mapping[str, str]) -> Iterator[Finding]:
    if "nohold" in (word.lower() for word in words(config, "PrologFlags")):
        text = "PrologFlags=NoHold: a job may begin before it has a folder to report its progress in"
        yield warning("prolog", text, "take NoHold out")


def _remembers(settings: Settings, config: Mapping[str, str]) -> Iterator[Finding]:
    age, cycles = _number(config.get("MinJobAge", "300 sec")), 3 * settings.daemon.interval_s
    if 0 < age < cycles:
        text = f"MinJobAge={age:.0f}: Slurm forgets ended jobs before asrptd has recorded them"
        yield warning("memory", text, f"MinJobAge={max(300, round(cycles))}")


def _room(look: Look) -> Iterator[Finding]:
    most = _number(look.config.get("MaxJobCount", "0"))
    if most and len(look.jobs) > FULL * most:
        text = f"{len(look.jobs)} of at most {most:.0f} jobs: Slurm will soon refuse submissions"
        yield warning("room", text, "raise MaxJobCount, restart slurmctld")


def _requeues(settings: Settings, config: Mapping[str, str]) -> Iterator[Finding]:
    """Policy hlas makes room by requeueing jobs, which Slurm must let it do."""
    if settings.policy.name != "hlas":
        return
    strange = sorted(set(settings.interrupt.partitions) - set(settings.slurm.partitions))
    if strange:
        text = f"interrupt.partitions: {', '.join(strange)} is not handed to asrptd"
        yield failure("interrupt", text, "mend interrupt.partitions or slurm.partitions of asrpt.toml")
    if config.get("JobRequeue") == "0":
        text = "JobRequeue=0: policy hlas interrupts only jobs that were submitted with --requeue"
        yield warning("interrupt", text, "JobRequeue=1 in slurm.conf; or tell users to write #SBATCH --requeue")


def gpus(settings: Settings, now: float, look: Look) -> Iterator[Finding]:
    """The partitions handed to asrptd have nodes, and those GPUs of one kind of spelling."""
    managed = set(settings.slurm.partitions)
    missing = sorted(managed - {name for node in look.nodes for name in node.partitions})
    ours = [node for node in look.nodes if node.partitions & managed]
    typed = {bool(node.gpu_type) for node in ours if node.gpus}
    shared = [node.name for node in ours if node.other_gres]
    if missing:
        yield failure("gpus", f"no node is in partition {', '.join(missing)}", "mend slurm.partitions of asrpt.toml")
    elif not typed:
        yield failure("gpus", "no node of the managed partitions has GPUs", "Gres=gpu:N on the nodes, and gres.conf")
    elif len(typed) == 2:
        text = "some nodes' GPUs have a type and some have none: a request for a type sees only the former"
        yield warning("gpus", text, "give all a type in gres.conf and Gres=")
    elif shared:
        text = f"{counted(len(shared), 'node')} with other generic resources (MIG, shard, mps), such as {shared[0]}"
        yield warning("gpus", f"{text}: asrptd plans nothing there", "none needed, if that is meant")
    else:
        yield ok("gpus", f"{counted(sum(node.gpus for node in ours), 'GPU')} on {counted(len(ours), 'node')}")


def _number(text: str) -> float:
    """The number that a setting begins with; 0 for none."""
    found = re.match(r"-?[0-9]+(\.[0-9]+)?", text)
    return float(found[0]) if found else 0.0
