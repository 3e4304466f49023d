"""Sweep files: the settings of a pool, and its trainings. Errors are one line that says where and what."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slurm_asrpt.errors import InputError
from slurm_asrpt.pool.round_policy import POLICIES

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=,+-]{0,119}")
"""Names of trainings: each is also the name of a directory."""
USES = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
MAX_TRAININGS = 10_000
Scalar = str | bool | int | float


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PoolSettings(_Table):
    """The table [pool]."""

    folder: str = Field("", description="Directory for checkpoints and logs; default: the file's name and .pool.")
    policy: str = Field("arrival", description="Which training's tasks run next.")
    switch: Literal["warm", "process"] = Field("warm", description="How a slot turns to another training.")
    keep: Annotated[int, Field(ge=1)] = Field(8, description="Trainings that a process keeps loaded.")
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

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Spec:
        return cls(document["name"], document["uses"], document["with"])


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
        raise InputError(f"{path}: {_where_and_what(error)}") from None
    if found.pool.policy not in POLICIES.names():
        raise InputError(f"{path}: pool.policy: no policy {found.pool.policy!r}; known: {', '.join(POLICIES.names())}")
    code = path.absolute().parent
    folder = code / (found.pool.folder or f"{path.stem}.pool")
    return Sweep(found.pool, checked(str(path), _all(str(path), found.training)), code, folder)


def checked(where: str, specs: Iterable[Spec]) -> tuple[Spec, ...]:
    """The trainings, if each has a name of its own. Raises InputError."""
    found = tuple(specs)
    twice = [name for name, count in Counter(spec.name for spec in found).items() if count > 1]
    if twice:
        raise InputError(f"{where}: two trainings are called {twice[0]!r}; give each a name of its own")
    return found


def _all(where: str, tables: Iterable[_TrainingTable]) -> Iterator[Spec]:
    found = itertools.chain.from_iterable(_expanded(where, table) for table in tables)
    for number, spec in enumerate(found):
        if number >= MAX_TRAININGS:
            raise InputError(f"{where}: more than {MAX_TRAININGS} trainings")
        yield spec


def _expanded(where: str, table: _TrainingTable) -> Iterator[Spec]:
    both = table.grid.keys() & table.settings.keys()
    if both:
        raise InputError(f"{where}: training {table.name!r}: {min(both)} is in both with and grid; remove one")
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
    for key, value in settings.items():
        if not isinstance(value, (str, bool, int, float, list, dict)):
            raise InputError(f"{where}: training {name!r}: with.{key}: dates and times must be strings")


def _where_and_what(error: ValidationError) -> str:
    """The first error in one line. Trainings are counted from 1."""
    first = error.errors()[0]
    place = [part + 1 if isinstance(part, int) else part for part in first["loc"]]
    where = re.sub(r"^training\.(\d+)", r"training \1", ".".join(map(str, place)))
    if first["type"] == "extra_forbidden":
        return f"{where}: no such key; see man asrpt-pool"
    if first["type"] == "missing":
        return f"{where}: missing"
    return f"{where}: {first['msg']} (found {str(first['input'])[:60]!r})"
