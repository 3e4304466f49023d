"""asrpt-admin history: import, export, statistics, removal and check of the runs that predictions are learned from."""

from __future__ import annotations

import io
import json
import pwd
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from slurm_asrpt_cli._app.help import App, seldom
from slurm_asrpt_cli._app.options import ConfigOption, JsonOption, check_folder
from slurm_asrpt_cli._app.progress import Told, progress
from slurm_asrpt_cli.admin.access import history_path, of_asrptd, read_history

from slurm_asrpt.errors import EXIT_INTERRUPTED, AsrptError, InputError, printable
from slurm_asrpt.files import replacing
from slurm_asrpt.history import maintenance
from slurm_asrpt.history.store import FILE_NAME, History, HistoryError, Run
from slurm_asrpt.slurm.notation import read_past
from slurm_asrpt.text import counted

if TYPE_CHECKING:  # pandas takes a while, and stats or forget do without
    from slurm_asrpt.config.settings import Settings
    from slurm_asrpt.history.csv_json import Output, Row
    from slurm_asrpt.history.importing import Counts, Importer

AUTO = "auto"

app = App(
    help="Manage the history of runs that predictions are learned from.",
    epilog="""\b
Examples:
  asrpt-admin history import --sacct --since 90days
  asrpt-admin history stats""",
    no_args_is_help=True,
)


class Form(StrEnum):
    CSV = "csv"
    JSONL = "jsonl"


@contextmanager
def _writing(settings: Settings) -> Iterator[History]:
    try:
        settings.paths.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise HistoryError(f"{settings.paths.state}: {error.strerror}; run as the daemon's user") from error
    with History(history_path(settings)) as history:
        yield history


@app.command("import")
def import_(
    sacct: Annotated[bool, typer.Option("--sacct", help="Query sacct on this machine.")] = False,
    since: Annotated[
        str,
        typer.Option(metavar="WHEN", help="Start: 90d or a date; default: the last import."),
    ] = "",
    partition: Annotated[
        str, seldom(metavar="PARTITIONS", help="With --sacct: only these; default: slurm.partitions.")
    ] = "",
    dump: Annotated[Path | None, typer.Option(metavar="FILE", help="A file with the output of sacct.")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="A CSV file with a header line.")] = None,
    column: Annotated[
        list[str] | None, seldom(metavar="NAME=TITLE", help="Name of a CSV column, e.g. job_id=JobNumber.")
    ] = None,
    jsonl: Annotated[Path | None, typer.Option(metavar="FILE", help="JSON lines, as written by export.")] = None,
    trace: Annotated[
        str, typer.Option(metavar="WHAT", help="A trace that asrpt-sim reads, or a sample, e.g. philly.")
    ] = "",
    fmt: Annotated[str, seldom("--format", metavar="NAME", help="Format of the trace; see asrpt-sim formats.")] = AUTO,
    processors_as_gpus: Annotated[
        bool, seldom("--processors-as-gpus", help="Count the processors of a CPU trace as GPUs.")
    ] = False,
    begin: Annotated[str, seldom(metavar="DATE", help="Submission date of the trace's first job.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be added; change nothing.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add runs from sacct, CSV, JSON lines or a trace.

    Safe to run repeatedly: runs that the history has already
    are not added again.

    \b
    Examples:
      asrpt-admin history import --sacct --since 90days
      asrpt-admin history import --csv jobs.csv.gz \\
        --column job_id=Id --column elapsed=Seconds
    """
    from slurm_asrpt.history.importing import Importer
    from slurm_asrpt.traces.sources import column_titles

    settings = of_asrptd(config, trusted=True)
    _one_of(sacct=sacct, dump=dump, csv=csv, jsonl=jsonl, trace=trace)
    _only_with("--sacct", sacct, since=since, partition=partition)
    _only_with("--csv", csv, column=column)
    _only_with("--trace", trace, begin=begin, format=fmt != AUTO, processors_as_gpus=processors_as_gpus)
    titles = column_titles(column or [], "job_id=JobNumber")
    rows = _rows(dump, csv, jsonl, trace, titles, fmt, processors_as_gpus, _instant(begin))
    now, interrupted = time.time(), False
    with _target(settings, dry_run) as history:
        into = Importer(history, maintenance.oldest_kept(settings.predict.keep_days, now), not dry_run, now)
        try:
            if sacct:
                _from_sacct(into, settings, since, partition, now)
            else:
                _take(into, rows)
        except KeyboardInterrupt:
            interrupted = True
    _tell_counts(into.counts, dry_run, interrupted, as_json)
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _rows(
    dump: Path | None,
    csv: Path | None,
    jsonl: Path | None,
    trace: str,
    columns: dict[str, str],
    fmt: str,
    processors_as_gpus: bool,
    begin: int,
) -> Iterable[Row]:
    """The rows of the file that was named; it is opened when they are taken."""
    from slurm_asrpt.history import csv_json, importing
    from slurm_asrpt.traces.sources import path_of

    if dump:
        return importing.sacct_file_rows(dump)
    if csv:
        return csv_json.read_csv(csv, columns)
    if jsonl:
        return csv_json.read_json_lines(jsonl)
    return importing.trace_file_rows(path_of(trace), fmt, processors_as_gpus, begin) if trace else ()


def _one_of(**sources: Any) -> None:
    given = [name for name, value in sources.items() if value]
    if len(given) != 1:
        raise InputError(f"name one of {', '.join(f'--{name}' for name in sources)}")


def _only_with(option: str, given: Any, **others: Any) -> None:
    """Raises InputError for an option that would have no effect."""
    for name, value in others.items():
        if value and not given:
            raise InputError(f"--{name.replace('_', '-')} requires {option}")


@contextmanager
def _target(settings: Settings, dry_run: bool) -> Iterator[History | None]:
    """The history to write to; None if it does not exist and must not be created."""
    if dry_run and not history_path(settings).exists():
        yield None
        return
    with read_history(settings) if dry_run else _writing(settings) as history:
        yield history


def _from_sacct(into: Importer, settings: Settings, since: str, partition: str, now: float) -> None:
    from slurm_asrpt.history.importing import import_sacct
    from slurm_asrpt.traces.accounting import partition_argument

    partitions = partition_argument(partition or ",".join(settings.slurm.partitions))
    begin = int(read_past(since, now)) if since else None
    with progress("querying sacct") as bar:
        import_sacct(into, settings.slurm, partitions, begin, int(now), lambda done, of: bar(done, "", of))


def _take(into: Importer, rows: Iterable[Row]) -> None:
    from slurm_asrpt.history.importing import import_rows

    with progress("reading runs") as bar:
        import_rows(rows, into, lambda read: bar(read, f"({read:,})"))


def _instant(text: str) -> int:
    try:
        return int(datetime.fromisoformat(text).timestamp()) if text else 0
    except (ValueError, OverflowError):
        raise InputError(f"--begin {printable(text)[:40]}: write a date, such as 2017-10-01") from None


def _tell_counts(counts: Counts, dry_run: bool, interrupted: bool, as_json: bool) -> None:
    if as_json:
        skipped = dict(counts.skipped.most_common())
        figures = asdict(counts) | {"skipped": skipped, "dry_run": dry_run, "interrupted": interrupted}
        print(json.dumps(figures))
        return
    would = "would be " if dry_run else ""
    print(
        f"{counted(counts.read, 'row', ',')} read: {counts.added:,} {would}added, {counts.updated:,} {would}updated, ",
        end="",
    )
    print(f"{counts.there:,} already present, {counts.skipped.total():,} skipped")
    for reason, count in counts.skipped.most_common():
        print(f"  {count:,} {printable(reason)}")
    if interrupted:
        kept = "nothing was written" if dry_run else "the rows read so far are kept; run it again for the rest"
        print(f"asrpt-admin: interrupted; {kept}", file=sys.stderr)


@app.command()
def export(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Output file; default: standard output.")
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="csv, or jsonl: one JSON object per line.")] = Form.CSV,
    config: ConfigOption = None,
) -> None:
    """Write all runs in a form that import reads.

    In CSV, text that a spreadsheet would treat as a formula
    gets a leading apostrophe; import removes it.

    \b
    Examples:
      asrpt-admin history export -o runs.csv
      asrpt-admin history export --format jsonl | head -3
    """
    from slurm_asrpt.history.csv_json import write_csv, write_json_lines

    write = write_csv if form is Form.CSV else write_json_lines
    with read_history(of_asrptd(config)) as history, _output(output) as file:
        total = history.count("1", ())
        with progress("writing runs", total if output else None) as bar:
            write(file, _counted(history.all_runs(), bar))
    if output:
        print(printable(f"{output}: {counted(total, 'run', ',')}"))


def _counted(runs: Iterator[Run], told: Told) -> Iterator[Run]:
    for number, run in enumerate(runs):
        if number % 1000 == 0:
            told(number, f"({number:,})")
        yield run


@contextmanager
def _output(path: Path | None) -> Iterator[Output]:
    """A file readable only by its owner and written atomically; or standard output."""
    if path is None and sys.stdout.isatty():
        yield _Terminal()
    elif path is None:
        sys.stdout.flush()
        text = io.TextIOWrapper(sys.stdout.buffer, "utf-8", newline="", write_through=True)
        try:
            yield text
        finally:
            text.detach()
    else:
        check_folder("--output", path)
        with replacing(path, 0o600) as file:
            text = io.TextIOWrapper(file, "utf-8", newline="")
            yield text
            text.flush()
            text.detach()


class _Terminal:
    """Standard output on a terminal: control characters in job names are escaped."""

    def write(self, text: str, /) -> None:
        sys.stdout.write(printable(text.removesuffix("\n").removesuffix("\r")) + "\n")


@app.command()
def stats(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show statistics of the history.

    \b
    Example:
      asrpt-admin history stats --json
    """
    with read_history(of_asrptd(config)) as history:
        found = maintenance.statistics(history)
    if as_json:
        print(json.dumps(asdict(found)))
        return
    rows = {
        "runs": f"{found.runs:,}",
        "learned from": f"{found.learnable:,}",
        "groups": f"{found.groups:,}",
        "users": f"{found.users:,}",
        "recurrent": f"{100 * found.recurrent_share:.1f}% of the runs are not the first of their group",
        "first end": _date(found.first_end),
        "last end": _date(found.last_end),
        "size": f"{found.bytes / 2**20:.1f} MiB",
        "by state": _shares(found.states),
        "by origin": _shares(found.origins),
        "by iterations": _shares(found.iterations_sources),
    }
    for label, text in rows.items():
        print(f"{label:<13}  {text}")


def _date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds).isoformat(" ") if 0 < seconds < 1e11 else "-"


def _shares(counts: dict[str, int]) -> str:
    return ", ".join(f"{printable(name) or '-'} {count:,}" for name, count in counts.items()) or "-"


@app.command()
def forget(
    user: Annotated[str, typer.Argument(metavar="USER", help="A user name, or a user ID.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove all runs of a user from the history.

    Rewrites the file without them. Predictions learned from
    them go with the next asrpt-admin retrain. An import from
    sacct can bring the runs back.

    \b
    Examples:
      asrpt-admin history forget alice
      asrpt-admin history forget --yes 1001
    """
    settings = of_asrptd(config, trusted=True)
    name, uid = _whose(user)
    with read_history(settings) as history:
        count = maintenance.count_of(history, name, uid)
    if not count and not yes:
        raise InputError(f"{printable(user)[:60]}: the history has no runs of this user")
    if not yes:
        typer.confirm(f"Remove {counted(count, 'run', ',')} of {printable(user)}?", abort=True, err=True)
    with _writing(settings) as history:
        gone = maintenance.forget(history, name, uid)
    aside = sorted(str(path) for path in settings.paths.state.glob(f"{FILE_NAME}{maintenance.DAMAGED}*"))
    if as_json:
        print(json.dumps({"removed": gone, "damaged_copies": aside}))
        return
    print(f"{counted(gone, 'run', ',')} removed; predictions based on them go with the next asrpt-admin retrain")
    for path in aside:
        print(f"a damaged copy may still contain some: {path}; delete it when you no longer need it")


def _whose(user: str) -> tuple[str, int | None]:
    """User name and ID for ``maintenance.forget``."""
    if user.isascii() and user.isdigit() and len(user) < 19:
        return "", int(user)
    try:
        return user, pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError):
        return user, None


@app.command()
def check(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Check the history for damage.

    Changes nothing: asrptd moves a damaged file aside when it
    starts.

    \b
    Example:
      asrpt-admin history check
    """
    settings = of_asrptd(config)
    with read_history(settings) as history:
        problems = history.problems()
        runs = 0 if problems else history.count("1", ())
    if as_json:
        print(
            json.dumps(
                {
                    "ok": not problems,
                    "problems": problems,
                    "runs": None if problems else runs,
                    "path": str(history_path(settings)),
                }
            )
        )
    elif not problems:
        print(f"{history_path(settings)}: no damage, {counted(runs, 'run', ',')}")
    if problems:
        raise AsrptError(
            f"{history_path(settings)}: damaged ({'; '.join(problems[:3])}); restart asrptd: it moves the file aside "
            "and starts a new one; asrpt-admin history import --sacct refills it"
        )
