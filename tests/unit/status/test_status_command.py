"""asrpt-status: what users see, whatever other users called their jobs."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from slurm_asrpt_cli._app.errors import run_app
from slurm_asrpt_cli._app.tables import Column, Line, clock_interval, fold_nodes, safe, table_lines
from slurm_asrpt_cli.status import command
from slurm_asrpt_cli.status.selection import Selection, read_states, unknown_names
from slurm_asrpt_cli.status.table import SHORT, columns, date, fit

from slurm_asrpt.core.policies.base import Phase
from slurm_asrpt.status.document import (
    UNUSED_PROFILE,
    JobStatus,
    NodeStatus,
    Status,
    withdrawn_after,
    write_status,
)
from slurm_asrpt.status.reason_texts import by_slurm_text, in_words
from slurm_asrpt.text import slurm_time
from tests.benches.in_process import in_process

DOCS = Path(__file__).parents[3] / "docs"
HOSTILE = "[red]x[/red]\x1b[31m\r\n|$(id)\u202e\u200b\u2028é"

WAITING = JobStatus(
    job_id="18_3",
    name="train",
    user="alice",
    partition="gpu",
    gpus=16,
    group="a1b2c3",
    profile="vgg19-dp16",
    predicted_iterations=1200,
    predicted_run_s=93784.4,
    submit_time=1_700_000_000.0,
    start_time=None,
    state=Phase.WAITING.value,
    reason="gpus",
    text="needs 16 GPUs, 8 free for it",
    facts={"need": 16, "free": 8},
    rank=2,
    nodes={},
)
DELAYED = replace(
    WAITING,
    job_id="17",
    user="bob",
    state=Phase.DELAYED.value,
    text="waits",
    rank=1,
    ahead={"gpus": 0, "gpu_s": 0.0, "unseen": 0},
    nodes={"n1": 4, "n3": 1, "n2": 1},
    alpha=1.0,
    alpha_min=0.25,
)
RUNNING = replace(
    WAITING,
    job_id="9",
    text="",
    name=HOSTILE,
    state=Phase.RUNNING.value,
    rank=None,
    nodes={"n1": 8},
    iterations_done=40,
    iterations_total=1600,
    alpha=0.5,
    alpha_min=0.5,
    alpha_observed=0.75,
    remaining_s=1170.0,
)
LEFT = replace(WAITING, job_id="8", state=Phase.LEFT.value, rank=None, predicted_iterations=0, predicted_run_s=None)
STATUS = Status(time.time(), "shadow", "asrpt", 5.0, 64, 8, [RUNNING, DELAYED, WAITING, LEFT])


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    write_status(tmp_path, replace(STATUS, written=time.time()))
    path = tmp_path / "asrpt.toml"
    path.write_text(f"[paths]\nrun = {json.dumps(str(tmp_path))}\n")
    return path


def plain(lines: list[Line]) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


def run(settings: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return in_process(command.main, "asrpt-status", "--config", settings, *arguments, **environment)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "00:00:00"),
        (59.6, "00:01:00"),
        (3599.7, "01:00:00"),
        (93784.4, "1-02:03:04"),
        (-1, "-"),
        (float("nan"), "-"),
        (float("inf"), "-"),
    ],
)
def test_durations_are_formatted_as_in_slurm(seconds: float | None, text: str) -> None:
    assert slurm_time(seconds) == text


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ({}, "-"),
        ({"n3": 1, "n1": 4, "n2": 1}, "n1:4 n[2-3]:1"),
        ({f"gpu{i:03d}": 8 for i in range(98, 102)}, "gpu[098-101]:8"),
        ({"@all": 1}, "@all:1"),
        ({"n[": 1, "m": 1}, "n[,m:1"),
    ],
)
def test_node_lists_are_folded(nodes: dict[str, int], text: str) -> None:
    assert fold_nodes(nodes) == text


NOON = time.mktime((2026, 11, 18, 12, 0, 0, 0, 0, -1))  # a Wednesday
HOUR = 3600.0


@pytest.mark.parametrize(
    ("earliest", "latest", "text"),
    [
        (3.1, 4.5, "15:06-16:30"),
        (3, None, "15:00-?"),
        (3.1, 3.101, "15:06"),
        (24, 24.01, "Tomorr 12:00"),
        (6, 14, "18:00-Tomorr 02:00"),
        (18, 20.25, "Tomorr 06:00-08:15"),
        (-13, 1, "Ystday 23:00-13:00"),
        (48, 90, "Fri 12:00-Sun 06:00"),
        (167, 168, "25 Nov 11:00-12:00"),
    ],
)
def test_clock_intervals_are_formatted_as_in_slurm(earliest: float, latest: float | None, text: str) -> None:
    end = None if latest is None else NOON + latest * HOUR
    assert clock_interval(NOON + earliest * HOUR, end, NOON) == text


def expected(now: float, made: float) -> JobStatus:
    """A pending job that is expected to start between half an hour and an hour from now."""
    return replace(
        WAITING, start_earliest=now + 1800, start_median=now + 2000, start_latest=now + 3600, start_made=made,
        predicted_low=1000, predicted_high=1500, predicted_run_low_s=3600.0, predicted_run_high_s=7200.0,
    )  # fmt: skip


def test_an_expected_start_is_shown_in_all_formats(settings: Path) -> None:
    now = time.time()
    job = expected(now, now)
    write_status(settings.parent, replace(STATUS, written=now, jobs=[job], forecast_s=60.0))
    assert clock_interval(now + 1800, now + 3600, now) in run(settings).stdout
    row = dict(zip(*(line.split("|") for line in run(settings, "--parsable").stdout.splitlines()), strict=True))
    assert row["START_EARLIEST"] == time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now + 1800))
    assert row["RUN_10-90"] == "01:00:00-02:00:00"
    said = run(settings, "--explain", job.job_id).stdout
    assert "Expected start   20" in said
    assert "an estimate, not a promise" in said
    assert "(10-90%: 01:00:00-02:00:00)" in said


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ({}, "Last start       unknown: it starts in too few simulations (3 days each, less if the queue is long)"),
        ({"last_start_earliest": 1e9, "last_start_latest": 2e9}, "to 2033-05-18"),
    ],
)
def test_for_the_rest_of_an_array_the_next_and_last_start_are_shown(
    settings: Path, last: dict[str, float], said: str
) -> None:
    now = time.time()
    text = "900 tasks of the array will enter the queue"
    job = replace(expected(now, now), reason="array", text=text, rank=None, **last)
    write_status(settings.parent, replace(STATUS, written=now, jobs=[job], forecast_s=60.0))
    assert clock_interval(now + 1800, now + 3600, now) in run(settings).stdout
    shown = run(settings, "--explain", job.job_id).stdout
    assert "Next start       20" in shown
    assert said in shown
    assert "Expected start" not in shown


def test_a_job_without_a_lease_says_why(settings: Path) -> None:
    """squeue shows Priority or Resources, where other jobs have BeginTime."""
    for ahead in (True, False):
        job = replace(STATUS.jobs[0], rank=1, state="waiting", released_ahead=ahead)
        write_status(settings.parent, replace(STATUS, written=time.time(), jobs=[job]))
        said = run(settings, "--explain", job.job_id).stdout
        assert ("Lease            none: it is among the next jobs" in said) == ahead


def test_texts_of_asrptd_have_the_times_of_the_callers_zone(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    until = 1_700_000_000.0  # 22:13:20 in UTC, where asrptd runs
    facts, chosen = {"until": until}, by_slurm_text("contiguous")
    text = in_words("begin", facts).replace(date(until), "2023-11-14T22:13:20") + chosen
    job = replace(WAITING, rank=None, reason="begin", text=text, facts=facts, start_unknown=text)
    write_status(settings.parent, replace(STATUS, written=time.time(), jobs=[job]))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        said = [run(settings, *options).stdout for options in ((), ("--json",), ("--explain", job.job_id))]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert all("not before 2023-11-15T07:13:20 (--begin" in each and chosen in each for each in said)
    assert "2023-11-14" not in "".join(said)
    assert "Expected start" not in said[-1]  # it says no more than Why


def test_an_expired_estimate_is_not_shown(settings: Path) -> None:
    now = time.time()
    job = expected(now, now - withdrawn_after(60.0) - 5)
    write_status(settings.parent, replace(STATUS, written=now, jobs=[job], forecast_s=60.0))
    (row,) = json.loads(run(settings, "--json").stdout)["jobs"]
    assert (row["start_earliest"], row["start_latest"], row["start_made"]) == (None, None, None)
    assert "Expected start   unknown: the last estimate has expired" in run(settings, "--explain", job.job_id).stdout


def test_the_expected_start_is_shown_at_80_columns() -> None:
    now = time.time()
    made = fit(columns(SHORT, [RUNNING, DELAYED, expected(now, now)]), 80)
    assert "START" in [column.title for column in made]
    assert sum(column.width + 2 for column in made[:-1]) < 70


def test_the_table_shows_jobs_in_order(settings: Path) -> None:
    lines = run(settings).stdout.splitlines()
    title = lines[0].split()
    assert title == [
        "RANK",
        "JOBID",
        "NAME",
        "USER",
        "GPUS",
        "DONE",
        "RUN_TIME",
        "TIME_LEFT",
        "START",
        "STATE",
        "NODES/REASON",
    ]
    assert [line.split()[1] for line in lines[1:]] == ["9", "17", "18_3", "8"]
    assert "waits [n1:4 n[2-3]:1]" in lines[2]
    assert "1-02:03:04" in lines[2]
    assert lines[1].split()[-6:-3] == ["2%", "1-02:03:04", "00:19:30"]
    assert lines[1].endswith("n1:8")


def test_nothing_is_truncated_in_a_pipe(settings: Path) -> None:
    output = run(settings, COLUMNS="40").stdout
    assert WAITING.text in output
    assert "…" not in output


def test_hostile_names_are_escaped(settings: Path) -> None:
    for arguments in ([], ["--long"], ["--explain", "9"]):
        output = run(settings, *arguments).stdout
        assert r"[red]x[/red]\x1b[31m\r\n|$(id)\u202e\u200b\u2028é" in output
        assert not set("\x1b\r\u202e\u200b\u2028") & set(output)


def test_there_are_no_colors_in_a_pipe_or_with_no_color(settings: Path) -> None:
    assert "\x1b" not in run(settings).stdout
    assert "\x1b[3" not in run(settings, NO_COLOR="1", FORCE_COLOR="1").stdout


def test_output_works_without_unicode(settings: Path) -> None:
    program = Path(sys.executable).parent / "asrpt-status"
    ascii_only = {**os.environ, "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    answer = subprocess.run([program, "--config", settings], capture_output=True, text=True, env=ascii_only)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert r"\xe9" in answer.stdout


def test_parsable_has_a_field_for_each_title(settings: Path) -> None:
    lines = run(settings, "--parsable").stdout.splitlines()
    assert {line.count("|") for line in lines} == {lines[0].count("|")}
    first = dict(zip(lines[0].split("|"), lines[2].split("|"), strict=True))
    assert (first["RANK"], first["JOBID"], first["NODES"], first["TEXT"]) == ("1", "17", "n1:4 n[2-3]:1", "waits")
    assert len(run(settings, "--parsable", "--no-header").stdout.splitlines()) == len(lines) - 1


def test_json_output_follows_the_schema(settings: Path) -> None:
    raw = json.loads(run(settings, "--json").stdout)
    assert raw["schema"] == 1
    assert {job["job_id"] for job in raw["jobs"]} == {"8", "9", "17", "18_3"}
    assert next(job for job in raw["jobs"] if job["job_id"] == "9")["name"] == HOSTILE
    assert [JobStatus(**job) for job in raw["jobs"]] == STATUS.jobs
    jsonschema.validate(raw, json.loads((DOCS / "status.schema.json").read_text()))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--user", "bob"], ["17"]),
        (["--user", "alice,bob", "--state", "delayed"], ["17"]),
        (["--state", "Delayed for placement, running"], ["9", "17"]),
        (["--state", "left"], ["8"]),
        (["--job", "18"], ["18_3"]),
        (["--job", "18_3,9"], ["9", "18_3"]),
        (["--user", "nobody"], []),
        (["--partition", "gpu,other", "--state", "left"], ["8"]),
        (["--partition", "other"], []),
        (["9", "18"], ["9", "18_3"]),
        (["18_[1-2,3]"], ["18_3"]),
        (["18_[1-9:2]", "-j", "9"], ["9", "18_3"]),
        (["--sort=-jobid"], ["18_3", "17", "9", "8"]),
        (["--sort", "rank"], ["17", "18_3", "9", "8"]),
        (["--sort=user,-gpus,jobid"], ["8", "9", "18_3", "17"]),
    ],
)
def test_filters_select_jobs(settings: Path, arguments: list[str], expected: list[str]) -> None:
    answer = run(settings, "--json", *arguments)
    assert answer.returncode == 0
    assert [job["job_id"] for job in json.loads(answer.stdout)["jobs"]] == expected


def test_an_unknown_user_is_named_and_the_others_are_shown_as_by_squeue(settings: Path) -> None:
    answer = run(settings, "-u", "nosuch,bob,root", "-P", "-n")
    assert (answer.returncode, answer.stderr) == (0, "asrpt-status: unknown user nosuch\n")
    assert [line.split("|")[1] for line in answer.stdout.splitlines()] == ["17"]


@pytest.mark.parametrize("more", [[], ["--json"], ["--html", "-"]])
def test_an_unknown_user_alone_is_an_error_as_in_squeue(settings: Path, more: list[str]) -> None:
    answer = run(settings, "-u", "nosuch,nobodyxyz", *more)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == "asrpt-status: unknown user nobodyxyz, nosuch\n"


@pytest.mark.parametrize("others", [["8", "9"], ["-j", "8"]])
def test_explain_takes_one_job(settings: Path, others: list[str]) -> None:
    answer = run(settings, *others, "--explain", "17")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == (
        "asrpt-status: --explain 17: explains this job only; leave out the other job IDs, or --explain\n"
    )


def test_states_are_understood_in_the_words_of_squeue() -> None:
    assert read_states("PENDING") == read_states("pd") == read_states("virtual,waiting,delayed,left")
    assert read_states("R") == read_states("running")


def test_an_unknown_partition_is_named() -> None:
    found = replace(STATUS, nodes=[NodeStatus("n1", 4, 4, "", ["gpu", "other"])])
    chosen = Selection(partitions=frozenset(("gpu", "nosuch", "other")))
    (text,) = unknown_names(chosen, found)
    assert text.startswith("unknown partition nosuch: it does not exist")
    assert unknown_names(chosen, STATUS) == []  # of an earlier release, without nodes


def test_explain_shows_all_facts(settings: Path) -> None:
    output = run(settings, "--explain", "17").stdout
    for text in (
        "delayed for placement, position 1 in the queue",
        "1 s each on these nodes, 4.00 times those of the best (0.25 s)",
        "1200 iterations",
        "Offered nodes    n1:4 n[2-3]:1",
        "Ahead            no jobs",
        "Predicted work   1.33 GPU-hours",
    ):
        assert text in output
    assert "Why              it runs" in run(settings, "--explain", "9").stdout
    assert "40 of 1600 iterations done (2%), 0.75 s each" in run(settings, "--explain", "9").stdout
    assert "00:19:30, at its current speed" in run(settings, "--explain", "9").stdout
    assert "no completed run of its group" in run(settings, "--explain", "8").stdout


def test_explain_omits_values_that_are_the_same_everywhere(settings: Path) -> None:
    job = replace(RUNNING, profile="", alpha=1.0, alpha_min=1.0, alpha_by_type={"a": 1.0, "b": 1.0})
    unused = replace(job, profile="nosuch", facts={UNUSED_PROFILE: "unknown profile nosuch"})
    slower = replace(job, alpha=2.0, alpha_by_type={"a": 1.0, "b": 2.0})
    for shown, told in ((job, False), (unused, False), (slower, True)):
        write_status(settings.parent, replace(STATUS, written=time.time(), jobs=[shown]))
        output = run(settings, "--explain", job.job_id).stdout
        assert ("By GPU type" in output, "Iterations " in output) == (told, told)


def test_explain_shows_the_nvlink_domains_of_a_job_that_uses_several_of_a_node(settings: Path) -> None:
    job = replace(RUNNING, domains={"n1": [2, 1], "n2": [1, 1]})
    write_status(settings.parent, replace(STATUS, written=time.time(), jobs=[job]))
    assert "NVLink domains   2+1 GPUs on n1, 1+1 GPUs on n2" in run(settings, "--explain", job.job_id).stdout
    write_status(settings.parent, replace(STATUS, written=time.time(), jobs=[replace(job, domains=None)]))
    assert "NVLink" not in run(settings, "--explain", job.job_id).stdout


def test_explain_writes_large_weights_and_dependencies_for_humans(settings: Path) -> None:
    job = replace(WAITING, weight=1023.4, reason="dependency", facts={"dependency": "afterok:7(failed)"})
    write_status(settings.parent, replace(STATUS, written=time.time(), jobs=[job]))
    output = run(settings, "--explain", job.job_id).stdout
    assert "predicted work is divided by 1,023" in output
    assert "Dependency       afterok:7(failed)" in output


def test_explain_tells_the_begin_time_that_a_job_waits_for(settings: Path) -> None:
    begin = time.time() + 3600
    job = replace(WAITING, reason="begin", facts={"until": begin})
    write_status(settings.parent, replace(STATUS, written=time.time(), jobs=[job]))
    assert f"Begin time       {date(begin)}" in run(settings, "--explain", job.job_id).stdout


def test_explain_has_no_line_for_a_reservation_or_a_priority_that_there_is_not(settings: Path) -> None:
    job = replace(WAITING, weight=4.0, reason="over-limit", facts={"limit": "MaxJobs"})
    write_status(settings.parent, replace(STATUS, written=time.time(), jobs=[job]))
    output = run(settings, "--explain", job.job_id).stdout
    assert "Reservation" not in output
    assert "Priority         for the order, its predicted work is divided by 4" in output
    assert "  limit " not in output, "the reason says it"


@pytest.mark.parametrize(
    ("level", "said"), [("group", "runs of its group"), ("cluster", "runs of all users (new user)"), ("", "past runs")]
)
def test_explain_shows_the_prediction_that_the_order_uses_and_its_source(
    tmp_path: Path, settings: Path, level: str, said: str
) -> None:
    job = replace(WAITING, predicted_by=level, predicted_mean=1300)
    write_status(tmp_path, replace(STATUS, written=time.time(), jobs=[job]))
    output = " ".join(run(settings, "--explain", job.job_id).stdout.split())
    assert f"Prediction runtime 1-02:03:04, 1300 iterations, learned from {said}" in output


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--explain", "77"], 1, "does not know job '77'"),
        (["77"], 1, "does not know job '77'"),
        (["--job", "77\x1b[0m"], 2, "'77\\x1b[0m': not a job ID"),
        (["--explain", "abc"], 2, "'abc': not a job ID"),
        (["18_[4-9]"], 1, "does not know job '18_[4-9]'"),
        (["18_[x]"], 2, "write, for example, 123_[1-4,7]"),
        (["--sort", "size"], 2, "unknown column 'size'; valid columns: rank,"),
        (["--watch"], 2, "needs a terminal"),
        (["--what-if", "/bin/true"], 2, "must begin with #!"),
        (["--watch", "--json"], 2, "cannot be combined with --json"),
        (["--explain", "9", "--what-if", "x.sh"], 2, "cannot be combined"),
        (["--state", "asleep"], 2, "unknown state 'asleep'; valid states: virtual, waiting,"),
        (["--colour"], 2, "No such option"),
        (["--what-if", "x.sh", "--gpus=8"], 2, "options for sbatch follow after --"),
    ],
)
def test_errors_have_a_message_and_an_exit_code(settings: Path, arguments: list[str], code: int, said: str) -> None:
    answer = run(settings, *arguments)
    assert (answer.returncode, answer.stdout) == (code, "")
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr
    assert "\x1b" not in answer.stderr


def test_missing_status_and_bad_settings_are_errors(settings: Path) -> None:
    (settings.parent / "status.json").unlink()
    answer = run(settings)
    assert answer.returncode == 1
    assert "asrptd has not run yet" in answer.stderr
    settings.write_text("[paths]\nrn = 1\n")
    answer = run(settings)
    assert (answer.returncode, len(answer.stderr.splitlines())) == (2, 1)
    assert "unknown setting paths.rn" in answer.stderr


@pytest.mark.parametrize(("age", "interval", "stale"), [(20, 5, False), (40, 5, True), (40, 20, False), (61, 20, True)])
def test_an_old_status_has_a_warning(settings: Path, age: float, interval: float, stale: bool) -> None:
    write_status(settings.parent, replace(STATUS, written=time.time() - age, interval_s=interval))
    answer = run(settings)
    assert answer.returncode == 0
    assert ("asrptd may be down" in answer.stderr) == stale


def test_a_closed_pipe_prints_no_error(settings: Path) -> None:
    write_status(settings.parent, replace(STATUS, written=time.time(), jobs=[WAITING] * 5000))
    program = Path(sys.executable).parent / "asrpt-status"
    with subprocess.Popen(
        [program, "--config", settings], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""


@pytest.mark.parametrize("width", [50, 60, 80, 100, 132, 250])
def test_each_row_fits_the_terminal(width: int) -> None:
    jobs = [DELAYED, replace(WAITING, name="a-name-that-is-far-too-long-for-a-table" * 2), RUNNING, LEFT]
    made = fit(columns(SHORT, jobs), width)
    lines = plain(table_lines(made, True, width))
    assert len(lines) == 1 + len(jobs)
    assert max(len(line) for line in lines) <= width
    wanted = {"RANK", "JOBID", "GPUS", "NAME", "NODES/REASON"} | ({"STATE"} if width >= 80 else set())
    assert wanted <= set(lines[0].split())
    if width == 80:
        assert "USER" in lines[0].split()
        assert lines[1].split()[5] == "delayed"


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (50, ["RANK", "JOBID", "GPUS", "START", "NODES/REASON"]),
        (60, ["RANK", "JOBID", "NAME", "GPUS", "START", "NODES/REASON"]),
        (70, ["RANK", "JOBID", "NAME", "GPUS", "START", "NODES/REASON"]),
        (78, ["RANK", "JOBID", "NAME", "GPUS", "START", "STATE", "NODES/REASON"]),
    ],
)
def test_on_a_narrow_terminal_the_start_and_a_short_reason_stay(width: int, titles: list[str]) -> None:
    noon = time.mktime((*time.localtime()[:3], 12, 0, 0, 0, 0, -1))
    waiting = replace(WAITING, start_earliest=noon, start_latest=noon + 60.0)
    made = fit(columns(SHORT, [RUNNING, waiting]), width)
    assert [column.title for column in made] == titles
    row = plain(table_lines(made, True, width))[2]
    assert "12:00-12:01" in row
    assert "needs 16" in row


def test_a_long_user_name_shrinks_before_other_columns_go() -> None:
    jobs = [DELAYED, replace(WAITING, user="firstname.lastname@department.example.org"), RUNNING, LEFT]
    usual = [column.title for column in fit(columns(SHORT, [DELAYED, WAITING, RUNNING, LEFT]), 120)]
    made = {column.title: column.width for column in fit(columns(SHORT, jobs), 120)}
    assert list(made) == usual
    assert made["USER"] == 12


def test_wide_characters_count_twice() -> None:
    lines = table_lines([Column("A", ["训练", "abcd"]), Column("B", ["x", "y"])], False, 80)
    assert plain(lines) == ["训练  x", "abcd  y"]


def test_an_empty_value_is_shown_as_a_dash() -> None:
    assert safe("") == "-"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--bogus"], "No such option: --bogus"),
        (["--user"], "requires an argument"),
    ],
)
def test_wrong_options_are_one_line(arguments, says, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["asrpt-status", *arguments])
    with pytest.raises(SystemExit) as leaving:
        run_app(command.app)
    assert leaving.value.code == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith("asrpt-status: ")
    assert says in captured.err


def test_in_the_table_slurms_word_for_a_refusal_comes_first() -> None:
    refused = replace(WAITING, nodes={}, text=in_words("over-limit", {"limit": "AccountNotAllowed (of account lab)"}))
    [shown] = [column for column in columns(SHORT, [refused]) if column.title == "NODES/REASON"]
    assert list(shown.cells) == ["AccountNotAllowed (of account lab)"]
