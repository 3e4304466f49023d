"""Processes of a lab: only those that it started are ended, and no process with a reused pid."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_asrpt.errors import InputError, MachineError
from slurm_asrpt.lab import conf as hooks
from slurm_asrpt.lab import machine, processes
from slurm_asrpt.lab.cluster import load, tail
from slurm_asrpt.lab.processes import Daemon
from slurm_asrpt.lab.spec import LabPaths, LabSpec


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def start(tmp_path, *code):
    command = [sys.executable, "-c", *code]
    return processes.start("daemon", command, os.environ, tmp_path / "log", tmp_path)


def test_a_started_daemon_is_recorded_and_can_be_ended(tmp_path):
    daemon = start(tmp_path, "import time; time.sleep(60)")
    assert processes.read_daemons(tmp_path) == [daemon]
    assert daemon.alive
    processes.end([daemon])
    assert not daemon.alive
    assert not Path(f"/proc/{daemon.pid}").exists()  # reaped, too


def test_a_daemon_that_ignores_sigterm_is_killed(tmp_path):
    code = "import signal,time; signal.signal(15, signal.SIG_IGN); print('on', flush=True); time.sleep(60)"
    daemon = start(tmp_path, code)
    while "on" not in (tmp_path / "log").read_text():
        pass
    processes.end([daemon], patience_s=0.1)
    assert not daemon.alive


def test_a_daemon_that_misses_the_first_request_gets_another(tmp_path):
    code = """
import signal, sys, time
seen = []
def ask(*_):
    seen.append(1)
    print("asked", flush=True)
    if len(seen) > 1:
        sys.exit("ended itself")
signal.signal(15, ask)
print("on", flush=True)
while True:
    time.sleep(60)
"""
    daemon = start(tmp_path, code)
    while "on" not in (tmp_path / "log").read_text():
        pass
    processes.end([daemon], patience_s=60.0, requests=600)
    assert (tmp_path / "log").read_text().endswith("ended itself\n")


def test_a_process_with_a_reused_pid_is_not_ended(sleeper):
    other = Daemon("slurmctld", sleeper.pid, processes.start_time(sleeper.pid) - 1)
    assert not other.alive
    processes.end([other], patience_s=0.1)
    assert sleeper.poll() is None


@pytest.mark.parametrize("text", ["", "12", "12 x", "a b", "1 2 3", "\udcff"])
def test_a_damaged_pid_file_is_ignored(tmp_path, text):
    file = tmp_path / "x.pid"
    file.write_bytes(text.encode(errors="surrogateescape"))
    assert processes.read_daemons(tmp_path) == []


def test_a_missing_process_has_no_start_time():
    assert processes.start_time(2**22 + 1) is None


def test_job_processes_are_found_by_their_environment(tmp_path):
    conf = tmp_path / "slurm.conf"
    sleep = ["sleep", "60"]
    in_job = subprocess.Popen(sleep, env={"SLURM_CONF": str(conf), "SLURMD_NODENAME": "n1", "PATH": os.environ["PATH"]})
    in_shell = subprocess.Popen(sleep, env={"SLURM_CONF": str(conf), "PATH": os.environ["PATH"]})
    elsewhere = subprocess.Popen(sleep, env={"SLURM_CONF": "/x", "SLURMD_NODENAME": "n1", "PATH": os.environ["PATH"]})
    try:
        assert [found.pid for found in processes.job_processes(conf, tmp_path)] == [in_job.pid]
    finally:
        for process in (in_job, in_shell, elsewhere):
            process.kill()
            process.wait()


def test_a_missing_program_is_an_error_with_an_apt_get_command(monkeypatch):
    monkeypatch.setattr(machine, "SEARCH_PATH", "/nowhere")
    with pytest.raises(MachineError, match=r"not installed: slurmctld, .*; run: apt-get install munge slurm-client"):
        machine.check_programs(LabSpec())
    with pytest.raises(MachineError, match="apt-get install munge"):
        machine.program("munged")


def test_a_missing_database_is_an_error_only_with_accounting(monkeypatch):
    have = {"slurmctld", "slurmd", "munged", "sbatch"}
    monkeypatch.setattr(machine.shutil, "which", lambda name, path: name if name in have else None)
    monkeypatch.setattr(machine, "_plugin", lambda kind: kind == "slurmdbd")
    machine.check_programs(LabSpec())
    with pytest.raises(MachineError, match="apt-get install mariadb-server slurm-wlm-mysql-plugin slurmdbd"):
        machine.check_programs(LabSpec(accounting=True))


def test_without_root_the_error_says_why(monkeypatch):
    monkeypatch.setattr(machine.os, "geteuid", lambda: 1000)
    with pytest.raises(MachineError, match=r"not root: .*device files"):
        machine.check_root()


def test_a_parent_directory_that_users_cannot_enter_is_an_error(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(InputError, match="cannot enter"):
        machine.check_reachable(closed / "lab")


def test_a_port_in_use_is_reported_with_its_daemon():
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MachineError, match=rf"port in use: {port} \(slurmctld\); choose others with --base-port"):
            machine.check_ports({"slurmctld": port})


def test_scripts_get_the_labs_spool_directory(tmp_path):
    source, paths = tmp_path / "hooks", LabPaths(tmp_path / "lab")
    source.mkdir()
    paths.etc.mkdir(parents=True)
    (source / "job_submit_asrpt.lua").write_text("return {}\n")
    (source / "asrpt-prolog").write_text("#!/bin/sh\nSPOOL=/var/spool/asrpt\n")
    assert hooks.install(LabSpec(hooks_dir=source), paths) == {"Prolog": paths.etc / "asrpt-prolog"}
    assert f"SPOOL={paths.spool}\n" in (paths.etc / "asrpt-prolog").read_text()
    assert os.access(paths.etc / "asrpt-prolog", os.X_OK)


def test_a_missing_hook_is_a_one_line_error():
    with pytest.raises(InputError, match=r"job_submit_asrpt\.lua: not found; .*--no-hook"):
        hooks.hooks_folder(LabSpec(hooks_dir=Path("/nowhere")))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"directory": 3}'])
def test_a_damaged_lab_file_is_a_one_line_error(tmp_path, text):
    (tmp_path / "lab.json").write_text(text)
    with pytest.raises(InputError, match="damaged"):
        load(tmp_path)


def test_a_lab_directory_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(InputError, match="a link"):
        load(tmp_path / "link")


def test_tail_returns_the_last_lines_of_a_log(tmp_path):
    log = tmp_path / "log"
    assert "No such file" in tail(log)
    log.write_text("a\nb\nc\n")
    assert tail(log, 2) == "b | c"
