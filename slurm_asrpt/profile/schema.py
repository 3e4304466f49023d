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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from errno import EPERM
from pathlib import Path

from slurm_asrpt.core.job import AllReduce, JobProfile, Overlap, Pipeline, Stage
from slurm_asrpt.errors import InputError
from slurm_asrpt.profile.header import HEAD_KEYS, NAME_PATTERN, Head, format_head, read_head
from slurm_asrpt.profile.toml_table import Table, quote, read_toml, short

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


def parse_profile(text: str, source: str) -> JobProfile:
    """The profile in ``text``; ``source`` names it in errors. Raises InputError."""
    return parse_file(text, source).profile


def parse_file(text: str, source: str) -> ProfileFile:
    """The profile in ``text`` with its provenance; ``source`` names it in errors. Raises InputError."""
    return read_stages(read_toml(text, source))


def read_stages(table: Table) -> ProfileFile:
    """The profile in a table. Raises InputError."""
    if "block" in table and "stage" not in table:
        raise table.error("block", "this model is not cut yet; cut it with asrpt-profile plan or convert")
    table.only((*HEAD_KEYS, *_TOP_KEYS, *_MORE_TOP_KEYS))
    head = read_head(table)
    tables = table.children("gpu_type") if "gpu_type" in table else []
    profile = replace(_profile(table, head.name), speeds=_speeds(tables))
    return ProfileFile(profile, head, tuple(entry.text("origin") for entry in tables))


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


def _profile(table: Table, name: str) -> JobProfile:
    allreduce = table.text("allreduce")
    if allreduce not in list(AllReduce):
        raise table.error("allreduce", f"must be one of {', '.join(AllReduce)}, found {short(allreduce)}")
    tensor = table.whole("tensor") if "tensor" in table else 1
    tables = table.children("stage")
    stages = tuple(_stage(entry, tensor) for entry in tables)
    if tensor * sum(stage.replicas for stage in stages) > MAX_GPUS:
        raise table.error("stage", f"more than {MAX_GPUS} GPUs in all; check replicas and tensor")
    _check_cuts(tables, stages)
    pipeline, micro_batches = _pipeline(table)
    return JobProfile(name, stages, AllReduce(allreduce), tensor, pipeline, micro_batches, _overlap(table))


def _pipeline(table: Table) -> tuple[Pipeline, int]:
    kind = table.text("pipeline") if "pipeline" in table else Pipeline.ASYNCHRONOUS.value
    if kind not in list(Pipeline):
        raise table.error("pipeline", f"must be one of {', '.join(Pipeline)}, found {short(kind)}")
    pieces = table.whole("micro_batches") if "micro_batches" in table else 1
    if pieces > MAX_MICRO_BATCHES:
        raise table.error("micro_batches", f"must be at most {MAX_MICRO_BATCHES}, found {short(pieces)}")
    if pieces > 1 and kind != Pipeline.SYNCHRONOUS:
        raise table.error("micro_batches", 'requires a synchronous pipeline; add pipeline = "synchronous"')
    return Pipeline(kind), pieces


def _overlap(table: Table) -> Overlap:
    if "overlap" not in table:
        return Overlap()
    inner = table.child("overlap")
    inner.only(_OVERLAP_KEYS)
    factors = {key: inner.number(key) for key in _OVERLAP_KEYS if key in inner}
    for key, factor in factors.items():
        if factor > MAX_OVERLAP:
            raise inner.error(key, f"must be a factor of at most {MAX_OVERLAP:g}, found {short(factor)}")
    return Overlap(**factors)


def _speeds(tables: Sequence[Table]) -> tuple[tuple[str, float], ...]:
    found: dict[str, float] = {}
    for table in tables:
        table.only(("name", "speed", "origin"))
        name, speed = table.text("name"), table.number("speed")
        if not _TYPE_NAME.fullmatch(name) or name in found:
            raise table.error("name", f"must be a GPU type as in slurm.conf, each once, found {short(name)}")
        if not 0 < speed <= MAX_SPEED:
            raise table.error("speed", f"must be above 0 and at most {MAX_SPEED:g}, found {short(speed)}")
        found[name] = speed
    return tuple(found.items())


def _stage(table: Table, tensor: int) -> Stage:
    table.only((*_STAGE_KEYS, *_MORE_STAGE_KEYS))
    replicas = table.whole("replicas")
    numbers = {key: table.number(key) for key in _STAGE_KEYS[1:]}
    numbers |= {key: table.number(key) for key in ("tensor_bytes", "routed_bytes") if key in table}
    if numbers["forward_s"] + numbers["backward_s"] <= 0:
        raise table.error("forward_s", "forward_s and backward_s are both 0; an iteration takes time")
    if numbers.get("tensor_bytes") and tensor == 1:
        raise table.error("tensor_bytes", "requires tensor slices; add tensor = 2 or more above the stages")
    if numbers.get("routed_bytes") and "routing" not in table:
        raise table.error("routed_bytes", "needs routing, the experts' shares of the tokens")
    routing = table.shares("routing", replicas) if "routing" in table else ()
    return Stage(replicas, **numbers, routing=routing)


def _check_cuts(tables: Sequence[Table], stages: Sequence[Stage]) -> None:
    """Neighbors agree on the bytes between them; nothing enters the first or leaves the last stage."""
    if stages[0].bytes_in:
        raise tables[0].error("bytes_in", "must be 0, no stage comes before")
    if stages[-1].bytes_out:
        raise tables[-1].error("bytes_out", "must be 0, no stage comes after")
    for table, before, after in zip(tables[1:], stages[:-1], stages[1:], strict=True):
        sent, received = before.replicas * before.bytes_out, after.replicas * after.bytes_in
        if abs(sent - received) > CUT_TOLERANCE * max(sent, received):
            raise table.error(
                "bytes_in",
                f"{received:g} bytes enter ({after.replicas} replicas together) but the stage before sends {sent:g}; "
                "replicas x bytes_out there must equal replicas x bytes_in here",
            )
