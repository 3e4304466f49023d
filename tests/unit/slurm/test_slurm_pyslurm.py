"""The pyslurm client with a fake pyslurm: when it is used, and which writes use it. The rest needs a real Slurm."""

import sys
from types import SimpleNamespace

import pytest

from slurm_asrpt.config.settings import SlurmSettings
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm import pyslurm, writeback
from slurm_asrpt.slurm.client import SlurmConfig
from slurm_asrpt.slurm.pyslurm import PyslurmClient
from slurm_asrpt.slurm.records import Update
from slurm_asrpt.slurm.writeback import Original

NEW = SlurmConfig("24.11.5", "c", multifactor=False, memory_consumed=True)


class RPCError(Exception):
    pass


class FakePyslurm:
    """The part of pyslurm that writes use. written: all writes, in order."""

    RPCError = RPCError

    def __init__(self):
        self.written = []
        self.refused = {}
        self.Jobs = SimpleNamespace(load=self._fail)
        self.job = object
        self.JobSubmitDescription = lambda **fields: fields

    def Job(self, number):  # noqa: N802
        return SimpleNamespace(modify=lambda fields: self._modify(number, fields))

    def _modify(self, number, fields):
        if number in self.refused:
            raise RPCError(self.refused[number])
        self.written.append((number, fields))

    def _fail(self):
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


@pytest.fixture
def library(monkeypatch):
    library = FakePyslurm()
    monkeypatch.setitem(sys.modules, "pyslurm", library)
    return library


@pytest.fixture
def client(library, tmp_path):
    """A client whose writes through scontrol are added to the same list."""
    program = tmp_path / "scontrol"
    program.write_text('#!/bin/sh\nwhile read -r line; do echo "scontrol: $line"; done\n', encoding="utf-8")
    program.chmod(0o755)
    made = PyslurmClient(SlurmSettings(bin_dir=str(tmp_path)))
    run = made.run

    def recorded(command, *arguments, stdin="", lenient=False):
        library.written += stdin.splitlines()
        return run(command, *arguments, stdin=stdin, lenient=lenient)

    made.run = recorded
    return made


def test_leases_go_through_pyslurm_and_nodes_through_scontrol_in_order(client, library):
    undo = writeback.unpin("8", Original(1, 0, 1, 5), 4, 1, NEW)
    errors = client.update([writeback.lease("8", 60), undo, writeback.lease("9", 60), writeback.hand_over("8")])
    assert errors == ["", "", "", ""]
    assert library.written == [
        (8, {"begin_time": "now+60"}),
        "update JobId=8 NumNodes=1-4 ReqNodeList= Priority=5",
        (9, {"begin_time": "now+60"}),
        (8, {"begin_time": "now"}),
    ]


@pytest.mark.parametrize(
    "update", [Update("8_1", {"StartTime": "now"}), writeback.site_factor("8", 0), Update("8", {"Priority": "1"})]
)
def test_updates_that_pyslurm_would_ignore_go_through_scontrol(client, library, update):
    assert client.update([update]) == [""]
    assert library.written[0].startswith(f"update JobId={update.job_id} ")


def test_a_refused_update_returns_slurms_error(client, library):
    library.refused[8] = "Job is no longer pending\x1b execution"
    assert client.update([writeback.lease("7", 60), writeback.lease("8", 60)]) == [
        "", r"Job is no longer pending\x1b execution",
    ]  # fmt: skip


def test_any_exception_of_pyslurm_becomes_a_slurm_error(client):
    with pytest.raises(SlurmError, match="pyslurm cannot read the jobs"):
        client.jobs()


class LoadedJob:
    """A job as pyslurm loads it: "UNLIMITED" where Slurm has no number of tasks; None for most fields."""

    id, state, user_id = 7, "PENDING", 0
    array_tasks_waiting = partition = None
    ntasks_per_socket = ntasks_per_core = "UNLIMITED"

    def __init__(self, **fields):
        self.__dict__ |= fields

    def __getattr__(self, name):
        return None

    def get_resource_layout_per_node(self):
        return {}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (0, False, False)),
        ({"ntasks_per_socket": 2}, (2, False, False)),
        ({"threads_per_core": 1}, (0, True, False)),
        ({"ntasks_per_core": 1}, (0, False, True)),
    ],
)
def test_tasks_of_each_socket_and_core_are_read(client, library, fields, expected):
    asked = dict.fromkeys([*pyslurm._ASKED, "cpus_per_tres", "mem_per_tres"], "") | {
        "bitflags": 0,
        "array_task_id": None,
    }
    library.Jobs.load = lambda: {7: LoadedJob(**fields)}
    library.job = lambda: SimpleNamespace(get=lambda: {7: asked})
    (job,) = client.jobs()
    assert (job.tasks_per_socket, job.one_thread, job.own_cores) == expected


def test_a_pyslurm_that_hides_requests_is_not_used_to_read_jobs(client, library, tmp_path):
    del library.job
    program = tmp_path / "squeue"
    program.write_text("#!/bin/sh\necho '{\"jobs\":[]}'\n", encoding="utf-8")
    program.chmod(0o755)
    assert client.jobs() == []


@pytest.mark.parametrize(("own", "slurm"), [("25.11.2", "24.11.5"), ("24.5.1", "24.11.5"), ("22.5.0", "26.05.5")])
def test_a_pyslurm_of_another_slurm_release_is_not_imported(monkeypatch, own, slurm):
    monkeypatch.setattr("importlib.metadata.version", lambda name: own)
    with pytest.raises(SlurmError, match=rf"pyslurm {own} does not match Slurm {slurm}"):
        pyslurm.load(SlurmSettings(), slurm)
    assert "pyslurm" not in sys.modules


def test_a_pyslurm_that_exits_is_detected_in_another_process(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "24.5.1")
    monkeypatch.setattr(
        pyslurm, "_PROBE", "import os, sys; print('fatal: no slurm.conf', file=sys.stderr); os._exit(1)"
    )
    with pytest.raises(SlurmError, match=r"pyslurm does not work: fatal: no slurm.conf"):
        pyslurm.load(SlurmSettings(), "24.05.3")


def test_a_pyslurm_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "24.5.1")
    monkeypatch.setattr(pyslurm, "_PROBE", "import time; time.sleep(60)")
    with pytest.raises(SlurmError, match=r"pyslurm did not answer within 0.5 s"):
        pyslurm.load(SlurmSettings(timeout_s=0.5), "24.05.3")


def test_a_missing_pyslurm_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(SlurmError, match="pyslurm is not installed"):
        pyslurm.load(SlurmSettings(), "24.11.5")


def test_the_gpus_of_nodes_with_several_types_are_counted(client, library):
    """Another generic resource and a node without GPUs do not count."""
    layout = {
        "n1": {"gres": {"gpu:a100": {"count": 2, "indexes": "0-1"}, "gpu:1g.10gb": {"count": "1", "indexes": "4"}}},
        "n2": {"gres": {"gpu": {"count": 4, "indexes": "0-3"}, "nic": {"count": 1, "indexes": "0"}}},
        "n3": {"gres": None},
    }
    job = SimpleNamespace(state="RUNNING", get_resource_layout_per_node=lambda: layout)
    library.Job = SimpleNamespace(load=lambda number: job)
    assert client.allocations(["7"]) == {"7": {"n1": 3, "n2": 4}}
    assert pyslurm.details_of(job) == ["gpu:a100:2(IDX:0-1),gpu:1g.10gb:1(IDX:4)", "gpu:4(IDX:0-3)", ""]
