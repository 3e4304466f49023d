"""asrpt-sim what-if: the replay of what Slurm ran, its figures, its page and its command."""

import dataclasses
import json
import re
import time
from datetime import datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from slurm_asrpt_cli.sim import app
from typer.testing import CliRunner

from slurm_asrpt.config.settings import SlurmSettings
from slurm_asrpt.core.placement.splitter import Split
from slurm_asrpt.errors import InputError, SlurmError
from slurm_asrpt.reporting import what_if as whatif_page
from slurm_asrpt.sim import shares
from slurm_asrpt.sim import what_if as whatif
from slurm_asrpt.sim.description import Cluster
from slurm_asrpt.sim.engine import simulate
from slurm_asrpt.sim.what_if_remarks import remarks
from slurm_asrpt.traces import Trace, accounting, clean


def trace_of(rows, name="jobs"):
    """rows: (submit, group, gpus, duration, wait)."""
    columns = ("submit_s", "group", "gpus", "duration_s", "wait_s")
    frame = pd.DataFrame([dict(zip(columns, row, strict=True)) for row in rows])
    return clean(name, frame.assign(job_id=[str(i) for i in range(len(rows))], time_limit_s=3600.0, queue="gpu"))


def by_name(outcomes):
    return {each.name: each.figures for each in outcomes}


# the replay


def test_slurms_own_waits_are_shown_with_those_of_policies():
    """One server of two GPUs. Under Slurm, the first job waited 100 s unnecessarily."""
    past = whatif.replay(trace_of([(0, "a", 2, 50, 100), (10, "b", 1, 40, 140)]), [2])
    outcomes, interrupted = whatif.compare(past, ["fifo"])
    real, fifo = outcomes
    assert not interrupted
    assert (real.name, fifo.name) == (whatif.AS_IT_WAS, "fifo")
    assert real.figures["mean_wait_s"] == 120
    assert real.figures["mean_jct_s"] == 165
    assert fifo.figures["mean_wait_s"] == 20  # 0 and 40
    assert fifo.figures["max_wait_s"] == 40
    assert fifo.figures["jct_over_real"] == pytest.approx(130 / 330)
    assert fifo.figures["wait_over_real"] == pytest.approx(40 / 240)
    assert real.figures["later_than_real"] == 0


def test_nodes_may_differ():
    past = whatif.replay(trace_of([(0, "a", 4, 10, 0), (0, "b", 2, 10, 0), (0, "c", 1, 10, 0)]), [4, 2, 1])
    assert [node.gpus for node in past.cluster.nodes] == [4, 2, 1]
    assert past.cluster.text == "1 x 4 + 1 x 2 + 1 x 1 GPUs"
    outcomes, _ = whatif.compare(past, ["fifo", "asrpt-perfect", "easy-backfill"])
    assert by_name(outcomes)["fifo"]["max_wait_s"] == 0
    assert all(each.figures["never_started"] == 0 for each in outcomes)


def test_jobs_larger_than_all_nodes_are_skipped_and_counted():
    past = whatif.replay(trace_of([(0, "a", 5, 10, 0), (5, "b", 4, 10, 0)]), [2, 2])
    assert past.notes["too_large"] == 1
    assert len(past.table) == 1
    assert any("1 larger than the nodes found" in line for line in remarks(past))
    with pytest.raises(InputError):
        whatif.replay(trace_of([(0, "a", 5, 10, 0)]), [2, 2])


def test_jobs_without_a_known_wait_are_replayed_but_not_counted():
    past = whatif.replay(trace_of([(0, "a", 1, 10, np.nan), (0, "b", 1, 10, 3)]), [1])
    outcomes, _ = whatif.compare(past, ["fifo"])
    assert [each.figures["jobs"] for each in outcomes] == [1, 1]
    assert outcomes[1].figures["mean_wait_s"] == 10  # waits for the other job
    assert past.notes["wait_unknown"] == 1


def test_medians_use_only_ended_jobs():
    """Ends at 10, 35 (after waiting 20), 1000."""
    rows = [(0, "a", 1, 10, 0), (5, "a", 1, 10, 20), (9, "a", 1, 991, 0), (10, "a", 1, 30, 0), (40, "a", 1, 1, 0)]
    predicted = whatif.online_medians(trace_of(rows).jobs)
    assert predicted.tolist() == [0, 0, 0, 10, 10]
    assert whatif.online_medians(trace_of([*rows, (2000, "a", 1, 1, 0)]).jobs)[-1] == 10  # of 1 10 10 30 991
    assert whatif.online_medians(trace_of([(0, "a", 1, 5, 0), (9, "b", 1, 1, 0)]).jobs)[1] == 0


@pytest.mark.parametrize(("policy", "expected"), [("asrpt", Split.SLURM), ("asrpt:split=paper", Split.PAPER)])
def test_gpus_are_split_as_slurm_does(monkeypatch, policy, expected):
    splits = []

    def noted(made, *rest, **named):
        splits.append(made.split)
        return simulate(made, *rest, **named)

    monkeypatch.setattr(whatif, "simulate", noted)
    whatif.compare(whatif.replay(trace_of([(0, "a", 2, 10, 0)]), [2]), [policy])
    assert splits == [expected]


def test_a_forest_learns_only_from_the_history():
    rows = [(100 * i, "a", 1, 10, 0) for i in range(10)] + [(100 * i, "a", 1, 500, 0) for i in range(10, 20)]
    past = whatif.replay(trace_of(rows), [4], history=0.5)
    assert len(past.table) == 10
    assert past.table.predicted.tolist() == [10] * 10
    assert past.notes["history_jobs"] == 10
    assert len(past.wait) == 10


def test_more_gpus_in_use_than_exist_is_reported():
    past = whatif.replay(trace_of([(0, "a", 2, 10, 0), (5, "b", 2, 10, 0), (15, "c", 2, 9, 0)]), [2])
    assert past.notes["most_gpus_in_use"] == 4
    assert any("nodes are missing" in line for line in remarks(past))
    one_by_one = trace_of([(0, "a", 2, 10, 0), (10, "b", 2, 10, 0)])  # one ends as the other starts
    assert whatif.most_in_use(one_by_one.jobs) == 2


def test_jobs_submitted_at_one_instant_have_no_load_and_the_json_is_valid():
    past = whatif.replay(trace_of([(0, "a", 2, 10, 0), (0, "b", 2, 10, 0)]), [2])
    outcomes, _ = whatif.compare(past, ["fifo"])
    json.dumps(whatif.document(past, outcomes, interrupted=False), allow_nan=False)
    assert past.notes["load"] is None
    assert "2 jobs submitted within 0 s, on 1 x 2 GPUs; predictions" in remarks(past)[0]


def test_notes_on_predictions_are_correct():
    trace = trace_of([(100 * i, "a", 1, 10, 0) for i in range(20)])
    told = {}
    for history, retrain in ((0.0, 60.0), (0.5, 0.0), (0.5, 5400.0)):
        past = whatif.replay(trace, [4], history, retrain_s=retrain)
        told[history, retrain] = past.table.learning is not None, past.notes["predictor"]
        assert ("from the history)" in remarks(past)[0]) == bool(history)
    assert told == {
        (0.0, 60.0): (False, "median of the group's earlier runs"),
        (0.5, 0.0): (False, "forest on the history"),
        (0.5, 5400.0): (True, "forest on the history, retrained every 1.5 h"),
    }


def test_a_view_of_only_ones_own_jobs_is_reported():
    """With PrivateData, users see only their own jobs, which rarely wait for each other."""
    trace = trace_of([(0, "a", 1, 10, 0), (5, "b", 1, 10, 0)])
    trace.jobs["user"] = "eve"
    assert [accounting.only_user(trace, user) for user in ("eve", "bob", "root")] == ["eve", "", ""]
    past = whatif.replay(trace, [1])
    assert not any("PrivateData" in line for line in remarks(past))
    past = dataclasses.replace(past, notes={**past.notes, "only_user": "eve"})
    assert any("PrivateData" in line for line in remarks(past))


def test_the_default_policies_exist():
    names = whatif.default_policies()
    assert names == ["asrpt-gated", "slurm-backfill", "asrpt", "wcs-workload", "fifo"]
    assert whatif.checked_policies(",".join(names)) == names
    assert whatif.checked_policies("easy-backfill, slurm-backfill:bf_interval_s=60,fifo") == [
        *("easy-backfill", "slurm-backfill:bf_interval_s=60", "fifo")
    ]
    with pytest.raises(InputError, match="known: "):
        whatif.checked_policies("fifo,magic")


# the cluster


def test_a_cluster_of_unequal_servers():
    cluster = Cluster.of([4, 8, 8])
    assert (cluster.servers, cluster.gpus, cluster.total_gpus, cluster.text) == (3, 8, 20, "2 x 8 + 1 x 4 GPUs")
    assert Cluster.of([8, 8]) == Cluster(2, 8)
    assert Cluster(2, 8).text == "2 x 8 GPUs"
    assert Cluster(3, 8, node_gpus=[4, 8, 8]) == cluster
    for wrong in ([], [0, 4]):
        with pytest.raises(ValueError, match="GPU"):
            Cluster.of(wrong)
    with pytest.raises(ValueError, match="listed"):
        Cluster(3, 8, node_gpus=(4, 8))


# data of a login node


@pytest.mark.parametrize(
    ("text", "argument"),
    [
        ("30days", "2024-05-02T12:00:00"),
        ("30d", "2024-05-02T12:00:00"),
        ("now-12hours", "2024-06-01T00:00:00"),
        ("2024-05-31", "2024-05-31T00:00:00"),
        ("2024-05-31T12:30", "2024-05-31T12:30:00"),
    ],
)
def test_since_as_sacct_is_asked(text, argument):
    assert accounting.since_argument(text, datetime(2024, 6, 1, 12).timestamp()) == argument


@pytest.mark.parametrize("text", ["2999-01-01", "2999-01-01T00:00:00+02:00", "now", "now+1day", "0days"])
def test_since_in_the_future(text):
    with pytest.raises(InputError, match="not in the past"):
        accounting.since_argument(text, time.time())


def test_nodes_of_sinfo_each_once():
    lines = ["n1|gpu:a100:4(S:0-1)|idle"] * 2 + ["n2|(null)|idle", "n3|gpu:2,shard:8|down*", "n4|gpu:t4:1|mixed", ""]
    assert [(node.name, node.gpus, node.state) for node in accounting.parse_sinfo("\n".join(lines))] == [
        ("n1", 4, "idle"),
        ("n3", 2, "down"),
        ("n4", 1, "mixed"),
    ]


@pytest.mark.parametrize(
    "text", ["", "n1|(null)|idle", "n1 gpu:4", "|gpu:4|idle", "n[1-2]|gpu:4|idle", "n1|gpu:::|idle", "\x1b[31m|x"]
)
def test_nodes_that_cannot_be_read(text):
    with pytest.raises(InputError):
        accounting.parse_sinfo(text, "nodes.txt")


def fake(folder, name, lines, code=0):
    """A command that records its arguments and prints lines."""
    path = folder / name
    noted = folder / f"{name}.asked"
    note = f'printf "%s\\n" "$LC_ALL" "$SLURM_TIME_FORMAT" "$@" > {noted}'
    path.write_text(f'#!/bin/sh\n{note}\ncat <<"END"\n{lines}\nEND\nexit {code}\n')
    path.chmod(0o755)
    return noted


def test_the_queries_to_sacct_and_sinfo(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    asked = fake(tmp_path, "sacct", "JobID|User")
    assert accounting.ask_sacct(SlurmSettings(), ("JobID", "User"), "now-30days", "gpu", "|x|") == "JobID|User\n"
    locale, times, *arguments = asked.read_text().splitlines()
    assert (locale, times) == ("C", "%s")
    assert arguments == [
        *("--allusers", "--allocations", "--parsable2", "--format=JobID,User"),
        *("--delimiter=|x|", "--starttime=now-30days", "--endtime=now", "--partition=gpu"),
    ]
    asked = fake(tmp_path, "sinfo", "n1|gpu:4|idle")
    assert accounting.parse_sinfo(accounting.ask_sinfo(SlurmSettings(), "gpu"))[0].gpus == 4
    assert asked.read_text().splitlines()[2:] == ["--Node", "--noheader", "--format=%N|%G|%T", "--partition=gpu"]


def test_a_failing_or_missing_slurm(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match=r"sinfo cannot be run .*--servers"):
        accounting.ask_sinfo(SlurmSettings())
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    fake(tmp_path, "sinfo", "", code=3)
    with pytest.raises(SlurmError, match=r"sinfo failed: exit status 3; .*--servers"):
        accounting.ask_sinfo(SlurmSettings())


def test_sacct_and_sinfo_are_those_of_the_settings(tmp_path):
    settings = SlurmSettings(bin_dir=str(tmp_path), conf="/mine/slurm.conf")
    for name in ("sacct", "sinfo"):
        (tmp_path / name).write_text('#!/bin/sh\necho "$SLURM_CONF"\n')
        (tmp_path / name).chmod(0o755)
    answers = accounting.ask_sacct(settings, ("JobID",), "now-30days"), accounting.ask_sinfo(settings)
    assert answers == ("/mine/slurm.conf\n", "/mine/slurm.conf\n")


# the page


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_escapes_and_loads_nothing():
    past = whatif.replay(trace_of([(0, "a", 1, 10, 5)], "<script>alert(1)</script>\x1b[2J"), [1])
    outcomes, _ = whatif.compare(past, ["fifo"])
    outcomes.append(whatif.Outcome("<img src=x onerror=y>", outcomes[0].wait, outcomes[0].figures))
    html = whatif_page.page(past, outcomes, interrupted=True)
    page = Page(html)
    assert not {"script", "img", "link", "iframe"} & {tag for tag, _ in page.tags}
    assert not re.search(r"https?:|url\(|src=x onerror=y>", html.replace("&gt;", ""))
    assert "\x1b" not in html
    words = " ".join(page.text)
    assert whatif.AS_IT_WAS in words
    assert "Interrupted" in words
    assert all(line in words for line in whatif.LIMITS)
    assert sum(tag == "polyline" for tag, _ in page.tags) == 3


def test_the_axis_has_ticks_for_short_and_long_waits():
    """Below a minute, one tick is not enough to read 10 s. Over weeks, there is no room for all ticks."""
    for most in (10.0, 45.0, 3600.0, 1e7):
        places = sorted(place for place, _ in whatif_page.ticks(most))
        assert len(places) >= 4
        assert min(after - before for before, after in pairwise(places)) >= whatif_page.LEAST_GAP
    assert {"1 s", "10 s", "30 s"} <= {name for _, name in whatif_page.ticks(45.0)}


# the command


@pytest.fixture
def ask(monkeypatch):
    """Run ``asrpt-sim what-if`` with a fake parser of sacct's output: submit|gpus|duration|wait per line."""

    def parse(text, source, separator="|"):
        rows = [line.split("|") for line in text.splitlines()]
        return trace_of([(float(s), "a", int(g), float(d), float(w)) for s, g, d, w in rows], source)

    monkeypatch.setattr(accounting, "parse_jobs", parse)
    monkeypatch.setattr(accounting, "sacct_fields", lambda: ("JobID", "User"))
    return lambda *words: CliRunner().invoke(app, ["what-if", *words])


def test_a_dump_and_its_nodes(ask, tmp_path):
    jobs, nodes, html = tmp_path / "jobs.txt", tmp_path / "nodes.txt", tmp_path / "out.html"
    jobs.write_text("0|2|50|100\n10|1|40|140\n")
    nodes.write_text("n1|gpu:2|idle\n")
    done = ask("--dump", str(jobs), "--nodes", str(nodes), "-p", "fifo", "-o", str(html))
    assert done.exit_code == 0, done.output
    assert re.search(r"Slurm as it was +2.0 min", done.output)
    assert re.search(r"fifo +20 s", done.output)
    assert done.output.startswith("Average wait 2 min → 20 s under first come, first served (fifo); 0% of jobs")
    assert re.search(r"^2 GPUs +1 ", done.output, re.MULTILINE)
    assert "not simulated" in done.output
    assert "By size" in html.read_text()
    assert "Slurm as it was" in html.read_text()
    found = json.loads(ask("--dump", str(jobs), "--servers", "1", "--gpus-per-server", "2", "--json").stdout)
    assert [row["policy"] for row in found["rows"]] == [whatif.AS_IT_WAS, *whatif.default_policies()]
    assert found["notes"]["cluster"] == "1 x 2 GPUs"
    assert found["headline"].startswith("Average wait ")
    assert [share["name"] for share in found["sizes"]] == ["1 GPU", "2 GPUs"]


def test_what_limits_the_trust_in_it_follows_the_headline(ask, tmp_path, monkeypatch):
    monkeypatch.setattr("slurm_asrpt_cli.sim.past_jobs.unlike_slurm", lambda outcomes: ["In the simulator ..."])
    (tmp_path / "jobs.txt").write_text("0|2|50|100\n10|1|40|140\n")
    done = ask("--dump", str(tmp_path / "jobs.txt"), "--servers", "1", "--gpus-per-server", "2", "-p", "fifo")
    assert done.stdout.partition("\n\n")[0].endswith("\nIn the simulator ...")
    assert done.stdout.count("In the simulator ...") == 1


def test_all_jobs_of_a_dump_count(ask, tmp_path):
    (tmp_path / "jobs.txt").write_text("0|2|50|100\n")
    done = ask("--dump", str(tmp_path / "jobs.txt"), "--since", "2weeks")
    assert isinstance(done.exception, InputError)
    assert str(done.exception) == "--since requires --sacct; of a file, all jobs are used"


@pytest.mark.parametrize(
    ("width", "policies", "left"),
    [
        (52, "fifo", ["MEAN_WAIT", "RATIO_TO_SLURM"]),
        (80, "fifo", ["99%_WAIT", "RATIO_TO_SLURM"]),
        (52, "fifo,slurm-backfill", ["MEAN_WAIT", "RATIO_TO_SIMULATED"]),
        (80, "fifo,slurm-backfill", ["RATIO_TO_SLURM", "RATIO_TO_SIMULATED"]),
    ],
)
def test_a_narrow_terminal_shows_the_main_columns(ask, tmp_path, monkeypatch, width, policies, left):
    (tmp_path / "jobs.txt").write_text("0|2|50|100\n10|1|40|140\n")
    monkeypatch.setattr("slurm_asrpt_cli.sim.past_jobs.terminal_width", lambda: width)
    done = ask("--dump", str(tmp_path / "jobs.txt"), "--servers", "1", "-p", policies)
    titles, *rows = done.stdout.partition("\n\n")[2].splitlines()[:3]
    assert set(left) <= set(titles.split())
    assert all(len(line) <= width and "…" not in line for line in (titles, *rows))


def test_live(ask, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    asked = fake(tmp_path, "sacct", "0|1|50|100")
    fake(tmp_path, "sinfo", "n1|gpu:2|idle\nn2|gpu:4|idle")
    done = ask("--sacct", "--since", "2weeks", "-p", "fifo")
    assert done.exit_code == 0, done.output
    (begin,) = re.findall(r"--starttime=(\S+)", asked.read_text())
    ago = datetime.now() - datetime.fromisoformat(begin)
    assert timedelta(days=14) <= ago < timedelta(days=15)
    assert "1 x 4 + 1 x 2 GPUs" in done.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "--format=JobID,User"),
        (("--sacct", "--dump", "x"), "give --sacct or --dump"),
        (("--dump", "JOBS"), "--servers"),
        (("--dump", "JOBS", "--servers", "1", "--nodes", "x"), "one of"),
        (("--dump", "missing.txt", "--servers", "1"), "cannot be read"),
        (("--dump", "JOBS", "--servers", "1", "-p", "magic"), "known: "),
        (("--dump", "JOBS", "--servers", "1", "--partition", "$(x)"), "partitions"),
        (("--dump", "JOBS", "--servers", "1", "--partition", "other"), "no job"),
        (("--dump", "JOBS", "--servers", "1", "-o", "no/such/place.html"), "no such directory"),
        (("--sacct", "--since", "sometime"), "write 7d"),
        (("--dump", "JOBS", "--servers", "1", "--retrain", "often"), "--retrain"),
    ],
)
def test_bad_input(ask, tmp_path, words, says):
    jobs = tmp_path / "jobs.txt"
    jobs.write_text("0|1|50|100\n")
    done = ask(*(str(jobs) if word == "JOBS" else word for word in words))
    assert isinstance(done.exception, InputError), done.output
    assert says in str(done.exception)


def test_sacct_output_is_read_by_the_trace_reader():
    sacct = pytest.importorskip("slurm_asrpt.traces.sacct", reason="the readers of sacct do not exist yet")
    if not hasattr(sacct, "parse_sacct"):
        pytest.skip("the readers of sacct do not exist yet")
    cells = {
        "JobID": "7", "JobIDRaw": "7", "User": "eve|x", "Partition": "gpu", "Submit": "1000", "Start": "1060",
        "End": "1160", "Elapsed": "00:01:40", "ElapsedRaw": "100", "Timelimit": "01:00:00", "TimelimitRaw": "60",
        "State": "COMPLETED", "ReqTRES": "cpu=1,gres/gpu=2", "AllocTRES": "cpu=1,gres/gpu=2", "NNodes": "1",
        "AdminComment": "", "JobName": "train",
    }  # fmt: skip
    fields = accounting.sacct_fields()
    row = "##".join(cells.get(field, "") for field in fields)
    trace = accounting.parse_jobs("##".join(fields) + "\n" + row + "\n", "jobs.txt", "##")
    assert isinstance(trace, Trace)
    row = trace.jobs.iloc[0]
    assert (row["gpus"], row["duration_s"], row["wait_s"]) == (2, 100, 60)
    with pytest.raises(InputError):
        accounting.parse_jobs("", "jobs.txt")


def test_who_loses_by_less_than_a_minute_is_named_too():
    rows = [(0, 1, 50, 2, "a"), (5, 1, 50, 2, "b")]
    jobs = pd.DataFrame(rows, columns=["submit_s", "gpus", "duration_s", "wait_s", "user"])
    frame = shares.compared(jobs, np.array([2.0, 34.0]), np.full(2, 50.0))
    users, sizes = shares.shares(frame, "user"), shares.shares(frame, "size")
    assert [share.verdict for share in users] == ["same", "loses"]
    assert shares.headline(frame, users, sizes, "x").endswith(
        "no user waits more than 5% and a minute longer on average, but the jobs of b complete more than 5% later "
        "(ratio 1.62)."
    )


@pytest.mark.parametrize(
    ("worse", "says"),
    [
        ((), "no user waits more than 5% and a minute longer on average."),
        (("b",), "(the most: b, 1.7 min → 8.3 min); jobs on 2 GPUs (1.7 min → 8.3 min) wait longer."),
    ],
)  # fmt: skip
def test_the_headline_names_those_who_lose(worse, says):
    rows = [(number * 10, gpus, 50, 100, user) for number, (user, gpus) in enumerate([("a", 1), ("b", 2), ("c", 1)])]
    jobs = pd.DataFrame(rows, columns=["submit_s", "gpus", "duration_s", "wait_s", "user"])
    wait = np.array([500.0 if user in worse else 20.0 for *_, user in rows])
    frame = shares.compared(jobs, wait, np.full(3, 50.0))
    users, sizes = shares.shares(frame, "user"), shares.shares(frame, "size")
    assert shares.headline(frame, users, sizes, "x").endswith(says)
    assert shares.shares(frame, "account") == []
    assert [share.verdict for share in users] == ["wins", "wins", "loses"] if worse else ["wins"] * 3


def test_asrptds_default_has_one_color_and_slurm_another():
    past = whatif.replay(trace_of([(0, "a", 2, 50, 100), (10, "b", 1, 40, 140)]), [2])
    colors = []
    for policies in (["fifo", "asrpt-gated"], ["asrpt-gated", "wcs-workload", "fifo"]):
        outcomes, _ = whatif.compare(past, policies)
        curves = whatif_page.comparison(outcomes)["curves"]
        assert len({curve["color"] for curve in curves}) == len(curves)
        colors += [[curve["color"] for curve in curves if sign in curve["name"]] for sign in ("Slurm as", "default")]
    assert colors[:2] == colors[2:]
