"""asrpt-pool add and stop: control of a pool through its directory, from anywhere that has it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slurm_asrpt.errors import InputError
from slurm_asrpt.text import counted

SweepArgument = Annotated[Path, typer.Argument(metavar="SWEEP", help="Sweep file of the pool.")]


def add_command(
    path: SweepArgument,
    more: Annotated[Path, typer.Argument(metavar="MORE", help="Sweep file with the trainings to add.")],
) -> None:
    """Add the trainings of another file to a pool.

    They start while the pool runs, or when it runs next. Their modules are looked for beside SWEEP.

    \b
    Example:
      asrpt-pool add sweep.toml more.toml
    """
    from slurm_asrpt.pool.folder import PoolFolder
    from slurm_asrpt.pool.sweep import checked, read_sweep

    sweep, added = read_sweep(path), read_sweep(more)
    if not added.trainings:
        raise InputError(f"{more}: no [[training]] to add")
    folder = PoolFolder(sweep.folder)
    folder.make()
    checked(str(more), (*sweep.trainings, *folder.added(set()), *added.trainings))
    folder.add(added.trainings)
    print(f"{counted(len(added.trainings), 'training')} added")


def stop_command(path: SweepArgument) -> None:
    """Write checkpoints and end a pool.

    asrpt-pool run continues it.

    \b
    Example:
      asrpt-pool stop sweep.toml
    """
    from slurm_asrpt.pool.folder import PoolFolder
    from slurm_asrpt.pool.sweep import read_sweep

    folder = PoolFolder(read_sweep(path).folder)
    folder.read_status()
    if not folder.running:
        raise InputError(f"{path}: this pool is not running")
    folder.ask_to_stop()
    print("the pool writes checkpoints and ends within seconds")
