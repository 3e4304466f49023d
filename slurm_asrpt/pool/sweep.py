"""Sweep files: the settings of a pool, and its trainings. Each error is one line that says where and what."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slurm_asrpt.core.rounds.policies import round_policy_names
from slurm_asrpt.errors import Collected, InputError, as_one, short

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=,+-]{0,119}")
"""Names of trainings: each is also the name of a directory."""
USES = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
MAX_TRAININGS = 10_000
Scalar = str | bool | int | float
_SCALAR = len(("training", 0, "grid", "key", 0))
"""Parts of a scalar's place in the errors of pydantic, which adds one for each of its types."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PoolSettings(_Table):
    """The table [pool]."""

    folder: str = Field("", description="Directory for checkpoints and logs; default: the file's name and .pool.")
    policy: str = Field("arrival", description="Which training's tasks run next.")
    slot_memory_mb: Annotated[int, Field(ge=0)] = Field(
        0, description="Memory of a slot in MB; 0: what Slurm allocated to it, or its share of the machine."
    )
    record: bool = Field(True, description="Keep what the policy decides, for asrpt-pool replay.")
    switch: Literal["process", "warm", "layers", "ahead"] = Field(
        "warm", description="How a slot turns to another training."
    )
    keep: Annotated[int, Field(ge=1)] = Field(8, description="Trainings that a process keeps loaded.")
    device_memory_mb: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Memory of a slot's GPU for the parameters of trainings; 0: half of what is free.",
    )
    checkpoint_s: Annotated[float, Field(gt=0)] = Field(300.0, description="Seconds between checkpoints.")
    before_limit_s: Annotated[float, Field(ge=0)] = Field(
        120.0, description="Seconds before the time limit at which the pool requeues its job."
    )


class _TrainingTable(_Table):
    """A table [[training]]. with: keywords of the factory. grid: lists of values; each combination is a training."""

    name: str
    uses: Annotated[str, Field(pattern=f"^{USES}$")]
    settings: dict[str, Any] = Field(default_factory=dict, alias="with")
    grid: dict[str, Annotated[list[Scalar], Field(min_length=1)]] = Field(default_factory=dict)


class _File(_Table):
    pool: PoolSettings = PoolSettings()
    training: list[_TrainingTable] = Field(default_factory=list)


@dataclass(frozen=True)
class Spec:
    """A training. uses: MODULE:FACTORY. settings: its keywords, values of JSON."""

    name: str
    uses: str
    settings: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        """As in JSON files and messages."""
        return {"name": self.name, "uses": self.uses, "with": dict(self.settings)}


@dataclass(frozen=True)
class Sweep:
    """A sweep file. code: the directory of its modules. folder: of its pool."""

    settings: PoolSettings
    trainings: tuple[Spec, ...]
    code: Path
    folder: Path


def read_sweep(path: Path) -> Sweep:
    """Raises InputError."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: invalid TOML: {error}; fix that line") from None
    try:
        found = _File.model_validate(raw)
    except ValidationError as error:
        raise as_one(InputError(f"{path}: {mistake}") for mistake in _mistakes(error)) from None
    errors = Collected()
    with errors:
        check_policy(f"{path}: pool.policy", found.pool.policy)
    with errors:
        trainings = checked(str(path), _all(str(path), found.training))
    errors.check()
    code = path.absolute().parent
    folder = code / (found.pool.folder or f"{path.stem}.pool")
    return Sweep(found.pool, trainings, code, folder)


def check_policy(where: str, name: str) -> None:
    """Raises InputError for an unknown policy."""
    if name not in round_policy_names():
        raise InputError(f"{where}: no policy {name!r}; known: {', '.join(round_policy_names())}")


def checked(where: str, specs: Iterable[Spec]) -> tuple[Spec, ...]:
    """The trainings, if each has a name of its own. Raises InputError."""
    found = tuple(specs)
    twice = [name for name, count in Counter(spec.name for spec in found).items() if count > 1]
    if twice:
        raise as_one(
            InputError(f"{where}: two trainings are called {name!r}; give each a name of its own") for name in twice
        )
    return found


def read_spec(where: str, document: Any) -> Spec:
    """A training from ``Spec.document``. Raises InputError."""
    try:
        table = _TrainingTable.model_validate(document)
    except ValidationError as error:
        raise as_one(InputError(f"{where}: {mistake}") for mistake in _mistakes(error)) from None
    return Spec(table.name, table.uses, table.settings)


def _all(where: str, tables: Iterable[_TrainingTable]) -> list[Spec]:
    errors, found = Collected(), list[Spec]()
    for table in tables:
        with errors:
            found += itertools.islice(_expanded(where, table), MAX_TRAININGS + 1 - len(found))
    errors.check()
    if len(found) > MAX_TRAININGS:
        raise InputError(f"{where}: more than {MAX_TRAININGS} trainings")
    return found


def _expanded(where: str, table: _TrainingTable) -> Iterator[Spec]:
    """The trainings of a table, up to the first with an error: the others have the same one."""
    both = table.grid.keys() & table.settings.keys()
    if both:
        what = "is in both with and grid; remove one"
        raise as_one(InputError(f"{where}: training {table.name!r}: {key} {what}") for key in sorted(both))
    for values in itertools.product(*table.grid.values()):
        chosen = dict(zip(table.grid, values, strict=True))
        name = "-".join((table.name, *(f"{key}={_word(value)}" for key, value in chosen.items())))
        if not NAME.fullmatch(name):
            raise InputError(f"{where}: training {name[:140]!r}: use up to 120 letters, digits and ._=,+- in names")
        settings = {**table.settings, **chosen}
        _check_values(where, name, settings)
        yield Spec(name, table.uses, settings)


def _word(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_values(where: str, name: str, settings: Mapping[str, Any]) -> None:
    """TOML's dates and times are no values of JSON."""
    wrong = [key for key, value in settings.items() if not isinstance(value, (str, bool, int, float, list, dict))]
    if wrong:
        what = "dates and times must be strings"
        raise as_one(InputError(f"{where}: training {name!r}: with.{key}: {what}") for key in wrong)


def _mistakes(error: ValidationError) -> list[str]:
    """One line each: where and what."""
    places = {found["loc"][:_SCALAR]: found for found in error.errors(include_url=False)}
    return [_where_and_what(place, found) for place, found in places.items()]


def _where_and_what(place: Sequence[str | int], found: ErrorDetails) -> str:
    """Trainings are counted from 1."""
    counted = [part + 1 if isinstance(part, int) else part for part in place]
    where = re.sub(r"^training\.(\d+)", r"training \1", ".".join(map(str, counted)))
    if found["type"] == "extra_forbidden":
        return f"{where}: no such key; see man asrpt-pool"
    if found["type"] == "missing":
        return f"{where}: missing"
    what = found["msg"] if len(place) < _SCALAR else "must be a string, a number, true or false"
    return f"{where}: {what} (found {short(found['input'])})"
