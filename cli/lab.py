"""asrpt-lab: a disposable Slurm cluster on this machine."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from slurm_asrpt_cli._app.errors import run_app
from slurm_asrpt_cli._app.help import Tools, Version, seldom
from slurm_asrpt_cli._app.tables import safe

from slurm_asrpt.errors import EXIT_INTERRUPTED, AsrptError, Collected, InputError, error_lines
from slurm_asrpt.lab import other_release
from slurm_asrpt.lab.machine import identity
from slurm_asrpt.lab.spec import DEFAULT_DIRECTORY, DEFAULT_PORT, LabSpec

if TYPE_CHECKING:
    from slurm_asrpt.lab.cluster import Lab

app = Tools(
    help="Run a disposable Slurm cluster on this machine, in one directory: many slurmd, device files as GPUs.",
    epilog="""\b
Examples:
  asrpt-lab up --nodes 4x8
  asrpt-lab down""",
)

Directory = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="Directory of the lab. Test users must be able to enter it.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@contextmanager
def _errors() -> Iterator[None]:
    """Report failures, except for bugs, in one line on stderr and by the exit code."""
    try:
        yield
    except AsrptError as error:
        for line in error_lines(error):
            print(f"asrpt-lab: {line}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        print("asrpt-lab: interrupted; all started processes have been ended", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A line on a terminal that says what is being done; yields what changes it."""
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("checking this machine") as line:
        yield lambda text: line.update(escape(text))


def _settings(pairs: list[str]) -> dict[str, dict[str, Any]]:
    """``section.key=value`` options as tables. Values are JSON, else strings. Raises InputError."""
    from slurm_asrpt.config.settings import parse_settings

    errors, tables = Collected(), dict[str, dict[str, Any]]()
    for pair in pairs:
        with errors:
            section, key, value = _setting(pair)
            tables.setdefault(section, {})[key] = value
    with errors:
        parse_settings(tables, "--set")
    errors.check()
    return tables


def _setting(pair: str) -> tuple[str, str, Any]:
    name, equals, value = pair.partition("=")
    section, dot, key = name.partition(".")
    if not (equals and dot and key):
        raise InputError(f"--set {pair}: must be section.key=value, e.g. --set daemon.mode=shadow")
    try:
        return section, key, json.loads(value)
    except ValueError:
        return section, key, value


@app.callback()
def main_options(
    folder: Annotated[
        Path | None,
        typer.Option(
            "--root", metavar="FOLDER", help="Run in the Debian in this directory, with its Slurm (see: debian)."
        ),
    ] = None,
    version: Version = False,
) -> None:
    """Run a disposable Slurm cluster on this machine, in one directory: many slurmd, device files as GPUs."""
    if folder is not None:
        with _errors():
            other_release.enter(folder, ["asrpt-lab", *_after_root(sys.argv[1:])])


def _after_root(arguments: list[str]) -> list[str]:
    """The arguments after ``--root DIR`` or ``--root=DIR``, which precede the command."""
    return arguments[2:] if arguments[:1] == ["--root"] else arguments[1:]


@app.command(name="debian")
def make_debian(
    suite: Annotated[str, typer.Argument(metavar="SUITE", help="Debian release: trixie (Slurm 24.11) or sid.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Directory to create; finished steps are skipped.")],
) -> None:
    """Create a directory for --root: another Debian with its Slurm.

    Needs debootstrap, 2 GB and some minutes. After an interruption, run it again to continue.

    \b
    Example:
      asrpt-lab debian trixie /srv/trixie
    """
    with _errors(), _progress() as tell:
        other_release.make(suite, folder, tell)
    print(f"{folder}: ready; next: {_command('asrpt-lab')} --root {folder} up")


@app.command()
def up(
    nodes: Annotated[
        str, typer.Option(metavar="SHAPE", help="Nodes x GPUs, optionally of types: 4x8 or 4x8:h100,2x2:a100+4:t4.")
    ] = "8x8",
    directory: Directory = DEFAULT_DIRECTORY,
    base_port: Annotated[int, typer.Option(metavar="PORT", help="First port; node ports start at +10.")] = DEFAULT_PORT,
    users: Annotated[int, typer.Option(metavar="N", help="Create N test users, asrpt1 .. asrptN.")] = 2,
    cpus: Annotated[int, seldom(metavar="N", help="CPUs per node.")] = 64,
    memory: Annotated[int, seldom(metavar="MB", help="Memory per node in MB.")] = 512_000,
    accounting: Annotated[bool, typer.Option("--accounting", help="Start MariaDB and slurmdbd, for sacct.")] = False,
    multifactor: Annotated[bool, typer.Option("--multifactor", help="Use priority/multifactor.")] = False,
    scheduler: Annotated[str, seldom(metavar="NAME", help="Slurm's scheduler: backfill or builtin.")] = "backfill",
    speed: Annotated[float, typer.Option(metavar="FACTOR", help="How fast the lab's clock goes.")] = 1.0,
    slurm_user: Annotated[str, seldom(metavar="USER", help="SlurmUser, the user that runs slurmctld.")] = "root",
    topology: Annotated[
        str, typer.Option(metavar="FORM", help="Switches above the nodes: tree:2x4, block:4.", show_default=False)
    ] = "",
    hook: Annotated[bool, seldom(help="Install the submit hook, prologs and epilog.")] = True,
    hooks_dir: Annotated[
        Path | None, seldom(metavar="DIR", help="Directory of the hook's files; default: the project's.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SETTING", help="section.key=value for the lab's asrpt.toml; repeatable."),
    ] = None,
    slurm_conf: Annotated[
        list[str] | None,
        seldom("--slurm-conf", metavar="LINE", help="Line to append to slurm.conf; repeatable."),
    ] = None,
) -> None:
    """Start a cluster and wait until every node is idle.

    With --speed 60, an hour takes a minute; use such a lab by asrpt-lab shell.

    \b
    Example:
      asrpt-lab up --nodes 4x8:h100 --set daemon.mode=shadow
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up after SIGTERM as after Ctrl-C
    with _errors():
        spec = LabSpec(
            directory=directory,
            nodes=nodes,
            base_port=base_port,
            users=users,
            cpus=cpus,
            memory_mb=memory,
            accounting=accounting,
            multifactor=multifactor,
            scheduler=scheduler,
            slurm_user=slurm_user,
            hook=hook,
            hooks_dir=hooks_dir,
            slurm_conf_extra="\n".join(slurm_conf or []),
            settings=_settings(settings or []),
            speed=speed,
            topology=topology,
        )
        with _progress() as tell:
            lab = _start(spec, tell)
            pace = _pace(lab) if spec.accelerated else ""
    count = len(spec.node_list)
    print(f"{count} node{'' if count == 1 else 's'} up in {lab.directory}. {pace}Next steps:")
    where = [] if directory == DEFAULT_DIRECTORY else ["--dir", str(lab.directory)]
    if other_release.inside():
        steps = _next_by_run(lab, ["asrpt-lab", "--root", other_release.inside()], where)
    elif spec.accelerated:
        steps = _next_by_run(lab, [_command("asrpt-lab")], where)
    else:
        steps = _next(lab, where)
    for text in steps:
        print(text)


def _start(spec: LabSpec, tell: Callable[[str], None]) -> Lab:
    from slurm_asrpt.lab import cluster  # takes half a second, which --help need not

    return cluster.up(spec, tell)


def _load(directory: Path) -> Lab:
    from slurm_asrpt.lab import cluster

    return cluster.load(directory)


def _pace(lab: Lab) -> str:
    """What the lab's clock costs. Ends a lab whose pace this machine does not bear. Raises MachineError."""
    from slurm_asrpt.lab import pace

    try:
        return f"{pace.check(lab)}. "
    except BaseException:
        lab.down()
        raise


def _next(lab: Lab, where: list[str]) -> Iterator[str]:
    yield f"export SLURM_CONF={lab.slurm_conf} ASRPT_CONFIG={lab.settings_path}"
    if lab.spec.hook:
        yield f"{_command('asrptd')} &"
    yield shlex.join(_example(lab))
    if lab.spec.hook:
        yield _command("asrpt-status")
    yield shlex.join([_command("asrpt-lab"), "down", *where])


def _next_by_run(lab: Lab, here: list[str], where: list[str]) -> Iterator[str]:
    """here: the command asrpt-lab and its options."""
    if lab.spec.hook:
        yield shlex.join([*here, "run", *where, "asrptd"]) + " &"
    yield shlex.join([*here, "run", *where, *_example(lab)])
    yield shlex.join([*here, "run", *where, "squeue"])
    yield shlex.join([*here, "down", *where])


def _example(lab: Lab) -> list[str]:
    train = f"{lab.train} --iterations 30"
    return ["sbatch", "--chdir=/tmp", "-n3", "-c1", "--gpus-per-task=1", "--wrap", train]


def _command(name: str) -> str:
    """A command by its name, or by its path if it is not on PATH."""
    beside = Path(sys.argv[0]).parent / name
    return name if shutil.which(name) or not beside.exists() else str(beside)


@app.command()
def down(
    directory: Directory = DEFAULT_DIRECTORY,
    purge: Annotated[bool, typer.Option("--purge", help="Delete the lab's files, logs included.")] = False,
) -> None:
    """Stop a lab: end all its processes.

    Safe to run repeatedly.

    \b
    Example:
      asrpt-lab down --purge
    """
    with _errors():
        if not directory.exists():
            print(f"{safe(str(directory))}: no such lab")
            return
        _load(directory).down(purge)
        print(f"{safe(str(directory))}: stopped")


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="The command and its arguments.")],
    directory: Directory = DEFAULT_DIRECTORY,
    user: Annotated[str | None, typer.Option(metavar="USER", help="Run as this test user; default: root.")] = None,
) -> None:
    """Run a command in a lab, in this directory.

    Where the user cannot write, it runs in the user's home
    directory.

    Example: asrpt-lab run --user asrpt1 sbatch /tmp/job.sh
    """
    with _errors():
        _replace_by(_load(directory), command, user, stay=True)


@app.command()
def shell(
    directory: Directory = DEFAULT_DIRECTORY,
    user: Annotated[str | None, typer.Option(metavar="USER", help="Run as this test user; default: root.")] = None,
) -> None:
    """Start a shell in a lab, on its clock.

    \b
    Example:
      asrpt-lab shell --user asrpt1
    """
    with _errors():
        lab = _load(directory)
        if not lab.running:
            raise InputError(f"{directory}: the lab is down; start it with asrpt-lab up")
        _replace_by(lab, [os.environ.get("SHELL") or "/bin/sh"], user)


def _replace_by(lab: Lab, command: list[str], user: str | None, stay: bool = False) -> NoReturn:
    """Become a command in the lab, in the user's home directory or, to stay, in this one. Raises InputError."""
    who = identity(user) if user else None
    commands = str(Path(sys.argv[0]).absolute().parent)
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), commands])
    environment = lab.env | {"HOME": str(lab.home(user)), "USER": user or "root", "PATH": path}
    if who:
        os.setgroups([])
        os.setgid(who[1])
        os.setuid(who[0])
    if not (stay and os.access(".", os.W_OK | os.X_OK)):
        if stay:
            text = f"{safe(user or 'root')} cannot write here: the command runs in {lab.home(user)}; use absolute paths"
            print(f"asrpt-lab: {text}", file=sys.stderr)
        os.chdir(lab.home(user))
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606
    except OSError as error:
        raise InputError(f"{command[0]}: cannot be started ({error.strerror})") from error


@app.command()
def status(directory: Directory = DEFAULT_DIRECTORY, as_json: Json = False) -> None:
    """Show the state of a lab: daemons, nodes and jobs.

    Exit status 1 if the controller does not answer or a daemon has exited.

    \b
    Example:
      asrpt-lab status --json
    """
    from slurm_asrpt.lab.cluster import status_json

    with _errors():
        found = _load(directory).status()
        if as_json:
            print(status_json(found))
        else:
            print(f"controller  {'answers' if found.controller else 'does not answer'}")
            print(f"daemons     {found.alive} running{', exited: ' + ', '.join(found.dead) if found.dead else ''}")
            print(f"nodes       {_counts(found.nodes)}")
            print(f"jobs        {_counts(found.jobs)}")
        if not found.controller or found.dead:
            raise typer.Exit(1)


def _counts(counts: Any) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items())) or "none"


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
def train(context: typer.Context) -> None:
    """Simulate training inside a job.

    The speed depends on the placement; see --help for options.
    """
    from slurm_asrpt.lab.train import main as train_main

    raise typer.Exit(train_main(context.args))


def main() -> None:
    """Entry point of asrpt-lab."""
    run_app(app)
