"""What a simulation assumes, in words: models, network, predictor, load. For tables and reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slurm_asrpt.sim.description import FEWEST, H100, KNOWN, NODES, PERFECT, UNKNOWN
from slurm_asrpt.sim.recorder import preempts
from slurm_asrpt.sim.scenario import PolicySpec, Scenario, parse_policy
from slurm_asrpt.text import counted

WAITING_S = 60.0
"""A simulation in which the 99th percentile of the waits is less compares nothing, seconds."""

SCATTERED = 0.2
"""The share of the GPU time lost to placement from which a policy is said to scatter jobs."""

SPLITS = "of GPUs over servers: the paper's under asrpt, fifo, spjf, spwf and wcs-*, Slurm's under the others"


def assumptions(scenario: Scenario, notes: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Labeled facts. notes: of the workload."""
    return [
        ("Models", models(scenario)),
        ("Network", network(scenario)),
        ("Predictor", predictor(scenario, notes)),
        ("Load", load(scenario, notes)),
        *([("Split", SPLITS)] if scenario.options.models != "none" else []),
        *([("Consent", preemption(scenario))] if scenario.options.consent else []),
    ]


def models(scenario: Scenario) -> str:
    """The models that the jobs train."""
    if scenario.options.models == "none":
        return "none: every placement is as fast as any other"
    told = {KNOWN: "", UNKNOWN: ", which policies do not know"}
    learned = f", which policies learn from {scenario.options.communication}"
    speeds = {"table1": "computed for an A100", H100: "as measured on an H100"}[scenario.options.models]
    models = f"each group trains a model drawn from the paper's Table I, {speeds}; placement decides how fast"
    return f"{scenario.options.models}: {models}" + told.get(scenario.options.communication, learned)


def network(scenario: Scenario) -> str:
    """The bandwidths, and who gets them."""
    cluster = scenario.cluster
    used = "not used without models" if scenario.options.models == "none" else ""
    shared = "" if cluster.contention is None else f"shared by jobs, contention {cluster.contention:g}"
    speeds = f"{cluster.nic_gbit:g} Gbit/s per server, {cluster.intra_gbyte:g} GB/s inside"
    beyond = "/".join([f"{gbit:g}" for gbit in cluster.beyond_gbit or (cluster.nic_gbit,)])
    domains = f"{cluster.across_gbyte:g} GB/s between NVLink domains of {cluster.domain} GPUs" if cluster.domain else ""
    racks = f"{cluster.switches[0]} servers under each switch, {beyond} Gbit/s beyond" if cluster.switches else ""
    return ", ".join(filter(None, (speeds, domains, racks, used or shared)))


def predictor(scenario: Scenario, notes: Mapping[str, Any]) -> str:
    """The predictor, and what it learns from."""
    options = scenario.options
    if options.predictor == PERFECT:
        return "perfect: policies know the true run times"
    retrained = f"retrained every {options.retrain_s / 60:g} min" if options.retrain_s > 0 else "never retrained"
    unseen = f"{100 * notes['unseen']:.0f}% of the jobs have no prediction at first"
    return f"{options.predictor}, from {counted(notes['history_jobs'], 'earlier job')}, {retrained}; {unseen}"


def preemption(scenario: Scenario) -> str:
    """Which jobs may be preempted, and what it costs."""
    options = scenario.options
    return (
        f"of {100 * options.consent:.0f}% of the jobs, by asrpt-gated:interrupts=true and hlas; checkpoint "
        f"{options.checkpoint_s:g} s, eligible again after {options.requeue_s:g} s, restart {options.restart_s:g} s"
    )


def load(scenario: Scenario, notes: Mapping[str, Any]) -> str:
    """The load as it came out, and how it was reached."""
    found, own = notes["load"], notes["load_of_trace"]
    if found is None:
        return "all jobs arrive at once"
    if scenario.options.load is None:
        return f"{found:.3g}, as in the trace"
    return f"{found:.3g}: the trace's is {own:.3g}, so times between submissions are {_stretched(own / found)}"


def nobody_consents(specs: Iterable[PolicySpec], consent: float) -> str:
    """A warning if policies preempt jobs, but no job may be preempted; else an empty string."""
    idle = [] if consent else [spec.text for spec in specs if preempts(spec)]
    if not idle:
        return ""
    return f"no job may be preempted, so {', '.join(idle)} cannot preempt any: set a share with --consent"


def no_losses(specs: Iterable[PolicySpec]) -> str:
    """A note if policies predict sizes from reported losses, which no simulated job reports; else an empty string."""
    blind = [spec.text for spec in specs if spec.settings.get("predict") == "loss"]
    if not blind:
        return ""
    return f"simulated jobs report no loss, so predict=loss changes nothing: {', '.join(blind)}"


def scattering(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The policies that lose much to placement because jobs do not say on how many nodes. rows: summaries by policy."""
    lossy = dict.fromkeys(row["policy"] for row in rows if row["placement_loss"] > SCATTERED)
    return [policy for policy in lossy if NODES not in parse_policy(policy).settings]


def scattered(policies: Iterable[str]) -> str:
    """A note on such policies, else an empty string."""
    names = ", ".join(policies)
    if not names:
        return ""
    return (
        f"jobs request no number of nodes, so these policies scatter them and lose more than {SCATTERED:.0%} of the "
        f"GPU time (LOST): {names}. POLICY:{NODES}={FEWEST} is what sbatch -N does"
    )


def too_large(summaries: Iterable[Mapping[str, Any]]) -> str:
    """A warning if jobs never start because they are larger than the cluster, else an empty string."""
    never, jobs = max(((found["never_started"], found["jobs"]) for found in summaries), default=(0, 0))
    return f"{never} of {counted(jobs, 'job')} never start: they are larger than the cluster" if never else ""


def _stretched(factor: float) -> str:
    return f"{factor:.3g} times as long"


def nobody_waits(summaries: Iterable[Mapping[str, Any]], load: float | None) -> str:
    """A warning if no policy lets jobs wait, else an empty string."""
    waits = [found["p99_wait_s"] for found in summaries]
    if not waits or any(wait is None or wait >= WAITING_S for wait in waits):
        return ""
    at = "" if load is None else f" at load {load:.3g}"
    return f"hardly a job waits{at}, so this compares nothing: use fewer servers or more load"
