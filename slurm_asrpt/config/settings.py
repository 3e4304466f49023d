"""Every setting with its type, default, unit and description.

``config.reference`` generates ``etc/asrpt.toml`` and the manual pages from this module.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from errno import EPERM
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import PydanticCustomError

from slurm_asrpt.config import DEFAULT_POLICY, group_rules
from slurm_asrpt.config.location import DEFAULT_PATH, RUN, settings_file
from slurm_asrpt.config.mode import Mode as Mode
from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.policies import registry
from slurm_asrpt.core.policies.asrpt.options import AsrptOptions
from slurm_asrpt.core.policies.gated.options import GatedOptions
from slurm_asrpt.core.policies.hlas.options import HlasOptions
from slurm_asrpt.errors import InputError, as_one, short
from slurm_asrpt.files import read_config

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class Client(StrEnum):
    """How asrptd talks to Slurm."""

    AUTO = "auto"
    CLI = "cli"


class Show(StrEnum):
    """What the dashboard shows of jobs."""

    OFF = "off"
    ANONYMOUS = "anonymous"
    NAMES = "names"


def _address(text: str) -> str:
    _, colon, port = text.rpartition(":")
    if text and not (colon and port.isdecimal() and 0 < int(port) < 2**16):
        raise PydanticCustomError("address", "must be ADDRESS:PORT, for example 127.0.0.1:9821, or empty")
    return text


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


PositiveSeconds = Annotated[float, Field(gt=0, le=30 * 86400)]


class SlurmSettings(Section):
    """How asrptd and the tools reach Slurm."""

    partitions: list[str] = Field(
        default=["gpu"], min_length=1, description="Partitions that asrptd manages. Slurm schedules all others."
    )
    allow_opt_out: bool = Field(
        True,
        description="Whether jobs with asrpt:off in --comment are left to Slurm. If not, in mode enforce, such a job "
        "starts at once if it fits, and otherwise waits in the queue like all others.",
    )
    conf: str = Field("", description="Path of slurm.conf; it is exported as SLURM_CONF. Empty: Slurm's default.")
    bin_dir: str = Field("", description="Directory of squeue, scontrol and the other commands. Empty: search PATH.")
    timeout_s: PositiveSeconds = Field(30.0, description="Timeout of a Slurm command.")
    client: Client = Field(
        Client.AUTO,
        description="auto: use pyslurm for what it supports, if it is installed and matches this release of Slurm. "
        "cli: use Slurm's commands for everything.",
    )


LONGEST_RENEWAL_S = 200.0
"""Upper bound of ``renewal_s``. slurmctld serves each renewal, so leases are renewed as late as is safe."""


class DaemonSettings(Section):
    """The control loop of asrptd."""

    mode: Mode = Field(
        Mode.SHADOW,
        description="shadow: decide and record; write nothing to Slurm. order: write SiteFactor only. "
        "enforce: write leases, nodes and start times.",
    )
    interval_s: PositiveSeconds = Field(
        5.0,
        description="Interval between scheduling cycles. asrptd lengthens it if its cycles would otherwise use more "
        "than an eighth of the machine's CPU time. A submission or the end of a job begins a cycle early.",
    )
    progress_s: PositiveSeconds = Field(
        10.0, description="How often asrptd reads the progress that a running job reports."
    )
    forecast_s: Annotated[float, Field(ge=0, le=86400)] = Field(
        60.0,
        description="How often the start times of waiting jobs are estimated. A separate process does this, with a "
        "quarter of a core at most. Estimates that take long are made less often: they run for a tenth of the time on "
        "average. 0: no estimates.",
    )
    lease_s: Annotated[int, Field(ge=5, le=86400)] = Field(
        600,
        description="Duration of a lease. If asrptd stops, Slurm schedules waiting jobs after this time at the latest. "
        "If it is killed and not restarted, its guard hands them back to Slurm within a minute.",
    )
    unpin_after_s: PositiveSeconds = Field(
        10.0,
        description="If Slurm does not start a released job within this time, asrptd withdraws the placement and "
        "plans it again. At least twice the pause of Slurm's scheduler (SchedulerParameters).",
    )
    release_ahead: Annotated[int, Field(ge=0, le=1000)] = Field(
        16,
        description="Number of jobs at the head of the queue that Slurm may start by itself as soon as a job ends, if "
        "they would start next whichever job ends; where more start between two cycles, twice as many as have started. "
        "Otherwise a start behind an end waits for asrptd, and then for Slurm's next full second. With "
        "priority/basic only those that were submitted in the policy's order. Needs policy asrpt-gated. 0: none.",
    )
    metrics: Annotated[str, AfterValidator(_address)] = Field(
        "", description="ADDRESS:PORT on which to serve Prometheus metrics, e.g. 127.0.0.1:9821. Empty: no metrics."
    )

    dashboard: Show = Field(
        Show.OFF,
        description="Whether asrptd keeps a web page in paths.run, dashboard.html, for a web server or Open OnDemand. "
        "anonymous: all jobs, without names of users and jobs, and without the details of reasons. names: what squeue "
        "shows. If slurm.conf has PrivateData=jobs, only root and asrptd's user can read the file. off: no page.",
    )

    @property
    def renewal_s(self) -> float:
        """Remaining seconds at which a lease is renewed: half of ``lease_s``, at most ``LONGEST_RENEWAL_S``."""
        return min(self.lease_s / 2, LONGEST_RENEWAL_S)


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise PydanticCustomError("relative", "must be an absolute path")
    return path


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]


class PathSettings(Section):
    """Files and directories. asrptd creates missing directories with restrictive modes."""

    state: AbsolutePath = Field(
        Path("/var/lib/asrpt"),
        description="History, models, saved state and audit trail. Only asrptd's user has access.",
    )
    run: AbsolutePath = Field(
        RUN,
        description="status.json, which asrpt-status reads. For asrpt-status to work on login nodes, use a directory "
        "that they share with the controller.",
    )
    hook: AbsolutePath = Field(
        Path("/var/lib/asrpt-hook"),
        description="hook.conf, table.txt and profiles.txt, which asrptd writes and slurmctld's submit hook reads.",
    )
    scripts: AbsolutePath = Field(
        Path("/etc/slurm/asrpt"),
        description="The submit hook's Lua module, prologs and epilog. Must be owned by root, because root runs them "
        "on the nodes. Only asrpt-admin install writes here.",
    )
    spool: AbsolutePath = Field(
        Path("/var/spool/asrpt"),
        description="Host files and progress files. Must be one shared directory on the controller and all nodes.",
    )
    profiles: list[Path] = Field(
        default=[Path("/etc/slurm/asrpt/profiles")], description="Directories with this site's profiles (*.toml)."
    )
    attachments: AbsolutePath = Field(
        Path("/etc/slurm/asrpt/attachments.toml"),
        description="Which groups and job names use which profile. asrpt-profile attach writes it. Must be owned by "
        "root, because it affects the jobs of all users.",
    )


class _PolicyName(Section):
    """The key that comes first."""

    name: str = Field(
        DEFAULT_POLICY, description="Name of the policy. An unknown name is an error that lists the known ones."
    )


class PolicySettings(HlasOptions, GatedOptions, AsrptOptions, _PolicyName):
    """Which policy decides, and its settings."""

    fairshare_bands: Annotated[int, Field(ge=0, le=100)] = Field(
        0,
        description="Number of bands of Slurm's fair-share factor. Users with the least usage go first; within a band "
        "the policy orders the jobs. 0: no bands: fair share counts by PriorityWeightFairShare (docs/priorities.md). "
        "Needs priority/multifactor and slurmdbd.",
    )

    def chosen(self, taken: Iterable[str]) -> dict[str, Any]:
        """Those settings that a policy takes."""
        return self.model_dump(include=set(taken) - {"name"})


Signal = Literal["USR1", "USR2", "B:USR1", "B:USR2"]


class InterruptSettings(Section):
    """Preemption by a policy: a running job whose owner allows it writes a checkpoint and is requeued."""

    partitions: list[str] = Field(
        default=[], description="Partitions whose jobs may be preempted. Empty: all managed partitions."
    )
    partition_signals: dict[str, Signal] = Field(
        default={},
        description="Partitions whose jobs may all be preempted, and the signal for a checkpoint: "
        '{ long = "B:USR1" }. The signal ends a job that does not expect it, so tell users. They may refuse: '
        "--comment=asrpt:interrupt=off. A signal of their own takes precedence.",
    )
    qos_signals: dict[str, Signal] = Field(
        default={},
        description='The same for QOSes: { preemptible = "USR1" }. Users cannot refuse, so such a QOS may be cheaper '
        "(sacctmgr modify qos preemptible set UsageFactor=0.5).",
    )
    grace_s: Annotated[float, Field(ge=1, le=86400)] = Field(
        60.0,
        description="Time that a job has to write its checkpoint after the signal; jobs that report checkpoints have "
        "three times as long, or 1.5 times what their group has needed. A job is requeued when it reports the "
        "checkpoint, or when this time is over.",
    )


Bandwidth = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""Bytes per second. With an infinite one, what communication costs could not be learned."""


class FabricSettings(Section):
    """Bandwidths for the timing formulas."""

    inter_bytes_per_s: Bandwidth = Field(
        1.25e9, description="B_inter: NIC bandwidth of one server. 1.25e9 is 10 Gbit/s."
    )
    intra_bytes_per_s: Bandwidth = Field(300e9, description="B_intra: GPU-to-GPU bandwidth within a server.")
    beyond_bytes_per_s: list[Bandwidth] = Field(
        default=[],
        description="Bandwidth of one server through a switch of level 2, 3 ... of Slurm's topology; the last number "
        "holds for all levels above. Levels count from 1, the switch or block above the server; inter_bytes_per_s is "
        "the bandwidth within that. If empty, all placements on several servers are equally fast. "
        "With topology/block, level 1 is the block.",
    )
    nvlink_domain: Annotated[int, Field(ge=0, le=1024)] = Field(
        0,
        description="Number of GPUs with consecutive indexes on a node that reach each other with intra_bytes_per_s: 2 "
        "for NVLink bridges between pairs, 4 for nodes with two groups of four. 0: all GPUs of the node.",
    )
    across_bytes_per_s: Bandwidth = Field(
        25e9,
        description="GPU-to-GPU bandwidth between NVLink domains of a node, without effect if nvlink_domain is 0. "
        "25e9 is PCIe 4.0 x16.",
    )

    def to_core(self) -> Fabric:
        """As the timing formulas take them."""
        across = self.across_bytes_per_s if self.nvlink_domain else 0.0
        beyond = tuple(self.beyond_bytes_per_s)
        return Fabric(self.inter_bytes_per_s, self.intra_bytes_per_s, beyond, self.nvlink_domain, across)


class GpuSettings(Section):
    """GPU types, on clusters that have several."""

    speeds: dict[str, Annotated[float, Field(gt=0, le=1000)]] = Field(
        default={},
        description="Speed of each GPU type relative to the reference GPU of the profiles (A100 for the shipped "
        "ones), by its name in slurm.conf: { h100 = 2.3, v100 = 0.42 }. The default for a type is 1. A profile's own "
        "speed for a type takes precedence.",
    )


class PredictSettings(Section):
    """How the iterations of a job are predicted from the history."""

    predictor: Literal["expected", "forest", "forest-sklearn", "last", "mean", "median", "typical"] = Field(
        "expected",
        description="expected: learn from all similar runs; the queue order uses the mean. typical: the same, but the "
        "order uses the median. The others learn from a group's own runs: forest (the paper's random forest), "
        "forest-sklearn (the same with scikit-learn; slow), last, mean and median.",
    )
    trees: Annotated[int, Field(ge=1, le=10000)] = Field(100, description="Number of trees in the random forest.")
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        0, description="Random seed of the forest. The same history and seed give the same predictions."
    )
    keep_days: Annotated[int, Field(ge=0, le=36500)] = Field(
        0, description="Days for which a run stays in the history. 0: forever."
    )
    communication: bool = Field(
        True,
        description="Learn from their runs how much jobs without a profile communicate, and place those that suffer on "
        "distant nodes like jobs with a profile.",
    )
    keep_models: Annotated[int, Field(ge=1, le=10000)] = Field(
        10, description="Number of models to keep in paths.state."
    )


class AuditSettings(Section):
    """The audit trail: every decision with its inputs."""

    file_mb: Annotated[int, Field(ge=1, le=100_000)] = Field(
        64, description="Size in MiB at which audit.jsonl is rotated."
    )
    files: Annotated[int, Field(ge=1, le=1000)] = Field(
        6, description="Number of files to keep, including the current one. The trail uses at most files x file_mb MiB."
    )


class GroupSettings(Section):
    """Grouping rules: which submissions count as the same recurring job. The submit hook and the tools share them."""

    strip_comments: bool = Field(True, description="Ignore lines that start with #, #SBATCH lines included.")
    fold_digits: bool = Field(
        True, description="Replace each run of digits in the job name by '#': train-17 and train-18 are one group."
    )
    fold_dates: bool = Field(True, description="Replace dates like 2026-11-21, with or without a time, by '@'.")
    arguments: bool = Field(True, description="Include the script's arguments, by the same rules as its lines.")
    ignore_lines: list[str] = Field(
        default=[],
        description="Ignore script lines that contain one of these strings.",
    )
    features: list[str] = Field(
        default=group_rules.FEATURES,
        description="Hyperparameters: a name and its other spellings. Their values do not split a group; predictions "
        "learn from them. If a tag is too short for all, earlier entries take precedence. Case, - and _ are ignored.",
    )
    ignore_options: list[str] = Field(
        default=group_rules.IGNORE_OPTIONS,
        description="Ignore these options and variables: --seed 17, --seed=17, SEED=17 and config.seed=17.",
    )
    ignore_commands: list[str] = Field(
        default=group_rules.IGNORE_COMMANDS, description="Ignore these commands and their arguments."
    )
    setup_commands: list[str] = Field(
        default=group_rules.SETUP_COMMANDS, description="Commands that count, but are not the job's program."
    )
    launchers: list[str] = Field(
        default=group_rules.LAUNCHERS,
        description="Commands that start the program. Ignore them and their own options. An entry is a name, or two "
        "words joined by a slash; *N if N words precede the command; then the options that take their value from the "
        "next word, or from the next N words with =N.",
    )
    sizes: list[str] = Field(
        default=group_rules.SIZES,
        description="Options that set how GPUs share a model: procs (processes per node), nodes, tp (tensor-parallel "
        "size) or pp (pipeline stages), followed by other spellings. A profile without stages is cut by them. Their "
        "values do not split a group.",
    )


class Settings(Section):
    slurm: SlurmSettings = SlurmSettings()
    daemon: DaemonSettings = DaemonSettings()
    paths: PathSettings = PathSettings()
    policy: PolicySettings = PolicySettings()
    interrupt: InterruptSettings = InterruptSettings()
    fabric: FabricSettings = FabricSettings()
    gpu: GpuSettings = GpuSettings()
    predict: PredictSettings = PredictSettings()
    audit: AuditSettings = AuditSettings()
    group: GroupSettings = GroupSettings()


def load_settings(path: Path | None = None, *, trusted: bool = False) -> Settings:
    """Settings from ``path``, else from $ASRPT_CONFIG, else from /etc/slurm/asrpt.toml, else the defaults.

    trusted: refuse a file that other users can write. For programs that act on the settings with privileges.
    Raises InputError that names the file, the key and the remedy.
    """
    named = settings_file(path)
    target = named or DEFAULT_PATH
    if named is None and not target.exists():
        return Settings()
    try:
        data = read_config(target) if trusted else target.read_bytes()
        raw = tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        if error.errno == EPERM:
            remedy = f"{error.filename}; chown it to root, chmod go-w"
            raise InputError(f"{target}: refused: {error.strerror} ({remedy})") from None
        raise InputError(f"{target}: cannot be read ({error.strerror}); specify another file with --config") from error
    except (ValueError, RecursionError) as error:  # Python's own ValueError too, for a number of thousands of digits
        raise InputError(f"{target}: invalid TOML: {error}; fix that line") from error
    return parse_settings(raw, str(target))


def parse_settings(raw: dict[str, Any], source: str) -> Settings:
    """Settings from nested tables. ``source``: their name in errors. Raises InputError."""
    try:
        return _model_for(raw.get("policy")).model_validate(raw)
    except ValidationError as error:
        raise as_one(InputError(f"{source}: {_mistake(found)}") for found in error.errors(include_url=False)) from None


def _mistake(found: ErrorDetails) -> str:
    key = ".".join(map(str, found["loc"]))
    if found["type"] == "extra_forbidden":
        return f"unknown setting {key}; see man 5 asrpt.toml for the valid ones"
    return f"{key}: {found['msg']} (found {short(found['input'])}); fix that line"


def parse_policy_settings(section: Mapping[str, Any]) -> PolicySettings:
    """The section [policy] from a table. Raises ValidationError."""
    return _policy_model_for(section).model_validate(section)


def _model_for(section: Any) -> type[Settings]:
    """``Settings`` whose [policy] also takes those of these keys that belong to policies of other packages."""
    found = _policy_model_for(section) if isinstance(section, dict) else PolicySettings
    return Settings if found is PolicySettings else create_model("Settings", __base__=Settings, policy=(found, found()))


def _policy_model_for(section: Mapping[str, Any]) -> type[PolicySettings]:
    """Packages are searched for policies only if there are keys that no policy of this one has.

    The options of a policy that is not installed on this machine are ignored: only asrptd needs it, and says so.
    """
    unknown = section.keys() - PolicySettings.model_fields.keys()
    if not unknown:
        return PolicySettings
    plugins, name = dict(registry.plugin_options()), section.get("name", DEFAULT_POLICY)
    own = [plugins.pop(name)] if name in plugins else []
    models = [each for each in [*own, *plugins.values()] if unknown & each.model_fields.keys()]
    missing = not own and name not in registry.BUILT_IN
    config = ConfigDict(extra="ignore" if missing else "forbid")
    return type("PolicySettings", (PolicySettings, *models), {"model_config": config, "__module__": __name__})
