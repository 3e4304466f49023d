"""asrpt-status on a terminal: the overview, and --watch with its keys; the terminal is always restored."""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from slurm_asrpt_cli._app.tables import Line
from slurm_asrpt_cli.status.overview import by_state, overview, summary
from slurm_asrpt_cli.status.watch import SORTS, View, pressed, screen, shown_jobs

from slurm_asrpt.core.reasons import Phase
from slurm_asrpt.status.document import (
    JobStatus,
    NodeStatus,
    Status,
    read_around,
    read_jobs,
    read_screenful,
    read_status,
    read_users,
    write_status,
)
from tests.benches.terminal import LEAVE_ALTERNATE_SCREEN, Terminal

COMMAND = str(Path(sys.executable).parent / "asrpt-status")
ME = pwd.getpwuid(os.getuid()).pw_name
NAMES = ("bert", "vgg", 'a "quoted", "state": "running", name', "tab\there")


def job(number: int, state: Phase = Phase.WAITING, user: str = "ann") -> JobStatus:
    waits = state not in (Phase.RUNNING, Phase.LEFT)
    return JobStatus(
        job_id=str(number), name=NAMES[number % 4], user=user, partition="gpu", gpus=number % 5 + 1, group="a1",
        profile="", predicted_iterations=10, submit_time=1000.0 + number, state=state, reason="gpus",
        text="" if state is Phase.RUNNING else "needs 8 GPUs, 3 free for it", facts={},
        nodes={"n1": 1} if state is Phase.RUNNING else {}, rank=number if waits else None, predicted_run_s=60.0,
    )  # fmt: skip


RUNNING = [job(number, Phase.RUNNING, user="bob") for number in range(1, 41)]
WAITING = [job(number, user=ME if number % 25 == 0 else "ann") for number in range(101, 301)]
EVERY = [*RUNNING, *WAITING, job(500, Phase.LEFT)]


def texts(lines: list[Line]) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


@pytest.fixture
def site(tmp_path: Path) -> dict[str, str]:
    """The environment of a command, on a site with 241 jobs."""
    write(tmp_path, EVERY)
    config = tmp_path / "asrpt.toml"
    config.write_text(f"[paths]\nrun = {json.dumps(str(tmp_path))}\n")
    return {**os.environ, "ASRPT_CONFIG": str(config)}


def write(folder: Path, jobs: list[JobStatus]) -> None:
    # a cycle of an hour: on a slow machine the status of one of 5 s would be called old
    write_status(folder, Status(time.time(), "enforce", "asrpt-gated", 3600.0, 64, 3, jobs))


def read(folder: Path, jobs: list[JobStatus], rows: int = 24) -> Status:
    write(folder, jobs)
    return read_screenful(folder, ME, rows)


def test_a_screenful_has_the_users_jobs_and_the_first_of_the_others(tmp_path: Path) -> None:
    found = read(tmp_path, EVERY, rows=7)
    every = read_status(tmp_path)
    assert every.jobs == EVERY
    assert {**vars(found), "jobs": []} == {**vars(every), "jobs": []}
    own = [each for each in WAITING if each.user == ME]
    assert [j for j in found.jobs if j.user == ME] == own
    assert found.jobs[:14] == [*RUNNING[:7], *WAITING[:7]]
    assert len(found.jobs) == 14 + len(own)


def test_only_the_requested_jobs_are_read(tmp_path: Path) -> None:
    write(tmp_path, EVERY)
    assert read_users(tmp_path, ["bob", ME]).jobs == [j for j in EVERY if j.user in ("bob", ME)]
    assert read_users(tmp_path, ['", "user": "bob", ']).jobs == []
    assert read_jobs(tmp_path, ["150", "1500", "no such", '"']).jobs == [EVERY[len(RUNNING) + 49]]
    first = [*RUNNING, *WAITING[:3]]
    assert read_around(tmp_path, "150").jobs == [*first, EVERY[len(RUNNING) + 49]]
    assert read_around(tmp_path, "15").jobs == read_around(tmp_path, "no such").jobs == first


@pytest.mark.parametrize("words", [["--me"], ["--json"], ["--explain", "150"], []])
def test_startup_imports_neither_rich_nor_numpy(words: list[str], site: dict[str, str]) -> None:
    """The command must answer within 0.2 s; importing these takes most of that."""
    told = "atexit.register(lambda: print(*sys.modules))"
    code = f"import atexit, sys; {told}; from slurm_asrpt_cli._app.start import status; status()"
    done = subprocess.run([sys.executable, "-c", code, *words], env=site, capture_output=True, text=True, check=True)
    large = {"rich", "numpy", "pandas", "pydantic", "slurm_asrpt.config.settings"}
    assert not large & set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("jobs", [EVERY, WAITING[:30], RUNNING[:2], [], [j for j in EVERY if j.user != ME]])
@pytest.mark.parametrize(("width", "height"), [(80, 23), (60, 20), (132, 50)])
def test_the_overview_fits_the_terminal_and_lists_the_users_jobs_first(
    jobs: list[JobStatus], width: int, height: int, tmp_path: Path
) -> None:
    lines = texts(overview(read(tmp_path, jobs, height), ME, width, height))
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    own = [each for each in jobs if each.user == ME]
    titles = [number for number, line in enumerate(lines) if line.startswith(("Your jobs:", "Queue:"))]
    assert len(titles) == 1 + bool(own)
    if own:
        assert f"{len(own)} waiting" in lines[titles[0]]
        assert own[0].job_id in lines[titles[0] + 2]
    if len(jobs) > height:
        assert re.search(r"and \d+ more: asrpt-status --all", "\n".join(lines))


def test_jobs_that_are_starting_are_not_counted_as_running(tmp_path: Path) -> None:
    jobs = [job(1, Phase.RUNNING), job(2, Phase.STARTING), job(3, Phase.STARTING), job(4)]
    assert "Queue: 1 running (2 GPUs), 2 starting (7 GPUs), 1 waiting (5 GPUs)" in texts(
        overview(read(tmp_path, jobs), ME, 80, 24)
    )
    second = replace(job(5, Phase.LEFT), gpus=4, facts={"word": "component"})
    assert by_state([replace(job(4), gpus=6), second]) == "1 waiting (6 GPUs), 1 left to Slurm (0 GPUs)"
    assert "Queue: 1 running, 2 starting, 1 waiting" in texts(overview(read(tmp_path, jobs), ME, 50, 24))


def test_gpus_of_nodes_that_are_not_usable_are_named_beside_the_free_ones(tmp_path: Path) -> None:
    nodes = [NodeStatus("n1", 8, 3), NodeStatus("n2", 8, 0, usable=False), NodeStatus("n3", 4, 0, other_gres=True)]
    found = replace(read(tmp_path, []), nodes=nodes, gpus_total=8, gpus_free=3)
    assert texts(summary(found, 80))[0] == "3 of 8 GPUs free, 8 more reserved, draining or down."
    assert texts(summary(replace(found, nodes=nodes[::2]), 80))[0] == "3 of 8 GPUs free."


def test_the_line_about_asrptd_is_shortened_to_fit(tmp_path: Path) -> None:
    found = replace(read(tmp_path, []), leader="controller pid 26095 since 2026-11-22T17:11:23")
    said = {width: texts(summary(found, width))[1] for width in (40, 60, 80, 90)}
    policy = "Mode enforce, policy asrpt-gated"
    assert said == {
        40: policy,
        60: f"{policy}, asrptd on controller",
        80: f"{policy}, asrptd on controller since 2026-11-22T17:11:23",
        90: f"{policy}, asrptd on {found.leader}",
    }
    assert texts(summary(read(tmp_path, []), 80))[1] == policy


def test_the_start_of_asrptd_is_shown_in_local_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = replace(read(tmp_path, []), leader="controller pid 26095 since 2026-11-22T17:11:23+0100")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        said = texts(summary(found, 90))[1]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert said.endswith("asrptd on controller pid 26095 since 2026-11-23T01:11:23")


def test_keys_sort_reverse_and_filter_the_view() -> None:
    view = View(ME)
    assert shown_jobs(EVERY, view) == EVERY
    for key in SORTS[1:]:
        view = pressed(view, "s")
        assert view.sort == key
    assert pressed(view, "s").sort == ""
    by_gpus = shown_jobs(EVERY, pressed(View(ME), "s"))
    assert [each.gpus for each in by_gpus] == sorted(each.gpus for each in EVERY)
    assert {each.user for each in shown_jobs(EVERY, pressed(View(ME), "m"))} == {ME}
    for key in ("/", "V", "g", "x", "backspace", "g", "enter"):
        view = pressed(view, key)
    assert (view.text, view.typing) == ("Vgg", False)
    assert {each.name for each in shown_jobs(EVERY, view)} == {"vgg"}
    assert pressed(view, "escape").text == ""
    assert shown_jobs(EVERY, pressed(View(ME), "r")) == EVERY[::-1]


@pytest.mark.parametrize("keys", [[], ["h"], ["/", "x"], ["down"] * 500, ["page down", "up", "home", "page up"]])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (20, 3), (1, 1)])
def test_a_screen_fits_the_terminal(keys: list[str], width: int, height: int) -> None:
    found, view = Status(1000.0, "enforce", "asrpt-gated", 5.0, 64, 3, EVERY), View(ME)
    for key in keys:
        lines, view = screen(found, view, width, height, 1000.0)
        view = pressed(view, key)
    lines, view = screen(found, view, width, height, 1000.0)
    assert len(lines) <= height
    assert 0 <= view.offset < len(EVERY)
    if width >= 40:
        assert max(map(len, texts(lines))) <= width


def contains(*words_and_text: str) -> bool:
    """Whether the last one, the text, has all the others; part of a redraw can be on the terminal at any time."""
    *words, text = words_and_text
    return all(word in text for word in words)


def lists(word: str, job_ids: list[str], text: str) -> bool:
    """Whether the text has the word, and its rows are the first of these jobs."""
    shown = [[*line.split(), ""][1] for line in text.splitlines()[4:-1] if line]
    return word in text and len(shown) > 10 and shown == job_ids[: len(shown)]


def test_watch_follows_the_status_and_its_keys(site: dict[str, str], tmp_path: Path) -> None:
    with Terminal([COMMAND, "--watch"], site) as terminal:
        terminal.until(partial(contains, "3 of 64 GPUs free, mode enforce", "40 running", "RANK", "of 241"))
        terminal.press("m")
        terminal.until(partial(contains, "m mine", "1-8 of 8"))
        terminal.press("m/bert\r")
        terminal.until(lambda text: "/ bert" in text and "of 61" in text)
        terminal.press("\x1b")
        terminal.until(lambda text: "of 241" in text)
        for keys, word in (("s", "sort: gpus "), ("r", "sort: gpus reversed"), ("sr", "sort: user reversed")):
            terminal.press(keys)
            wanted = shown_jobs(EVERY, View(ME, sort=word.split()[1], descending="reversed" in word))
            terminal.until(partial(lists, word, [each.job_id for each in wanted]))
        write(tmp_path, WAITING[:1])
        terminal.until(lambda text: "1-1 of 1" in text)
        terminal.press("q")
        assert terminal.ended() == 0
        assert terminal.restored
        assert LEAVE_ALTERNATE_SCREEN in terminal.sent
        assert terminal.sent.count(b"\x1b[2J") <= 2  # it does not clear the screen for each redraw


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_terminal_is_restored_after_signals(number: int, code: int, site: dict[str, str]) -> None:
    with Terminal([COMMAND, "--watch", "--state", "waiting"], site) as terminal:
        terminal.until(lambda text: "of 200" in text)
        assert not terminal.restored
        terminal.signal(number)
        assert terminal.ended() == code
        assert terminal.restored
        assert LEAVE_ALTERNATE_SCREEN in terminal.sent


@pytest.mark.parametrize(
    ("environment", "said"),
    [({"TERM": "dumb"}, "TERM is dumb, set another"), ({"TERM": "no-such"}, "TERM is no-such"), ({"TERM": ""}, "TERM")],
)
def test_an_unsuitable_terminal_is_an_error(environment: dict[str, str], said: str, site: dict[str, str]) -> None:
    with Terminal([COMMAND, "--watch"], {**site, **environment}) as terminal:
        assert terminal.ended() == 2
        assert said in terminal.text.replace("\n", "")
        assert "Traceback" not in terminal.text
        assert terminal.restored


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colors_appear_only_on_terminals_that_want_them(environment: dict[str, str], site: dict[str, str]) -> None:
    with Terminal([COMMAND], {**site, **environment}) as terminal:
        assert terminal.ended() == 0
        assert "Queue: 40 running" in terminal.text
        assert (b"\x1b[" in terminal.sent) is (not environment)


def test_no_matching_jobs_is_reported_only_on_a_terminal(site: dict[str, str]) -> None:
    with Terminal([COMMAND, "-u", "nobody"], site) as terminal:
        assert terminal.ended() == 0
        assert "no matching jobs" in terminal.text
    with Terminal([COMMAND, "-u", "ann"], site) as terminal:
        assert terminal.ended() == 0
        assert "no matching jobs" not in terminal.text
    piped = subprocess.run([COMMAND, "-u", "nobody"], env=site, capture_output=True, text=True, check=True)
    assert (len(piped.stdout.splitlines()), piped.stderr) == (1, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [(["-u", "no-such-user"], "unknown user no-such-user"), (["--state", "all"], "does not show ended jobs")],
)
def test_watch_refuses_what_it_could_only_show_as_an_empty_queue(
    words: list[str], said: str, site: dict[str, str]
) -> None:
    with Terminal([COMMAND, "--watch", *words], site) as terminal:
        assert terminal.ended() == 2
        assert said in terminal.text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-u", f"{ME},no-such-user"], "unknown user no-such-user"),
        (["-p", "no-such"], "unknown partition no-such"),
        (["999"], "job 999: ended, or unknown to asrptd"),
    ],
)
def test_watch_names_what_nobody_knows(words: list[str], said: str, site: dict[str, str], tmp_path: Path) -> None:
    node = NodeStatus("n1", 8, 8, partitions=["gpu"])
    write_status(tmp_path, Status(time.time(), "enforce", "asrpt-gated", 3600.0, 64, 3, EVERY, nodes=[node]))
    with Terminal([COMMAND, "--watch", *words], site) as terminal:
        terminal.until(lambda text: said in text)
        terminal.press("q")
        assert terminal.ended() == 0


def test_watch_survives_an_invalid_status(site: dict[str, str], tmp_path: Path) -> None:
    with Terminal([COMMAND, "--watch"], site) as terminal:
        terminal.until(lambda text: "of 241" in text)
        (tmp_path / "status.json").write_text("{")
        old = Status(time.time() - 600, "enforce", "asrpt-gated", 5.0, 64, 3, [replace(WAITING[0], name="late")])
        write_status(tmp_path, old)
        terminal.until(lambda text: "asrptd may be down" in text and "late" in text)
        terminal.press("q")
        assert terminal.ended() == 0
