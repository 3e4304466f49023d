"""CliClient with small programs in place of squeue and scontrol."""

import json
import shutil
import time

import pytest

from slurm_asrpt.config.settings import SlurmSettings
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm.cli import CliClient
from slurm_asrpt.slurm.parse import parse_update_errors
from slurm_asrpt.slurm.records import Update


@pytest.fixture
def client(tmp_path):
    return CliClient(SlurmSettings(bin_dir=str(tmp_path), timeout_s=0.5, conf="/lab/slurm.conf"))


@pytest.fixture
def program(tmp_path):
    def write(name, script):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    return write


READS = {
    "jobs": ("squeue", lambda c: c.jobs()),
    "nodes": ("scontrol", lambda c: c.nodes()),
    "config": ("scontrol", lambda c: c.config()),
    "allocations": ("scontrol", lambda c: c.allocations(["1"])),
    "update": ("scontrol", lambda c: c.update([Update("1", {"StartTime": "now"})])),
    "signal": ("scancel", lambda c: c.signal("1", "USR1", batch=True)),
    "requeue": ("scontrol", lambda c: c.requeue("1")),
}
each_call = pytest.mark.parametrize(("name", "call"), READS.values(), ids=READS)


@each_call
def test_a_hanging_command_times_out(client, program, name, call):
    program(name, "exec sleep 20")
    before = time.monotonic()
    with pytest.raises(SlurmError, match=rf"{name} did not answer within 0.5 s"):
        call(client)
    assert time.monotonic() - before < 5


@each_call
def test_a_missing_command_is_an_error_with_a_remedy(client, name, call):
    with pytest.raises(SlurmError, match=r"cannot be run \(No such file or directory\); set slurm.bin_dir or PATH"):
        call(client)


@pytest.mark.parametrize("name", ["jobs", "nodes", "config", "signal", "requeue"])
def test_the_error_of_a_failing_command_is_one_printable_line(client, program, name):
    command, call = READS[name]
    program(command, r"printf 'slurm_load: away\n\033[31mfar\n' >&2; exit 1")
    with pytest.raises(SlurmError) as caught:
        call(client)
    assert str(caught.value) == command + r" failed: slurm_load: away \x1b[31mfar"


def test_a_command_that_fails_silently_shows_its_exit_status(client, program):
    program("squeue", "exit 7")
    with pytest.raises(SlurmError, match="exit status 7"):
        client.jobs()


def test_times_are_requested_in_seconds_in_any_time_zone(tmp_path, program, monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    program("scontrol", 'echo "SLURM_VERSION = $SLURM_TIME_FORMAT $TZ"')
    assert CliClient(SlurmSettings(bin_dir=str(tmp_path))).config().version == "%s UTC0"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("jobs", "not json"),
        ("jobs", "[]"),
        ("jobs", '{"jobs": [{}]}'),
        ("jobs", r"\377\376"),
        ("nodes", "NodeName=n1 CPUTot=many"),
        ("config", "Slurm is fine, thank you"),
        ("update", "scontrol: update a\nscontrol: update b"),
        ("update", ""),
    ],
)
def test_invalid_output_is_an_error(client, program, name, text):
    command, call = READS[name]
    program(command, f"printf '%b' '{text}'")
    with pytest.raises(SlurmError):
        call(client)


def test_squeue_gets_its_arguments_and_environment(client, program, tmp_path):
    script = f'echo "$@" "$SLURM_CONF" "$SLURM_TIME_FORMAT" "$LC_ALL" > {tmp_path}/seen'
    program("squeue", script + """; echo '{"jobs":[]}'""")
    assert client.jobs() == []
    seen = (tmp_path / "seen").read_text(encoding="utf-8")
    assert seen == "--json --states=all /lab/slurm.conf %s C.UTF-8\n"


@pytest.mark.parametrize("named", [True, False])
def test_priority_flags_that_slurm_does_not_show_are_read_from_slurm_conf(tmp_path, program, named):
    """Of another machine's, only the path may be known."""
    conf = tmp_path / "slurm.conf"
    conf.write_text("PriorityFlags=NO_NORMAL_QOS\n", encoding="utf-8")
    shown = {"SLURM_VERSION": "24.11.5", "PriorityType": "priority/multifactor", "PriorityFlags": "NO_NORMAL_ALL"}
    lines = "".join(f"{key} = {value}\n" for key, value in (shown | {"SLURM_CONF": str(conf)}).items())
    program("scontrol", f"[ $2 = config ] && cat << EOF\n{lines}EOF\nexit 0")
    client = CliClient(SlurmSettings(bin_dir=str(tmp_path), conf=str(conf) if named else ""))
    assert client.site().priorities.weights.raw == {"qos"}
    conf.unlink()
    assert client.site().priorities.weights.raw == {"assoc", "partition", "qos", "tres"}


@pytest.mark.parametrize(
    ("version", "option"),
    [("22.05.8", "--json"), ("24.11.5", "--json"), ("26.05.5", "--json=v0.0.44"), ("27.11.0", "--json")],
)
def test_slurm_26_05_gets_a_json_version_that_shows_exclusive_jobs(client, program, tmp_path, version, option):
    """Its default version omits both the old and the new field."""
    script = f'[ "$1" = --version ] && echo "slurm-wlm {version}" && exit; echo $1 >> {tmp_path}/seen'
    program("squeue", script + """; echo '{"jobs":[]}'""")
    client.jobs()
    client.jobs()
    assert (tmp_path / "seen").read_text(encoding="utf-8") == f"{option}\n" * 2


def test_one_scontrol_makes_all_updates_and_errors_are_assigned_to_them(client, program, tmp_path):
    script = r"""echo x >> "$(dirname "$0")/started"
while read -r line; do echo "scontrol: $line"; case "$line" in *JobId=2*) echo "Invalid job id" >&2;; esac; done
printf 'scontrol: '; exit 1"""
    program("scontrol", script)
    updates = [Update(str(i), {"StartTime": "now", "NumNodes": "2-2", "ReqNodeList": "n[1-2]"}) for i in (1, 2, 3)]
    assert client.update(updates) == ["", "Invalid job id", ""]
    assert (tmp_path / "started").read_text(encoding="utf-8") == "x\n"


def test_each_update_repeats_what_slurm_would_change(client, program, tmp_path):
    job = {"job_state": ["PENDING"], "tasks": 4, "cpus": 4, "cpus_per_task": 1, "tasks_per_tres": 1}
    array = {**job, "array_job_id": 8, "array_task_string": "0-3"}
    jobs = [{**job, "job_id": 7}, {**array, "job_id": 8}, {"job_id": 9, "job_state": ["PENDING"], "tasks_per_tres": 0}]
    program("squeue", f"cat << EOF\n{json.dumps({'jobs': jobs})}\nEOF")
    program("scontrol", f'while read -r line; do echo "$line" >> {tmp_path}/seen; echo "scontrol: $line"; done')
    client.jobs()
    client.update([Update(job_id, {"StartTime": "now"}) for job_id in ("7", "8_[0-3]", "8_2", "9")])
    more = "NumTasks=4 NumCPUs=4 "
    seen = (tmp_path / "seen").read_text(encoding="utf-8").splitlines()
    ids = ("7", "8_[0-3]", "8_2")
    assert seen == [*(f"update JobId={job_id} {more}StartTime=now" for job_id in ids), "update JobId=9 StartTime=now"]


def test_what_must_come_later_is_written_after_all_else_and_not_after_an_error(client, program, tmp_path):
    script = f"""cd {tmp_path}; cat > in; cat in >> all; echo end >> all
while read -r line; do echo "scontrol: $line"; case "$line" in *2?NumN*|*3?NumC*) echo "Invalid" >&2;; esac; done < in
printf 'scontrol: '; exit 1"""
    program("scontrol", script)
    nodes, cpus = {"NumNodes": "1-1"}, {"NumCPUs": "2"}
    updates = [Update("1", nodes, cpus), Update("2", nodes, cpus), Update("3", nodes, cpus), Update("4", nodes)]
    errors = client.update(updates)
    assert [bool(error) for error in errors] == [False, True, True, False]
    written = (tmp_path / "all").read_text().split("end\n")
    assert written[0].count("NumNodes") == 4
    assert written[1].splitlines() == ["update JobId=1 NumCPUs=2", "update JobId=3 NumCPUs=2"]


def test_signals_and_requeues_have_their_own_commands(client, program, tmp_path):
    for name in ("scancel", "scontrol"):
        program(name, f'echo {name} "$@" >> {tmp_path}/said')
    client.signal("17", "USR1", batch=True)
    client.signal("17_3", "USR2", batch=False)
    client.requeue("17")
    client.requeue("18", failed=True)
    assert (tmp_path / "said").read_text().splitlines() == [
        "scancel --signal=USR1 --batch 17",
        "scancel --signal=USR2 17_3",
        "scontrol requeue incomplete 17",
        "scontrol requeue 18",
    ]
    with pytest.raises(SlurmError, match="refusing"):
        client.requeue("17 18")


def test_without_updates_no_command_is_run(client):
    assert client.update([]) == []


@pytest.mark.parametrize("value", ["a b", "1\nupdate JobId=2 Priority=0", "$(id)", "'", '"', "ü", "a\tb", "x;!"])
def test_values_that_could_inject_other_words_are_refused(client, program, tmp_path, value):
    program("scontrol", f"touch {tmp_path}/ran")
    for update in (Update("1", {"ReqNodeList": value}), Update(value, {"StartTime": "now"})):
        assert client.update([update])[0].startswith("refusing to write")
    with pytest.raises(SlurmError, match="refusing to write"):
        client.allocations([value])
    assert not (tmp_path / "ran").exists()


def test_a_refused_value_keeps_no_other_update_back(client, program, tmp_path):
    program("scontrol", f"sed 's/^/scontrol: /' | tee {tmp_path}/told; echo 'Invalid job id'")
    updates = [Update("1", {"ReqNodeList": "n1, n2"}), Update("2", {"StartTime": "now"}), Update("3", {"Nice": "a b"})]
    refused, invalid, also = client.update([*updates, Update("4", {"StartTime": "now"})])[:3]
    assert (refused, also) == ("refusing to write 'n1, n2' to scontrol", "refusing to write 'a b' to scontrol")
    assert invalid == ""
    told = (tmp_path / "told").read_text("utf-8").splitlines()
    assert told == ["scontrol: update JobId=2 StartTime=now", "scontrol: update JobId=4 StartTime=now"]
    assert client.update(updates) == [refused, "Invalid job id", also]


def test_config_values_are_read(client, program):
    program("scontrol", "printf 'SLURM_VERSION = 23.02.1\\nPriorityType = priority/multifactor\\nClusterName = c\\n'")
    config = client.config()
    assert (config.version, config.cluster, config.multifactor) == ("23.02.1", "c", True)
    assert not config.memory_consumed


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="no scontrol on this machine (make setup)")
@pytest.mark.parametrize("terminal", [None, "dumb", "xterm"])
def test_a_real_scontrol_echoes_long_lines_in_full_on_any_terminal(tmp_path, monkeypatch, terminal):
    """Under systemd there is no terminal, and readline shows only the end of a long line."""
    lines = ["ClusterName=c", "SlurmctldHost=h(127.0.0.1)", "NodeName=h", "PartitionName=p Nodes=ALL"]
    (tmp_path / "slurm.conf").write_text("\n".join(lines) + "\n", encoding="ascii")
    monkeypatch.delenv("TERM", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    if terminal:
        monkeypatch.setenv("TERM", terminal)
    client = CliClient(SlurmSettings(conf=str(tmp_path / "slurm.conf")))
    said = client.run("scontrol", stdin=f"update X={'n' * 5000}\nupdate Y={'n' * 100}\n", lenient=True)
    errors = parse_update_errors(said)
    assert len(errors) == 2
    assert all(error.startswith("No valid entity in update command") for error in errors)
