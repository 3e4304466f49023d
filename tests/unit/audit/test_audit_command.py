"""The commands asrpt-admin audit, snapshot and replay."""

from __future__ import annotations

import json
import re
import threading
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_asrpt_cli._app.tables import print_prose
from slurm_asrpt_cli.admin import app
from slurm_asrpt_cli.admin.audit import key_words, what
from typer.testing import CliRunner

from slurm_asrpt.audit.inputs import Inputs, canonical, from_document, to_document
from slurm_asrpt.audit.snapshot import KIND, VERSION, WANTED, Snapshot, from_bytes, read, replay, to_bytes
from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import Job, JobId, JobProfile, PreemptionClass, Request, Stage
from slurm_asrpt.core.policies import policy_names
from slurm_asrpt.core.policies.snapshot import PolicySnapshot
from slurm_asrpt.errors import InputError
from slurm_asrpt.files import replace_file
from slurm_asrpt.status.reason_texts import in_words
from tests.benches.daemon import Bench
from tests.unit.forecast.test_forecast import snapshot as moment_of
from tests.unit.forecast.test_forecast import waiting


@pytest.fixture
def site(make_bench: Any, tmp_path: Path) -> Bench:
    """A daemon with one ended, one running and one waiting job, and a real clock."""
    bench: Bench = make_bench((4, 2), policy="asrpt-gated")
    bench.slurm.now = time.time() - 100
    (tmp_path / "asrpt.toml").write_text(f'[paths]\nstate = "{tmp_path}/state"\n')
    first = bench.slurm.submit(4, 10, "flat")
    bench.cycle(3)
    bench.slurm.end(first)
    bench.slurm.submit(4, 20, "flat", user="ben", name="[red]two")
    bench.cycle(3)
    bench.slurm.submit(4, 30, "flat")
    bench.cycle(3)
    return bench


def run(site: Bench, *words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*words, "--config", str(site.folder / "asrpt.toml")])
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout


def lines(text: str) -> list[list[str]]:
    return [line.split(None, 4) for line in text.splitlines()[1:]]


def test_a_second_of_gpu_time_is_singular() -> None:
    assert key_words({"gpu_seconds": 1.2}) == ["predicted work 1 GPU-second"]


def test_work_is_told_without_the_weight_by_which_it_was_divided() -> None:
    assert key_words({"gpu_seconds": 2.0}, 101.0) == [
        "predicted work 202 GPU-seconds", "its work counts 1/101 by its priority",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"iterations": 3600.0, "profiled": False}, "train: 2 GPUs, 01:00:00 predicted"),
        ({"iterations": 3600.0, "profiled": True}, "train: 2 GPUs, 3600 iterations predicted"),
        ({"iterations": 3600.0}, "train: 2 GPUs, 3600 iterations predicted"),  # of an earlier release
        ({"iterations": 0.0, "profiled": False}, "train: 2 GPUs, no prediction"),
    ],
)
def test_a_queued_job_is_shown_with_its_runtime_or_its_iterations(facts: dict[str, object], text: str) -> None:
    assert what({"event": "queued", "name": "train", "gpus": 2, **facts}) == text


def test_the_events_of_a_job_are_shown_in_order(site: Bench) -> None:
    found = lines(run(site, "audit", "--job", "2", "--since", "yesterday"))
    assert [row[3] for row in found] == ["queued", "start", "running"]
    assert {row[2] for row in found} == {"ben"}
    assert found[0][4] == "[red]two: 4 GPUs, 20 iterations predicted"
    assert found[1][4].startswith("n1:4; no runner-up; predicted work ")
    assert "as planned" in found[2][4]


def test_a_start_shows_the_jobs_that_slurm_preempts_for_it(site: Bench) -> None:
    trail = site.settings.paths.state / "audit.jsonl"
    start = next(each for each in map(json.loads, trail.read_text().splitlines()) if each["event"] == "start")
    trail.write_text(json.dumps({**start, "preempts": ["7", "8_1"]}) + "\n")
    assert "; Slurm preempts 7, 8_1; predicted work" in run(site, "audit", "--since", "yesterday")


def test_entries_are_selected_by_user_and_time(site: Bench) -> None:
    assert {row[1] for row in lines(run(site, "audit", "--user", "ben", "--since", "yesterday"))} == {"2"}
    everything = lines(run(site, "audit", "--since", "yesterday"))
    assert {row[1] for row in everything} == {"-", "1", "2", "3"}
    assert "cycle" not in {row[3] for row in everything}
    assert "cycle" in {row[3] for row in lines(run(site, "audit", "--since", "yesterday", "--cycles"))}
    assert "no entries" in run(site, "audit", "--since", "now-5seconds")


def test_of_a_user_jobs_are_shown_that_were_queued_before_the_time(site: Bench) -> None:
    trail = site.settings.paths.state / "audit.jsonl"
    entries_ = [json.loads(line) for line in trail.read_text().splitlines()]
    now = time.time()
    for each in entries_:
        each["time"] = now - (60 if each["event"] == "start" else 3600)
    trail.write_text("".join(json.dumps(each) + "\n" for each in entries_))
    found = lines(run(site, "audit", "--user", "ben", "--since", "now-10minutes"))
    assert {(row[1], row[2], row[3]) for row in found} == {("2", "ben", "start")}


def test_with_job_all_its_entries_are_shown_however_old(site: Bench) -> None:
    trail = site.settings.paths.state / "audit.jsonl"
    entries_ = [json.loads(line) for line in trail.read_text().splitlines()]
    trail.write_text("".join(json.dumps({**each, "time": each["time"] - 3 * 86400}) + "\n" for each in entries_))
    assert "no entries in that time" in run(site, "audit")
    assert [row[3] for row in lines(run(site, "audit", "--job", "2"))] == ["queued", "start", "running"]
    assert "no entries for that job" in run(site, "audit", "--job", "77")
    run(site, "audit", "--job", "2", "--html", str(site.folder / "two.html"))
    assert "1970-01-01" not in (site.folder / "two.html").read_text()


@pytest.mark.parametrize("words", [("--job", "2"), ("--user", "ben")])
def test_the_page_of_some_jobs_shows_their_time_only(site: Bench, words: tuple[str, str]) -> None:
    page = site.folder / "two.html"
    run(site, "audit", *words, "--since", "yesterday", "--html", str(page))
    began = re.search(r'"t0":([0-9.]+)', page.read_text().replace(" ", ""))
    assert began
    assert float(began[1]) == site.slurm.records["2"].submit_time > site.slurm.records["1"].submit_time


@pytest.mark.parametrize(
    "words", [["audit"], ["retrain"], ["models", "list"], ["history", "check"], ["enable"], ["evaluate"]]
)
def test_missing_read_permission_is_the_same_error_everywhere(
    site: Bench, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode, **_: Path(path) != site.settings.paths.state)
    done = CliRunner().invoke(app, [*words, "--config", str(site.folder / "asrpt.toml")])
    assert f"{site.folder}/state is readable only by root and asrptd's user; use sudo" in str(done.exception)


def test_text_is_wrapped_only_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "word \x1b " * 20
    for width in (None, 40):
        monkeypatch.setattr("slurm_asrpt_cli._app.tables.terminal_width", lambda width=width: width)
        print_prose(text, indent=4)
    whole, *wrapped = capsys.readouterr().out.splitlines()
    assert (len(whole) > 150, max(map(len, wrapped)) <= 40) == (True, True)
    assert all(line.startswith("    ") for line in wrapped[1:])
    assert "\x1b" not in whole + "".join(wrapped)


def test_json_has_every_entry(site: Bench) -> None:
    found = json.loads(run(site, "audit", "--since", "yesterday", "--json"))
    assert found["schema"] == 1
    written = (site.settings.paths.state / "audit.jsonl").read_text().splitlines()
    assert [entry["event"] for entry in found["entries"]] == [json.loads(line)["event"] for line in written]


@pytest.mark.parametrize(
    "words", [("--since", "soon"), ("--until", "now-1day"), ("--html", "/nowhere/at/all.html")], ids=" ".join
)
def test_invalid_options_are_bad_input(site: Bench, words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, ["audit", *words, "--config", str(site.folder / "asrpt.toml")])
    assert isinstance(done.exception, InputError)


def snapshot(site: Bench, path: Path) -> None:
    """Write the snapshot of asrptd's next cycle."""
    replace_file(site.settings.paths.state / WANTED, b"")
    site.cycle()
    (site.settings.paths.state / "snapshot.json").replace(path)


def test_a_requested_snapshot_is_written_and_replayed(site: Bench, tmp_path: Path) -> None:
    """The daemon's cycles run in a thread, in parallel with the command."""
    stopping = threading.Event()

    def cycles() -> None:
        while not stopping.wait(0.05):
            site.cycle(seconds=0.0)

    thread = threading.Thread(target=cycles)
    thread.start()
    try:
        said = run(site, "snapshot", "-o", str(tmp_path / "now.json"))
    finally:
        stopping.set()
        thread.join()
    assert "1 waiting job, 0 starts" in said
    assert f"asrpt-admin replay {tmp_path}/now.json repeats these decisions" in said
    assert (tmp_path / "now.json").stat().st_mode & 0o777 == 0o600
    assert not (site.settings.paths.state / WANTED).exists()
    done = CliRunner().invoke(app, ["replay", str(tmp_path / "now.json")])
    assert done.exit_code == 0
    assert "the same decisions" in done.stdout
    assert "needs 4 GPUs" in done.stdout


def test_a_snapshot_into_a_missing_directory_asks_asrptd_for_nothing(site: Bench, tmp_path: Path) -> None:
    words = ["snapshot", "-o", str(tmp_path / "gone" / "x"), "--config", str(site.folder / "asrpt.toml")]
    done = CliRunner().invoke(app, words)
    assert "no such directory; name a file in an existing one" in str(done.exception)
    assert not (site.settings.paths.state / WANTED).exists()


def test_without_asrptd_there_is_no_snapshot(site: Bench) -> None:
    site.leader.close()
    done = CliRunner().invoke(app, ["snapshot", "--config", str(site.folder / "asrpt.toml")])
    assert "asrptd is not running" in str(done.exception)
    site.leader.take()


def test_a_snapshot_that_cannot_be_written_delays_no_job(site: Bench, caplog: pytest.LogCaptureFixture) -> None:
    state = site.settings.paths.state
    (state / "snapshot.json").mkdir()
    (state / WANTED).touch()
    free = site.slurm.submit(2)
    site.cycle()
    assert "the snapshot is not written" in caplog.text
    assert not (state / WANTED).exists()
    assert site.state(free) == "RUNNING"


def test_a_replay_shows_why_each_job_waits(site: Bench, tmp_path: Path) -> None:
    """The decision is about the head of the queue; the policy gives reasons for the others only on request."""
    others = [site.slurm.submit(4, 40, "flat") for _ in range(2)]
    site.cycle()
    snapshot(site, tmp_path / "it.json")
    rows = CliRunner().invoke(app, ["replay", str(tmp_path / "it.json")]).stdout.splitlines()[1:-1]
    assert [row.split(None, 2)[0] for row in rows] == ["3", *others]
    assert all(row.split(None, 2)[1] == "waits" and "needs 4 GPUs" in row for row in rows)


@pytest.mark.parametrize("policy", policy_names())
def test_a_replay_lists_every_waiting_job_under_every_policy(policy: str) -> None:
    """Each job of the snapshot starts, is preempted, or has a reason as text."""
    moment = moment_of([waiting(number) for number in range(1, 7)], policy)
    inputs = {field.name: getattr(moment, field.name) for field in fields(PolicySnapshot)}
    document = to_document(Inputs(**inputs, jobs=tuple(each.job for each in moment.waiting)))
    decided, others = replay(Snapshot(json.loads(canonical(document)), []), "here")
    rows = [*decided, *others]
    assert {each["job"] for each in rows} == {str(each.job.id) for each in moment.waiting}
    for each in rows:
        if "wait" in each:
            assert in_words(each["wait"]["reason"], each["wait"]["facts"])


def test_a_replay_without_jobs_says_which_jobs_are_not_included(tmp_path: Path) -> None:
    moment = moment_of([], "asrpt-gated")
    inputs = {field.name: getattr(moment, field.name) for field in fields(PolicySnapshot)}
    (tmp_path / "it.json").write_bytes(to_bytes(to_document(Inputs(**inputs, jobs=())), []))
    assert "no job waits for the policy; a snapshot does not include" in (
        CliRunner().invoke(app, ["replay", str(tmp_path / "it.json")]).stdout
    )


def test_a_different_decision_is_shown_as_a_diff(site: Bench, tmp_path: Path) -> None:
    path = tmp_path / "then.json"
    snapshot(site, path)
    then = read(path)
    waits = then.decisions[0]
    path.write_bytes(to_bytes(then.inputs, [{**waits, "job": "99"}]))
    done = CliRunner().invoke(app, ["replay", str(path)])
    assert done.exit_code == 1
    shown = [line for line in done.stdout.splitlines() if line[:1] in "+-"]
    assert [line[0] for line in shown] == ["-", "+"]
    assert '"job":"99"' in shown[0]
    found = json.loads(CliRunner().invoke(app, ["replay", "--json", str(path)]).stdout)
    assert not found["same"]
    assert found["decisions"] == json.loads(canonical([waits]))


def document(site: Bench, tmp_path: Path) -> dict[str, Any]:
    snapshot(site, tmp_path / "it.json")
    found: dict[str, Any] = json.loads((tmp_path / "it.json").read_text())
    return found


HOSTILE: list[dict[str, Any]] = [
    {"nodes": [{"name": "n1", "gpus": 10**12, "index": 0, "gpu_type": ""}]},
    {"nodes": "n1"},
    {"policy": "__import__('os').system('touch pwned')"},
    {"policy": "asrpt", "state": {"machine": 5}},
    {"settings": {"gate": "x"}},
    {"settings": {"unknown": 1}},
    {"state": []},
    {"state": {"order": [["3", 0, "NaN", None]], "returns": 0, "runs": [], "unseen": [0, 0, {}], "kept": None}},
    {"now": float("nan")},
    {"fabric": {"inter": -1, "intra": 1}},
    {"free": {"n1": -4}},
    {"free": {"n1": 10**9}},
    {"jobs": [["3", "u", 10**12, 0, 1.0, 1.0, "", 0, 1.0, 0]]},
    {"jobs": [["3", "u", 4, 7, 1.0, 1.0, "", 0, 1.0, 0]]},
    {"jobs": [["3"]]},
    {"requests": [{"unit": 0}]},
    {"more": 1},
]


@pytest.mark.parametrize("change", HOSTILE, ids=lambda change: str(change)[:40])
def test_hostile_snapshots_are_rejected_in_one_line(site: Bench, tmp_path: Path, change: dict[str, Any]) -> None:
    raw = document(site, tmp_path)
    data = to_bytes({**raw["inputs"], **change}, raw["decisions"])
    with pytest.raises(InputError) as refused:
        replay(from_bytes(data, "evil.json"), "evil.json")
    assert str(refused.value).startswith("evil.json")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x80\x04\x95", "is not a snapshot"),
        (b"", "is not a snapshot"),
        (b"[" * 200_000, "is not a snapshot"),
        (b'{"kind":"asrpt snapshot","version":99}', "has version 99; this release reads version 1"),
        (json.dumps({"kind": KIND, "version": VERSION, "inputs": 5, "decisions": 5}).encode(), "damaged"),
        (json.dumps({"kind": KIND, "version": VERSION, "inputs": {}, "decisions": []}).encode(), "was changed after"),
    ],
)
def test_a_file_that_is_no_snapshot_is_rejected(data: bytes, why: str) -> None:
    with pytest.raises(InputError, match=why):
        from_bytes(data, "it")


@given(st.binary(max_size=60) | st.recursive(st.none() | st.integers() | st.text(max_size=3), st.lists).map(json.dumps))
def test_any_bytes_give_a_snapshot_or_a_one_line_error(data: bytes | str) -> None:
    with pytest.raises(InputError):
        from_bytes(data.encode() if isinstance(data, str) else data, "it")


def test_a_device_is_not_accepted_as_a_snapshot() -> None:
    with pytest.raises(InputError, match="is not a file"):
        read(Path("/dev/zero"))


def test_bands_weights_and_turns_of_jobs_are_replayed() -> None:
    moment = moment_of([waiting(number) for number in range(1, 4)], "asrpt-gated")
    inputs = {field.name: getattr(moment, field.name) for field in fields(PolicySnapshot)}
    jobs = tuple(replace(each.job, weight=4.0, band=2, turn=7.5, interruptible=True) for each in moment.waiting)
    assert from_document(json.loads(canonical(to_document(Inputs(**inputs, jobs=jobs))))).jobs == jobs


FABRIC = Fabric(1.25e9, 300e9, beyond=(6.25e8, 3.1e8), domain=4, across=2.5e10)
NODE = Node("n1", 8, 3, "a100", 1.7, ("leaf1", "top"), 100)
JOB = Job(
    JobId("7_1"),
    "ann",
    2,
    JobProfile("flat", (Stage(2, 1.0, 1.0),)),
    5.0,
    3.0,
    "group",
    Request(unit=2, within=(frozenset({"n1"}),)),
    60.0,
    1,
    (("qos gpu", 2.0),),
    2.0,
    PreemptionClass("low", frozenset({"lower"})),
    4.0,
    True,
)


@pytest.mark.parametrize("value", [FABRIC, NODE, JOB], ids=["fabric", "node", "job"])
def test_a_snapshot_has_every_field_of(value: Any) -> None:
    """The values differ from the defaults, so that a new field that is not saved fails here."""
    left = [each.name for each in fields(value) if getattr(value, each.name) == each.default]
    assert not left, f"give the example a value of its own: {left}"
    inputs = Inputs(0.0, "asrpt-gated", {}, {}, FABRIC, (NODE,), {"n1": 2}, None, None, indexes={"n1": 5}, jobs=(JOB,))
    assert from_document(json.loads(canonical(to_document(inputs)))) == inputs


def test_a_snapshot_without_switches_is_as_in_earlier_releases() -> None:
    """Their snapshots can be read, and they can read ours."""
    inputs = Inputs(0.0, "asrpt-gated", {}, {}, Fabric(1e9, 2e9), (Node("n1", 8),), {"n1": 8}, None, None, jobs=())
    document = to_document(inputs)
    assert document["fabric"] == {"inter": 1e9, "intra": 2e9}
    assert document["nodes"] == [{"name": "n1", "gpus": 8, "index": 0, "gpu_type": ""}]
    assert from_document(json.loads(canonical(document))) == inputs


def test_jobs_are_named_as_slurm_names_them(site: Bench) -> None:
    whole = run(site, "audit", "--job", "2", "--since", "yesterday")
    assert run(site, "audit", "--job", "1+1", "--since", "yesterday") == whole  # the second component of job 1
    assert isinstance(CliRunner().invoke(app, ["audit", "--job", "abc"]).exception, InputError)
    assert "no entries" in run(site, "audit", "--job", "9_[1-3]", "--since", "yesterday")
