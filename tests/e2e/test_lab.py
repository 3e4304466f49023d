"""A real Slurm on this machine: start, jobs of a test user, a controller restart, and a stop that leaves nothing."""

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from slurm_asrpt.errors import InputError, MachineError, SlurmError
from slurm_asrpt.lab import machine, processes
from slurm_asrpt.lab.allocation import parse_job
from slurm_asrpt.lab.cluster import load, up
from slurm_asrpt.lab.spec import LabSpec
from tests.e2e.conftest import BASE_PORT

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="a lab needs root"),
    pytest.mark.skipif(
        shutil.which("slurmctld", path=machine.SEARCH_PATH) is None, reason="slurmctld is not installed"
    ),
]

PORT = BASE_PORT - 400


@pytest.fixture(scope="module")
def folder():
    """Not tmp_path: test users cannot enter pytest's directories."""
    path = Path(tempfile.mkdtemp(prefix="lab-helper-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def lab(folder):
    hook_exists = (Path(__file__).parents[2] / "plugin_hooks" / "job_submit_asrpt.lua").exists()
    lab = up(LabSpec(directory=folder / "lab", nodes="2x4", base_port=PORT, hook=hook_exists))
    yield lab
    lab.down()


def submit(lab, command, *options, user="asrpt1"):
    """Submit to the unmanaged partition; return the job's id."""
    options = ["--parsable", "-p", "other", "-o", "%j.out", "-c1", "--gpus-per-task=1", *options]
    return lab.run(["sbatch", *options, "--wrap", command], user=user).stdout.strip()


def wait_for(lab, job, state, limit_s=20.0):
    deadline = time.monotonic() + limit_s
    while (found := lab.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"]).stdout.strip()) != state:
        assert time.monotonic() < deadline, f"job {job} is {found}, not {state}"
        time.sleep(0.05)


def output(lab, job, user="asrpt1"):
    return (lab.home(user) / f"{job}.out").read_text()


def wait_for_output(lab, job, word, limit_s=10.0):
    """slurmstepd creates the file shortly after the job is in state RUNNING."""
    file = lab.home("asrpt1") / f"{job}.out"
    deadline = time.monotonic() + limit_s
    while not file.exists() or word not in file.read_text():
        assert time.monotonic() < deadline, f"{file} does not contain {word}"
        time.sleep(0.05)
    return file.read_text()


def test_every_node_is_idle_and_the_settings_file_exists(lab):
    assert lab.node_states() == {"idle": 2}
    assert lab.status().dead == ()
    assert lab.settings_path.exists()
    assert load(lab.directory).running


def test_each_task_of_a_test_user_gets_a_gpu(lab):
    job = submit(lab, "srun sh -c 'echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES'; id -un; sleep 30", "-n3")
    wait_for(lab, job, "RUNNING")
    shown = parse_job(lab.run(["scontrol", "-d", "-o", "show", "job", job]).stdout)
    assert shown == {"n1": 3}
    text = wait_for_output(lab, job, "asrpt1")
    lab.run(["scancel", job])
    ranks = sorted(line for line in text.splitlines() if line != "asrpt1")
    assert [rank.split()[0] for rank in ranks] == ["0", "1", "2"]
    assert all(len(rank.split()) == 2 for rank in ranks)  # each sees GPUs


def test_lab_training_runs_at_the_speed_of_its_placement(lab):
    job = submit(lab, f"{lab.train} --profile vgg19-dp4 --iterations 2 --speedup 10 --json", "-n4", "-N2")
    wait_for(lab, job, "COMPLETED")
    spread = json.loads(output(lab, job))
    assert spread["nodes"] == ["n1", "n2"]
    assert sum(spread["counts"]) == 4
    assert spread["ranks"] == sorted(spread["ranks"])  # without asrptd: Slurm's block order, not Heavy-Edge's
    assert not spread["mapped"]
    job = submit(lab, f"{lab.train} --profile vgg19-dp4 --iterations 2 --speedup 10 --json", "-n4", "-N1")
    wait_for(lab, job, "COMPLETED")
    assert json.loads(output(lab, job))["alpha"] < spread["alpha"]


def test_a_job_survives_a_controller_restart(lab):
    job = submit(lab, "exec sleep 60", "-n1")
    wait_for(lab, job, "RUNNING")
    lab.restart_slurmctld()
    wait_for(lab, job, "RUNNING")
    lab.run(["scancel", job])


def test_a_command_that_fails_is_one_error(lab):
    with pytest.raises(SlurmError, match="Invalid job id"):
        lab.run(["scontrol", "show", "job", "999999"])
    with pytest.raises(InputError, match="no user nobody-here"):
        lab.run(["squeue"], user="nobody-here")


def test_a_second_lab_in_the_same_place_is_refused(lab):
    with pytest.raises(InputError, match="a lab is running there"):
        up(LabSpec(directory=lab.directory, base_port=PORT + 50, hook=False))
    with pytest.raises(MachineError, match=rf"port in use: {PORT} \(slurmctld\)"):
        up(LabSpec(directory=lab.directory.parent / "second", base_port=PORT, hook=False))


def test_a_slurm_that_cannot_start_shows_its_log_and_leaves_no_process_or_file(folder):
    spec = LabSpec(folder / "bad", "1x1", PORT + 30, hook=False, slurm_conf_extra="SelectType=select/nonsense")
    with pytest.raises(MachineError, match=r"slurmctld has exited; last lines of .*nonsense"):
        up(spec)
    assert not load(spec.directory).running


def test_an_interrupt_during_startup_cleans_up(folder):
    """The command gets SIGINT, as from Ctrl-C, once the first pid file exists."""
    directory = folder / "cut"
    extra = "DownNodes=n1 State=DRAIN"  # never idle, so `up` is still waiting when the signal arrives
    code = f"""
from slurm_asrpt_cli.lab import app
app(["up", "--nodes", "1x1", "--dir", "{directory}", "--base-port", "{PORT + 40}", "--no-hook",
     "--slurm-conf", "{extra}"], prog_name="asrpt-lab")
"""
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while not list(directory.glob("pids/munged.pid")) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert (process.returncode, "interrupted" in error) == (130, True), error
    assert not load(directory).running


# Last: it stops the lab that the tests above use.


def test_down_leaves_no_process_and_is_safe_to_repeat(lab):
    job = submit(lab, "srun sleep 1000", "-n2")
    wait_for(lab, job, "RUNNING")
    daemons = lab.daemons
    lab.down()
    assert not [daemon for daemon in daemons if daemon.alive]
    assert processes.job_processes(lab.slurm_conf, lab.directory) == []
    lab.down()
    load(lab.directory).down(purge=True)
    assert not lab.directory.exists()


def test_down_ends_jobs_even_without_a_controller(folder):
    lab = up(LabSpec(folder / "crash", "1x2", PORT + 20, users=1, hook=False))
    job = submit(lab, "sleep 1000", "-n1")
    wait_for(lab, job, "RUNNING")
    lab.stop_slurmctld(crash=True)
    lab.down(purge=True)
    assert processes.job_processes(lab.slurm_conf, lab.directory) == []


def test_removing_the_last_lab_removes_the_test_users():
    if any(Path("/run/asrpt-labs").glob("[0-9a-f]*")):
        pytest.skip("another lab is up")
    assert not [user.pw_name for user in pwd.getpwall() if user.pw_gecos == "asrpt-lab test user"]


# with a clock of its own


@pytest.fixture(scope="module")
def fast(folder):
    lab = up(LabSpec(directory=folder / "fast", nodes="2x4", base_port=PORT + 50, speed=60, accounting=True))
    yield lab
    lab.down()


def test_ten_minutes_of_an_accelerated_lab_take_ten_seconds(fast):
    before, began = fast.time(), time.time()
    job = submit(fast, "date +%s; sleep 600; date +%s", "-n1", "-e", "%j.err")
    wait_for(fast, job, "COMPLETED", limit_s=60.0)
    # slurmstepd may have something to say, and says it in the job's standard error
    first, last = map(int, (fast.home("asrpt1") / f"{job}.out").read_text().split())
    assert last - first >= 600
    assert before - 1 <= first
    assert last <= fast.time()
    assert time.time() - began < (fast.time() - before) / 30


def test_time_limits_are_of_the_labs_time(fast):
    job = submit(fast, "sleep 36000", "-n1", "--time=5")
    wait_for(fast, job, "TIMEOUT", limit_s=60.0)


def test_slurmdbd_has_the_labs_times(fast):
    job = submit(fast, "sleep 300", "-n1")
    wait_for(fast, job, "COMPLETED", limit_s=60.0)
    # slurmctld tells slurmdbd of the end in a message of its own: until then RUNNING is an honest answer
    deadline, row = time.monotonic() + 60.0, []
    while row[1:] != ["COMPLETED"] and time.monotonic() < deadline:
        row = fast.run(["sacct", "-nPX", "-j", job, "-o", "ElapsedRaw,State"]).stdout.strip().split("|")
    assert row[1:] == ["COMPLETED"]
    assert 300 <= int(row[0]) < 600


def test_a_clock_leaves_no_shared_memory(folder):
    there = set(os.listdir("/dev/shm"))
    lab = up(LabSpec(directory=folder / "brief", nodes="1x1", base_port=PORT + 80, speed=20))
    made = set(os.listdir("/dev/shm")) - there
    lab.down()
    assert made
    assert not made & set(os.listdir("/dev/shm"))


def test_the_command_says_what_the_pace_costs_and_refuses_what_the_machine_does_not_bear(folder):
    program = str(Path(sys.executable).parent / "asrpt-lab")
    options = ["--dir", str(folder / "paced"), "--base-port", str(PORT + 80), "--nodes", "1x1"]
    found = subprocess.run([program, "up", *options, "--speed", "20"], capture_output=True, text=True, check=False)
    shown = subprocess.run(
        [program, "run", *options[:2], "date", "+%s"], capture_output=True, text=True, check=False
    ).stdout
    private = folder / "private"
    private.mkdir(mode=0o700)
    as_user = [program, "run", *options[:2], "--user", "asrpt1", "pwd"]
    elsewhere = subprocess.run(as_user, cwd=private, capture_output=True, text=True, check=True)
    here = subprocess.run(as_user, cwd="/tmp", capture_output=True, text=True, check=True)
    subprocess.run([program, "down", *options[:2]], check=True, capture_output=True)
    assert (here.stdout, here.stderr) == ("/tmp\n", "")
    assert elsewhere.stdout.endswith("/asrpt1\n")
    assert "asrpt1 cannot write here" in elsewhere.stderr
    assert found.returncode == 0, found.stderr
    assert "x20: jobs end" in found.stdout
    assert int(shown) > time.time() + 10
    found = subprocess.run([program, "up", *options, "--speed", "5000"], capture_output=True, text=True, check=False)
    assert found.returncode == InputError.exit_code
    assert "valid: 1 to 1000" in found.stderr
