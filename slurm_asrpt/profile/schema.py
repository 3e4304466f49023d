"""The TOML schema of profile files: a model cut into stages. Standard library only.

    version = 1                      # of this schema
    name = "vgg19-dp4"               # [A-Za-z0-9][A-Za-z0-9._+-]{0,63}
    model = "VGG19"
    batch = 32                       # samples per iteration, the whole job together
    allreduce = "ring"               # or "tree"
    device = "NVIDIA A100 80 GB"     # the GPU that the seconds below are for
    date = 2026-11-21                # of the measurement; a computed profile may leave it out

    [software]                       # versions by name; a computed profile may leave it out
    torch = "2.13.0"

    [provenance]
    kind = "analytic"                # computed, or "measured"
    origin = "where the figures come from"
    formula = "how they were computed or measured"

    [[stage]]                        # once per pipeline stage, in order
    replicas = 4                     # k_s, GPUs of this stage
    forward_s = 0.0078               # p_s^f, seconds an iteration, one replica's share of the mini-batch
    backward_s = 0.0157              # p_s^b, likewise
    bytes_in = 0                     # d_s^in, activation bytes an iteration and replica; 0 in the first stage
    bytes_out = 0                    # d_s^out, likewise; 0 in the last stage
    param_bytes = 574668960          # h_s, bytes of the stage's trainable parameters

Optional, with these defaults (paper, sections III-B and VI):

    tensor = 1                       # GPUs that share each replica, on one server; seconds and bytes are a replica's
    pipeline = "asynchronous"        # or "synchronous": the pipeline fills and drains in every iteration
    micro_batches = 1                # pieces of a mini-batch in a synchronous pipeline

    [overlap]                        # share of these times that remains when they overlap; 0 is fully hidden
    backward = 1
    allreduce = 1

    [[gpu_type]]                     # once per type of GPU, as slurm.conf calls it
    name = "h100"
    speed = 2.3                      # relative to the device above: seconds of computation are divided by it
    origin = "where that comes from"

    [[stage]]                        # beside the keys above
    tensor_bytes = 0                 # bytes that each tensor slice of a replica all-reduces an iteration
    routed_bytes = 0                 # bytes of tokens that one replica sends to experts an iteration, one way
    routing = [0.25, 0.75]           # share of all tokens for the experts on replica 1 .. replicas, 1 together

All times are seconds, all amounts bytes. For a model that is not cut yet see ``blocks.py``.

A mini-batch is split over the replicas of a stage, so two neighbors must agree on the bytes that cross between them:
k_{s-1} d_{s-1}^out = k_s d_s^in (paper, section III-B, times k_{s-1} k_s / 2).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from errno import EPERM
from pathlib import Path

from slurm_asrpt.core.job import AllReduce, JobProfile, Overlap, Pipeline, Stage
from slurm_asrpt.errors import Collected, InputError, short
from slurm_asrpt.profile.header import HEAD_KEYS, NAME_PATTERN, Head, check_version, format_head, read_head
from slurm_asrpt.profile.toml_table import Table, quote, read_toml

LIBRARY = Path(__file__).parent / "library"
UNCUT = Path(__file__).parent / "uncut"
"""Shipped models as blocks."""

# No real profile exceeds these limits; a file that does is a mistake or an attack on the daemon's memory.
MAX_FILE_BYTES = 1 << 20
MAX_GPUS = 100_000

# Files have nine digits; a larger mismatch at a cut is an error, not rounding.
CUT_TOLERANCE = 1e-3

MAX_MICRO_BATCHES = 1_000_000
MAX_OVERLAP = 10.0
MAX_SPEED = 1000.0

_TOP_KEYS = ("allreduce", "stage")
_MORE_TOP_KEYS = ("tensor", "pipeline", "micro_batches", "overlap", "gpu_type")
_TYPE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_OVERLAP_KEYS = ("backward", "allreduce")
_STAGE_KEYS = ("replicas", "forward_s", "backward_s", "bytes_in", "bytes_out", "param_bytes")
_MORE_STAGE_KEYS = ("tensor_bytes", "routed_bytes", "routing")


@dataclass(frozen=True)
class ProfileFile:
    """A complete profile file: the stages that the scheduler uses, and information for readers.

    origins: the origin of each of the profile's speeds.
    """

    profile: JobProfile
    head: Head
    origins: tuple[str, ...] = ()


def parse_file(text: str, source: str) -> ProfileFile:
    """The profile in ``text`` with its provenance; ``source`` names it in errors. Raises InputError."""
    return read_stages(read_toml(text, source))


def read_stages(table: Table) -> ProfileFile:
    """The profile in a table. Raises InputError."""
    if "block" in table and "stage" not in table:
        raise table.error("block", "this model is not cut yet; cut it with asrpt-profile plan or convert")
    check_version(table)
    errors = Collected()
    with errors:
        table.only((*HEAD_KEYS, *_TOP_KEYS, *_MORE_TOP_KEYS))
    with errors:
        head = read_head(table)
    with errors:
        profile = _profile(table)
    with errors:
        speeds = _speeds(table)
    errors.check()
    rates = tuple((name, speed) for name, speed, _ in speeds)
    return ProfileFile(replace(profile, name=head.name, speeds=rates), head, tuple(origin for *_, origin in speeds))


def format_profile(document: ProfileFile, comment: str = "") -> str:
    """``document`` as the text of a profile file, with ``comment`` at the top."""
    profile = document.profile
    top = format_head(document.head, _format_options(profile), comment)
    if profile.overlap != Overlap():
        top += ["", "[overlap]", *(f"{key} = {getattr(profile.overlap, key):.9g}" for key in _OVERLAP_KEYS)]
    for (name, speed), origin in zip(profile.speeds, document.origins, strict=True):
        top += ["", "[[gpu_type]]", f"name = {quote(name)}", f"speed = {speed:.9g}", f"origin = {quote(origin)}"]
    for stage in profile.stages:
        top += ["", "[[stage]]", *(f"{key} = {getattr(stage, key):.9g}" for key in _STAGE_KEYS)]
        top += [f"{key} = {getattr(stage, key):.9g}" for key in ("tensor_bytes", "routed_bytes") if getattr(stage, key)]
        if stage.routing:
            top.append(f"routing = [{', '.join(f'{share:.9g}' for share in stage.routing)}]")
    return "\n".join(top) + "\n"


def _format_options(profile: JobProfile) -> list[str]:
    """How the job runs; optional keys only if they differ from their defaults."""
    lines = [f"allreduce = {quote(profile.allreduce.value)}"]
    lines += [f"tensor = {profile.tensor}"] if profile.tensor > 1 else []
    if profile.pipeline is Pipeline.SYNCHRONOUS:
        lines += [f"pipeline = {quote(profile.pipeline.value)}", f"micro_batches = {profile.micro_batches}"]
    return lines


def load_profile(name_or_path: str, folders: Sequence[Path]) -> JobProfile:
    """Load a profile by path (it has a ``/``) or by name. Raises InputError."""
    return load_file(name_or_path, folders).profile


def load_file(name_or_path: str, folders: Sequence[Path]) -> ProfileFile:
    """As ``load_profile``, with the provenance. Raises InputError."""
    path = Path(name_or_path) if "/" in name_or_path else find_profile(name_or_path, folders)
    return parse_file(read_text(path, path.read_bytes), str(path))


def find_profile(name: str, folders: Sequence[Path]) -> Path:
    """The file of the profile ``name``: in ``folders`` in order, then in the shipped libraries.

    Only returns files of these folders, so a daemon may pass on names from users. Raises InputError for an invalid
    or unknown name, with close matches.
    """
    if not NAME_PATTERN.fullmatch(name):
        raise InputError(
            f"{name[:80]!r} is not a valid profile name; use 1 to 64 letters, digits, '.', '_', '+' or '-', and no '-' "
            "at the start"
        )
    for folder in (*folders, LIBRARY, UNCUT):
        path = folder / f"{name}.toml"
        if path.is_file():
            return path
    known = known_names(folders)
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(known[:5])} ..."
    raise InputError(f"unknown profile {name}; {hint}")


def known_names(folders: Sequence[Path]) -> list[str]:
    """The names of all profiles, shipped and in ``folders``, sorted."""
    found = {path.stem for folder in folders for path in folder.glob("*.toml")}
    return sorted({*library_names(), *uncut_names(), *found})


def library_names() -> list[str]:
    """The names of the shipped profiles, sorted."""
    return sorted(path.stem for path in LIBRARY.glob("*.toml"))


def uncut_names() -> list[str]:
    """The names of the shipped models as blocks, sorted."""
    return sorted(path.stem for path in UNCUT.glob("*.toml"))


def read_text(path: Path, read: Callable[[], bytes]) -> str:
    try:
        if not path.is_file():
            raise InputError(f"{path}: no such file; specify a profile file or a name")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(f"{path}: larger than {MAX_FILE_BYTES} bytes; not a profile")
        return read().decode("utf-8")
    except OSError as error:
        if error.errno == EPERM:
            raise InputError(f"{path}: refused: {error.strerror}; chown it to root, chmod go-w") from None
        raise InputError(f"{path}: cannot be read ({error.strerror}); check its mode") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8") from error


def _profile(table: Table) -> JobProfile:
    """Without the name and the speeds of GPU types."""
    errors, tensor = Collected(), 0  # 0: unknown
    with errors:
        allreduce = _allreduce(table)
    with errors:
        tensor = table.whole("tensor") if "tensor" in table else 1
    with errors:
        stages = _stages(table, tensor)
    with errors:
        pipeline, micro_batches = _pipeline(table)
    with errors:
        overlap = _overlap(table)
    errors.check()
    return JobProfile("", stages, allreduce, tensor, pipeline, micro_batches, overlap)


def _allreduce(table: Table) -> AllReduce:
    kind = table.text("allreduce")
    if kind not in list(AllReduce):
        raise table.error("allreduce", f"must be one of {', '.join(AllReduce)}, found {short(kind)}")
    return AllReduce(kind)


def _pipeline(table: Table) -> tuple[Pipeline, int]:
    errors, kind, pieces = Collected(), "", 1
    with errors:
        kind = _pipeline_kind(table)
    with errors:
        pieces = table.whole("micro_batches") if "micro_batches" in table else 1
        if pieces > MAX_MICRO_BATCHES:
            raise table.error("micro_batches", f"must be at most {MAX_MICRO_BATCHES}, found {short(pieces)}")
        if pieces > 1 and kind == Pipeline.ASYNCHRONOUS:
            raise table.error("micro_batches", 'requires a synchronous pipeline; add pipeline = "synchronous"')
    errors.check()
    return Pipeline(kind), pieces


def _pipeline_kind(table: Table) -> str:
    kind = table.text("pipeline") if "pipeline" in table else Pipeline.ASYNCHRONOUS.value
    if kind not in list(Pipeline):
        raise table.error("pipeline", f"must be one of {', '.join(Pipeline)}, found {short(kind)}")
    return kind


def _overlap(table: Table) -> Overlap:
    if "overlap" not in table:
        return Overlap()
    errors, inner = Collected(), table.child("overlap")
    with errors:
        inner.only(_OVERLAP_KEYS)
    factors = inner.numbers((key for key in _OVERLAP_KEYS if key in inner), errors)
    for key, factor in factors.items():
        with errors:
            if factor > MAX_OVERLAP:
                raise inner.error(key, f"must be a factor of at most {MAX_OVERLAP:g}, found {short(factor)}")
    errors.check()
    return Overlap(**factors)


def _speeds(table: Table) -> list[tuple[str, float, str]]:
    """Name, speed and origin of each GPU type."""
    errors, found, names = Collected(), list[tuple[str, float, str]](), set[str]()
    for entry in table.children("gpu_type") if "gpu_type" in table else []:
        with errors:
            found.append(_speed(entry, names))
        names.add(str(entry.values.get("name")))
    errors.check()
    return found


def _speed(table: Table, before: Set[str]) -> tuple[str, float, str]:
    """before: names of the types before."""
    errors = Collected()
    with errors:
        table.only(("name", "speed", "origin"))
    with errors:
        name = table.text("name")
        if not _TYPE_NAME.fullmatch(name) or name in before:
            raise table.error("name", f"must be a GPU type as in slurm.conf, each once, found {short(name)}")
    with errors:
        speed = table.number("speed")
        if not 0 < speed <= MAX_SPEED:
            raise table.error("speed", f"must be above 0 and at most {MAX_SPEED:g}, found {short(speed)}")
    with errors:
        origin = table.text("origin")
    errors.check()
    return name, speed, origin


def _stages(table: Table, tensor: int) -> tuple[Stage, ...]:
    """tensor: 0 if its own line is wrong."""
    errors, tables = Collected(), table.children("stage")
    stages: list[Stage | None] = [None] * len(tables)
    for at, entry in enumerate(tables):
        with errors:
            stages[at] = _stage(entry, tensor)
    valid = tuple(stage for stage in stages if stage is not None)
    with errors:
        if tensor * sum(stage.replicas for stage in valid) > MAX_GPUS:
            raise table.error("stage", f"more than {MAX_GPUS} GPUs in all; check replicas and tensor")
    _check_cuts(tables, stages, errors)
    errors.check()
    return valid


def _stage(table: Table, tensor: int) -> Stage:
    errors, replicas, routing = Collected(), 0, tuple[float, ...]()
    with errors:
        table.only((*_STAGE_KEYS, *_MORE_STAGE_KEYS))
    with errors:
        replicas = table.whole("replicas")
    more = [key for key in ("tensor_bytes", "routed_bytes") if key in table]
    numbers = table.numbers((*_STAGE_KEYS[1:], *more), errors)
    with errors:
        if numbers.get("forward_s") == numbers.get("backward_s") == 0:
            raise table.error("forward_s", "forward_s and backward_s are both 0; an iteration takes time")
    with errors:
        if numbers.get("tensor_bytes") and tensor == 1:
            raise table.error("tensor_bytes", "requires tensor slices; add tensor = 2 or more above the stages")
    with errors:
        if numbers.get("routed_bytes") and "routing" not in table:
            raise table.error("routed_bytes", "needs routing, the experts' shares of the tokens")
    with errors:
        routing = table.shares("routing", replicas) if replicas and "routing" in table else ()
    errors.check()
    return Stage(replicas, **numbers, routing=routing)


def _check_cuts(tables: Sequence[Table], stages: Sequence[Stage | None], errors: Collected) -> None:
    """Neighbors agree on the bytes between them; nothing enters the first or leaves the last stage.

    ``errors`` gets what is wrong. A stage that cannot be read (None) is not compared.
    """
    with errors:
        if stages[0] and stages[0].bytes_in:
            raise tables[0].error("bytes_in", "must be 0, no stage comes before")
    for table, before, after in zip(tables[1:], stages[:-1], stages[1:], strict=True):
        with errors:
            _check_cut(table, before, after)
    with errors:
        if stages[-1] and stages[-1].bytes_out:
            raise tables[-1].error("bytes_out", "must be 0, no stage comes after")


def _check_cut(table: Table, before: Stage | None, after: Stage | None) -> None:
    if before is None or after is None:
        return
    sent, received = before.replicas * before.bytes_out, after.replicas * after.bytes_in
    if abs(sent - received) > CUT_TOLERANCE * max(sent, received):
        raise table.error(
            "bytes_in",
            f"{received:g} bytes enter ({after.replicas} replicas together) but the stage before sends {sent:g}; "
            "replicas x bytes_out there must equal replicas x bytes_in here",
        )
