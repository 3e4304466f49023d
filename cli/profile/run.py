"""asrpt-profile run: measure the blocks of a model."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from slurm_asrpt_cli._app.help import seldom
from slurm_asrpt_cli._app.options import JsonOption
from slurm_asrpt_cli._app.progress import progress
from slurm_asrpt_cli.profile.files import show
from slurm_asrpt_cli.profile.output import write_text

from slurm_asrpt.errors import AsrptError, InputError, MachineError
from slurm_asrpt.profile.blocks import UncutFile, format_uncut
from slurm_asrpt.profile.documents import to_values
from slurm_asrpt.profile.header import NAME_PATTERN

_LAYERS = re.compile(r"([1-9][0-9]{0,3})/([1-9][0-9]{0,3})")


class Device(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


class Dtype(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Optimiser(StrEnum):
    ADAMW = "adamw"
    SGD = "sgd"


class FactoryError(AsrptError):
    """The user's code failed."""


def run_command(
    factory: Annotated[str, typer.Argument(metavar="MODULE:FACTORY", help="Function that returns the model.")],
    batch: Annotated[int, typer.Option(min=0, metavar="N", help="Call the factory with batch=N.")] = 0,
    device: Annotated[Device, typer.Option(help="Where to measure.")] = Device.CPU,
    dtype: Annotated[Dtype, seldom(help="Type of parameters and activations.")] = Dtype.FLOAT32,
    optimiser: Annotated[Optimiser, seldom(help="Optimizer whose step is measured.")] = Optimiser.ADAMW,
    layers: Annotated[str, typer.Option(metavar="K/N", help="Measure only K of N equal layers.")] = "",
    repeats: Annotated[
        int, seldom(min=2, max=10000, metavar="N", help="Measured rounds, of which the median is taken.")
    ] = 10,
    warm_up: Annotated[int, seldom(min=0, max=1000, metavar="N", help="Warm-up rounds.")] = 3,
    processes: Annotated[
        int,
        seldom("--torchrun", min=0, max=1024, metavar="N", help="Also measure all-reduce, with N processes per node."),
    ] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the profile to this file.")
    ] = None,
    name: Annotated[str, seldom(metavar="NAME", help="Name of the profile; default: the factory's.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Measure the time and bytes of each block of a model.

    The factory returns (module, batch) or (module, batch, loss);
    needs torch: pip install 'slurm-asrpt[profile]'.

    \b
    Examples:
      asrpt-profile run train:make_model -o mine.toml
      asrpt-profile run train:make_model --device cuda
      asrpt-profile run big:model --layers 3/80 -o big.toml
    """
    made = _factory(factory)
    name = name or factory.partition(":")[2]
    if not NAME_PATTERN.fullmatch(name):
        raise InputError(f"--name {name[:64]!r}: use letters, digits, '.', '_', '+' and '-'")
    make, some = _calling(made, batch), _layers(layers)
    measuring = _torch()
    how = measuring.MeasureOptions(device.value, dtype.value, optimiser.value, warm_up, repeats, some)
    links = _collective(processes, device.value) if processes else None
    with progress(f"measuring {name}") as tell:
        found = _guarded(lambda: measuring.measure(make, name, f"asrpt-profile run {factory}", how, tell))
    if output is not None:
        write_text(output, format_uncut(found))
    _tell(found, links(found) if links else {}, as_json)


def _tell(found: UncutFile, links: dict[str, float], as_json: bool) -> None:
    if as_json:
        print(json.dumps(to_values(found) | ({"allreduce_bytes_per_s": links} if links else {})))
        return
    show(found, False)
    for where, rate in links.items():
        print(f"all-reduce {where}: {rate / 1e9:.3g} GB/s")


def _torch() -> Any:
    try:
        return importlib.import_module("slurm_asrpt.profile.measure")
    except ImportError as error:
        raise _no_torch(error) from None


def _no_torch(error: ImportError) -> MachineError:
    return MachineError(f"torch cannot be imported ({error}); pip install 'slurm-asrpt[profile]'")


def _factory(text: str) -> Callable[..., Any]:
    """The function MODULE:FACTORY, from the current directory or an installed module. Raises InputError."""
    module, _, name = text.partition(":")
    if not module or not name.isidentifier():
        raise InputError(f"{text[:80]}: write MODULE:FACTORY, such as train:make_model")
    sys.path.insert(0, os.getcwd())
    loaded = _guarded(lambda: _module(module))
    made = getattr(loaded, name, None)
    if not callable(made):
        raise InputError(f"{text[:80]}: {module} has no function {name}")
    return made  # type: ignore[no-any-return]


def _module(name: str) -> ModuleType:
    """Import a module. Raises InputError if it is missing; errors of its own imports pass."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise InputError(f"{name[:80]}: no such module; run in its directory, or set PYTHONPATH") from None


def _calling(factory: Callable[..., Any], batch: int) -> Callable[[], Any]:
    if not batch:
        return factory
    if "batch" not in inspect.signature(factory).parameters:
        raise InputError("--batch: the factory has no parameter batch; add one, or leave out --batch")
    return lambda: factory(batch=batch)


def _guarded(work: Callable[[], Any]) -> Any:
    """Run the user's code; its errors become a FactoryError of one line."""
    try:
        return work()
    except AsrptError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            raise _no_torch(error) from None
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        raise FactoryError(f"the model's code failed ({text[:300]}); run it in Python") from None


def _layers(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    found = _LAYERS.fullmatch(text)
    if not found or int(found[1]) > int(found[2]):
        raise InputError(f"--layers {text[:20]}: write K/N, such as 3/80 for three of eighty equal layers")
    return int(found[1]), int(found[2])


def _collective(processes: int, device: str) -> Callable[[UncutFile], dict[str, float]]:
    """A function that measures the all-reduce rates for a model's gradients. Raises InputError."""
    measuring = importlib.import_module("slurm_asrpt.profile.collective")
    measuring.check(processes, device)

    def measure(model: UncutFile) -> dict[str, float]:
        size = round(sum(block.grad_bytes for block in model.blocks)) or measuring.SIZE
        found: dict[str, float] = measuring.launch(processes, device, size)
        return found

    return measure
