"""Every setting, defined once: type, default, unit and text. ``etc/asrpt.toml`` and its manual come from here."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from errno import EPERM
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from slurm_asrpt.config import group_rules
from slurm_asrpt.config.location import DEFAULT_PATH, RUN, settings_file
from slurm_asrpt.core.policies import registry
from slurm_asrpt.core.policies.asrpt.options import AsrptOptions
from slurm_asrpt.core.policies.gated.options import GatedOptions
from slurm_asrpt.core.policies.hlas.options import HlasOptions
from slurm_asrpt.errors import InputError
from slurm_asrpt.files import read_config

DEFAULT_POLICY = "asrpt-gated"
"""The policy of those who name none."""


class Mode(StrEnum):
    """How far the daemon goes."""

    SHADOW = "shadow"
    ORDER = "order"
    ENFORCE = "enforce"


class Client(StrEnum):
    """How the daemon talks to Slurm."""

    AUTO = "auto"
    CLI = "cli"


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


PositiveSeconds = Annotated[float, Field(gt=0, le=30 * 86400)]


class SlurmSettings(Section):
    """How to reach Slurm."""

    partitions: list[str] = Field(
        default=["gpu"], min_length=1, description="Partitions handed to asrptd; all others stay Slurm's."
    )
    conf: str = Field("", description="slurm.conf to use (sets SLURM_CONF); empty: Slurm's own default.")
    bin_dir: str = Field("", description="Folder of squeue, scontrol ...; empty: found on PATH.")
    timeout_s: PositiveSeconds = Field(30.0, description="Seconds until a hanging Slurm command is given up.")
    client: Client = Field(
        Client.AUTO,
        description="auto: through pyslurm what it can do, if it is installed and fits this Slurm. "
        "cli: Slurm's commands for everything.",
    )


LONGEST_RENEWAL_S = 200.0
"""Each renewal is a call that slurmctld has to serve: the later it comes the fewer there are."""


class DaemonSettings(Section):
    """The control loop of asrptd."""

    mode: Mode = Field(
        Mode.SHADOW,
        description="shadow: decide and record, write nothing. order: SiteFactor only. "
        "enforce: leases, nodes and start times.",
    )
    interval_s: PositiveSeconds = Field(
        5.0,
        description="Seconds between two reads of the queue; more where a cycle costs so much CPU time "
        "that it would take more than an eighth of the machine's cores.",
    )
    progress_s: PositiveSeconds = Field(
        10.0, description="Seconds between two looks at what a running job has reported of its progress."
    )
    forecast_s: Annotated[float, Field(ge=0, le=86400)] = Field(
        60.0,
        description="Seconds between two estimates of when waiting jobs will start, made by a process beside asrptd, "
        "by a quarter of a core at most; more where that takes long, so that in the long run it is a tenth. 0: none.",
    )
    lease_s: Annotated[int, Field(ge=5, le=86400)] = Field(
        600, description="Seconds after which Slurm schedules a waiting job by itself if asrptd is gone."
    )
    unpin_after_s: PositiveSeconds = Field(
        10.0, description="Seconds after which a released job that has not started is taken back and re-planned."
    )
    metrics: Annotated[str, Field(pattern=r"^(.*:[0-9]{1,5})?$")] = Field(
        "", description="ADDRESS:PORT where Prometheus finds metrics, for example 127.0.0.1:9821; empty: nowhere."
    )

    @property
    def renewal_s(self) -> float:
        """Seconds that a lease still runs when it is renewed: half, or so long as slurmctld may be away unnoticed."""
        return min(self.lease_s / 2, LONGEST_RENEWAL_S)


class PathSettings(Section):
    """Where things are kept. Folders are created with tight modes."""

    state: Path = Field(Path("/var/lib/asrpt"), description="Databases, models, audit trail; the daemon's alone.")
    run: Path = Field(
        RUN, description="status.json for asrpt-status: a folder that login nodes see, too, where users type it there."
    )
    hook: Path = Field(
        Path("/var/lib/asrpt-hook"),
        description="hook.conf and table.txt: asrptd writes them, slurmctld's Lua reads them.",
    )
    scripts: Path = Field(
        Path("/etc/slurm/asrpt"),
        description="The submit hook's module and the prologs: root's, for root runs them on the nodes. "
        "Only asrpt-admin install writes there.",
    )
    spool: Path = Field(
        Path("/var/spool/asrpt"),
        description="Host files and progress files; must be the same folder on the controller and all nodes.",
    )
    profiles: list[Path] = Field(
        default=[Path("/etc/slurm/asrpt/profiles")], description="Folders of profile files (*.toml) of this site."
    )
    attachments: Path = Field(
        Path("/etc/slurm/asrpt/attachments.toml"),
        description="Which groups and job names use which profile: asrpt-profile attach writes it, asrptd reads it. "
        "Root's, for it is about everybody's jobs.",
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
        "the policy orders the jobs. 0: no bands. Needs priority/multifactor and slurmdbd.",
    )

    def chosen(self, taken: Iterable[str]) -> dict[str, Any]:
        """Those settings that a policy takes."""
        return self.model_dump(include=set(taken) - {"name"})


class InterruptSettings(Section):
    """How running jobs make room for others (policy hlas), where their owners allow it."""

    partitions: list[str] = Field(
        default=[], description="Partitions whose jobs may be interrupted; empty: all that are handed to asrptd."
    )
    grace_s: Annotated[float, Field(ge=1, le=86400)] = Field(
        60.0,
        description="Seconds for a checkpoint after the signal; then, or when the job has reported it, it is requeued.",
    )


class FabricSettings(Section):
    """Bandwidths, as the timing formulas use them."""

    inter_bytes_per_s: Annotated[float, Field(gt=0)] = Field(
        1.25e9, description="B_inter, NIC bandwidth of one server in bytes/s (1.25e9 = 10 Gbit/s)."
    )
    intra_bytes_per_s: Annotated[float, Field(gt=0)] = Field(
        300e9, description="B_intra, GPU-to-GPU bandwidth inside a server in bytes/s."
    )


class GpuSettings(Section):
    """Types of GPU, where the nodes differ."""

    speeds: dict[str, Annotated[float, Field(gt=0, le=1000)]] = Field(
        default={},
        description="How many times as fast each type computes as the GPU that the profiles' seconds are for (an A100 "
        "for those that are shipped), by its name in slurm.conf: { h100 = 2.3, v100 = 0.42 }. A type that is not named "
        "counts as 1. What a profile itself says of a type goes first.",
    )


class PredictSettings(Section):
    """Learning iterations from history."""

    predictor: Annotated[str, Field(pattern="^(expected|forest|forest-sklearn|last|mean|median|typical)$")] = Field(
        "expected",
        description="expected or typical; from a group's runs alone: forest (the paper's), forest-sklearn (the same by "
        "scikit-learn, slow), last, mean or median.",
    )
    trees: Annotated[int, Field(ge=1, le=10000)] = Field(100, description="Trees of the random forest.")
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        0, description="Seed of the forest: same history and seed, same predictions."
    )
    keep_days: Annotated[int, Field(ge=0, le=36500)] = Field(
        0, description="Days after which a run is dropped from the history; 0: never."
    )
    keep_models: Annotated[int, Field(ge=1, le=10000)] = Field(10, description="Models kept in the state folder.")


class AuditSettings(Section):
    """The audit trail: every decision, with what it was made from."""

    file_mb: Annotated[int, Field(ge=1, le=100_000)] = Field(
        64, description="MiB at which audit.jsonl is put aside and a new one begun."
    )
    files: Annotated[int, Field(ge=1, le=1000)] = Field(
        6, description="Files kept, the one being written included; so the trail has at most files x file_mb MiB."
    )


class GroupSettings(Section):
    """What counts as the same recurring job. The hook and the tools share these rules."""

    strip_comments: bool = Field(True, description="Lines starting with # (also #SBATCH) do not split a group.")
    fold_digits: bool = Field(
        True, description="Runs of digits in the job name count as one '#' (train-17 and train-18 are one group)."
    )
    fold_dates: bool = Field(True, description="A date like 2026-11-21, with or without a clock time, counts as '@'.")
    arguments: bool = Field(True, description="The script's arguments count, by the same rules as its lines.")
    ignore_lines: list[str] = Field(
        default=[],
        description="Plain texts; a script line that contains one does not count.",
    )
    features: list[str] = Field(
        default=group_rules.FEATURES,
        description="Hyper-parameters: a name and its other spellings. Their numbers do not split a group, they are "
        "learned from; the first go first where a tag is too short for all. Case, dashes and _ do not matter.",
    )
    ignore_options: list[str] = Field(
        default=group_rules.IGNORE_OPTIONS,
        description="Options and variables that do not count: --seed 17, --seed=17, SEED=17 and config.seed=17.",
    )
    ignore_commands: list[str] = Field(
        default=group_rules.IGNORE_COMMANDS, description="Commands that do not count, with all their arguments."
    )
    setup_commands: list[str] = Field(
        default=group_rules.SETUP_COMMANDS, description="Commands that count but are no job's program."
    )
    launchers: list[str] = Field(
        default=group_rules.LAUNCHERS,
        description="Commands that start the program: they and their own options do not count. A name, or two words "
        "joined by a slash; *N where N words stand before the command; the options that have their value in the next "
        "word, or with =N in the next N.",
    )
    sizes: list[str] = Field(
        default=group_rules.SIZES,
        description="Options that say how GPUs share a model: procs (processes a node), nodes, tp (tensor slices) or "
        "pp (pipeline stages), and its spellings. A profile that is not cut into stages is cut to them; their numbers "
        "do not split a group.",
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

    trusted: for what writes and runs by them; a file that other users could have written is refused then.
    Raises InputError naming file, key and remedy.
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
        raise InputError(f"{target}: cannot be read ({error.strerror}); name another file with --config") from error
    except (ValueError, RecursionError) as error:  # of Python's own for a number of thousands of digits, too
        raise InputError(f"{target}: not valid TOML ({error}); mend that line") from error
    return parse_settings(raw, str(target))


def parse_settings(raw: dict[str, Any], source: str) -> Settings:
    """Settings from nested tables; ``source`` names them in errors. Raises InputError."""
    try:
        return _model_for(raw.get("policy")).model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise InputError(f"{source}: unknown setting {key}; man 5 asrpt.toml lists the known ones") from None
        raise InputError(f"{source}: {key}: {first['msg']} (found {first['input']!r}); mend that line") from None


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
