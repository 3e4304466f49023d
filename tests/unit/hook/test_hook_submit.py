"""The hook's changes to a submission, on every Lua of this machine, with a fake slurm table."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.core.units import Unit
from slurm_asrpt.daemon.profile_names import ProfileNames
from slurm_asrpt.errors import InputError
from slurm_asrpt.hook.attachments import Attachments
from slurm_asrpt.hook.group import describe, keys_of, owned
from slurm_asrpt.hook.hook_conf import render_hook_conf, write_hook_conf
from slurm_asrpt.hook.table import Entry, render_table
from slurm_asrpt.hook.tag import Tag, parse_tag
from slurm_asrpt.profile.documents import load_named
from slurm_asrpt.profile.sizes import Sizes
from tests.benches.lua_hook import INTERPRETERS, ROOT, LuaHook

NO_VAL, NO_VAL16 = 4294967294, 65534
LEASE = 600
SCRIPT = "#!/bin/bash\n#SBATCH -J train-1\npython train.py\n"
RULES = GroupSettings()
JOB = describe(1000, b"train-1", SCRIPT.encode(), [], b"", RULES)
GROUP = JOB.group
KEY = owned(1000, GROUP)

UNSEEN = Tag(GROUP, program=JOB.program)
SEEN = Tag(GROUP, 12345, low=12000, high=13000, program=JOB.program, level="group")

needs_lua = pytest.mark.skipif(not INTERPRETERS, reason="no lua5.1, lua5.3 or lua5.4 on PATH")
pytestmark = needs_lua


@pytest.fixture(scope="module", params=INTERPRETERS)
def lua(request: pytest.FixtureRequest) -> Iterator[LuaHook]:
    hook = LuaHook(request.param)
    yield hook
    hook.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_hook_conf(tmp_path, ["gpu", "gpu-long"], LEASE, time.time() + 60, RULES)
    (tmp_path / "table.txt").write_bytes(render_table({KEY: Entry(12345, 12000, 13000), "0" * 16: Entry.plain(7)}))
    return tmp_path


def job(**fields: str | int) -> dict[str, str | int]:
    """job_desc as slurmctld 22.05 fills it for ``sbatch --gpus=1``, with these changes."""
    plain: dict[str, str | int] = {
        "name": "train-1", "script": SCRIPT, "user_id": 1000, "argc": 1, "argv": "", "tres_per_job": "gres:gpu:1",
        "begin_time": 0, "priority": NO_VAL, "het_job_offset": NO_VAL, "req_switch": NO_VAL, "shared": NO_VAL16,
        "contiguous": 0,
    }  # fmt: skip
    merged = plain | fields
    return {key: value for key, value in merged.items() if value != ""}


def tag_of(answer: dict[str, list[str]]) -> Tag:
    texts = [text.partition("=")[2] for text in answer["set"] if text.startswith("admin_comment=")]
    assert len(texts) == 1
    tag = parse_tag(texts[0])
    assert tag is not None
    assert tag.format() == texts[0]
    return tag


def begin_of(answer: dict[str, list[str]]) -> int | None:
    """The begin time in seconds after the submission, or None if the hook did not set it."""
    for text in answer["set"]:
        if text.startswith("begin_time="):
            return int(text.partition("=")[2]) - int(answer["now"][0])
    return None


def test_tag_and_lease(lua: LuaHook, folder: Path) -> None:
    answer = lua.submit(folder, **job())
    assert tag_of(answer) == SEEN
    assert begin_of(answer) in (LEASE, LEASE + 1)
    assert answer["rc"] == answer["modify"] == ["0"]
    assert answer["log_error"] == answer["log_user"] == []


def test_the_job_is_changed_only_in_the_last_step(lua: LuaHook, folder: Path) -> None:
    assert [text.partition("=")[0] for text in lua.submit(folder, **job())["set"]] == ["admin_comment", "begin_time"]


def test_a_tagged_job_wakes_asrptd_and_another_does_not(lua: LuaHook, folder: Path) -> None:
    lua.submit(folder, **job(partition="other"))
    path = folder / "wakeup"
    assert not path.exists()
    for _ in range(2):
        lua.submit(folder, **job())
        assert path.stat().st_size == 0
        assert path.stat().st_mtime > time.time() - 60
        os.utime(path, (0, 0))


def test_what_cannot_be_woken_stops_nobody(lua: LuaHook, folder: Path) -> None:
    (folder / "wakeup").mkdir()
    answer = lua.submit(folder, **job())
    assert (tag_of(answer), answer["log_error"]) == (SEEN, [])


@pytest.mark.parametrize(
    "fields",
    [
        {"partition": "other"},
        {"partition": "gpu,other"},
        {"partition": ","},
        {"tres_per_job": "", "tres_per_node": "gres:gpumem:3"},
        {"tres_per_job": "", "script": ""},
        {"admin_comment": "x" * 200},  # no room for a tag beside it
    ],
)
def test_unmanaged_jobs_are_unchanged(lua: LuaHook, folder: Path, fields: dict[str, str | int]) -> None:
    answer = lua.submit(folder, **job(**fields))
    assert answer["set"] == answer["log_error"] == answer["log_user"] == []


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tres_per_node": "gres:gpu:0"},
        {"tres_per_node": "gres:gpu:a100:0"},
        {"tres_per_node": "gres:none"},
        {"tres_per_task": "cpu=2"},
    ],
)
def test_jobs_without_gpus_are_tagged_and_leased_in_mode_enforce_only(
    lua: LuaHook, folder: Path, fields: dict[str, str | int]
) -> None:
    asked = job(tres_per_job="", **fields)
    assert tag_of(lua.submit(folder, **asked)).left == ""
    assert begin_of(lua.submit(folder, **asked)) in (LEASE, LEASE + 1)
    write_hook_conf(folder, ["gpu"], 0, time.time() + 60, RULES)
    assert lua.submit(folder, **asked)["set"] == []


def test_default_partition_not_managed(lua: LuaHook, folder: Path) -> None:
    assert lua.submit(folder, default="cpu", **job())["set"] == []
    assert lua.submit(folder, default="cpu", **job(partition="gpu,gpu-long"))["set"] != []


def test_the_tag_has_attached_profiles_and_sizes_and_users_override_them(lua: LuaHook, folder: Path) -> None:
    attachments = Attachments({GROUP: "by-group"}, {"llama *": "llama-3-8b", "*": "any"})
    write_hook_conf(folder, ["gpu"], LEASE, time.time() + 60, RULES, attachments)
    script = "torchrun --nproc_per_node 8 train.py --tensor-model-parallel-size=4\n"
    assert tag_of(lua.submit(folder, **job())) == replace(SEEN, profile="by-group", unit=Unit.SECONDS)
    named = tag_of(lua.submit(folder, **job(name="llama x", script=script)))
    assert (named.profile, named.sizes) == ("llama-3-8b", Sizes(procs=8, tp=4))
    assert tag_of(lua.submit(folder, **job(name="other"))).profile == "any"
    own = tag_of(lua.submit(folder, **job(name="llama x", comment="asrpt:profile=mine")))
    assert (own.profile, own.sizes) == ("mine", Sizes())


def test_the_tag_has_the_preemption_method(lua: LuaHook, folder: Path) -> None:
    for signal in ("USR1", "B:USR2"):
        assert tag_of(lua.submit(folder, **job(comment=f"asrpt:interrupt={signal}"))) == replace(SEEN, interrupt=signal)
    assert tag_of(lua.submit(folder, **job(comment="asrpt:interrupt=TERM"))) == SEEN


def test_the_tag_has_sizes_only_with_a_profile(lua: LuaHook, folder: Path) -> None:
    script = "torchrun --nproc_per_node 8 train.py\n"
    assert tag_of(lua.submit(folder, **job(script=script))).sizes == Sizes()
    assert tag_of(lua.submit(folder, **job(script=script, comment="asrpt:profile=p"))).sizes == Sizes(procs=8)


@pytest.mark.parametrize("field", ["tres_per_job", "tres_per_node", "tres_per_task"])
@pytest.mark.parametrize(
    "text", ["gres:gpu:2", "gres:gpu", "gres:gpu:a100:2", "gres/gpu:1", "gres/gpu=8", "cpu=1,gpu:1"]
)
def test_forms_of_gpu_requests(lua: LuaHook, folder: Path, field: str, text: str) -> None:
    answer = lua.submit(folder, **(job(tres_per_job="") | {field: text}))
    assert tag_of(answer).left == ""
    assert begin_of(answer) is not None


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        ("off", {"comment": "asrpt:off"}),
        ("het", {"het_job_offset": 0}),
        ("het", {"het_job_offset": 1, "script": ""}),
        ("interactive", {"script": ""}),
        ("expand", {"dependency": "expand:1"}),
        ("gres", {"tres_per_job": "", "tres_per_node": "gres:shard:2"}),
        ("gres", {"tres_per_job": "", "tres_per_node": "gres:mps:50"}),
        ("gres", {"tres_per_node": "gres:gpu:1,gres:nic:1,gres:shard:1"}),
        ("gres", {"tres_per_job": "", "tres_per_task": "gres:gpu:1,gres:nic:1"}),
    ],
)
def test_left_to_slurm(lua: LuaHook, folder: Path, reason: str, fields: dict[str, str | int]) -> None:
    answer = lua.submit(folder, **job(**fields))
    assert tag_of(answer).left == reason
    assert begin_of(answer) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"dependency": "afterok:1"},
        {"reservation": "course"},
        {"shared": 1},
        {"shared": 0},
        {"req_switch": 0},
        {"priority": 5},
        {"priority": 0},
        {"req_nodes": "n1"},
        {"exc_nodes": "n1"},
        {"features": "(a100|h100)&nvlink"},
        {"features": "[rack1|rack2]"},
        {"tres_per_node": "gres:nic:1"},
        {"tres_per_job": "", "tres_per_node": "gres:gpu:1,gres:nic:1"},
        {"tres_per_job": "", "tres_per_node": "gres:nic:1", "tres_per_task": "gres:gpu:1"},
    ],
)
def test_still_managed(lua: LuaHook, folder: Path, fields: dict[str, str | int]) -> None:
    assert tag_of(lua.submit(folder, **job(**fields))).left == ""


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        ("exclusive", {"shared": 2}),
        ("exclusive", {"shared": 4}),
        ("features", {"features": "a100*2"}),
        ("features", {"features": "[rack1*2|rack2]"}),
        ("features", {"features": "ib&[rack1|rack2]"}),
        ("contiguous", {"contiguous": 1}),
        ("switches", {"req_switch": 1}),
        ("socket", {"tres_per_job": "", "tres_per_socket": "gres:gpu:2"}),
    ],
)
def test_jobs_whose_nodes_slurm_chooses_are_leased(
    lua: LuaHook, folder: Path, reason: str, fields: dict[str, str | int]
) -> None:
    answer = lua.submit(folder, **job(**fields))
    assert tag_of(answer).left == reason
    assert not tag_of(answer).unleased
    assert begin_of(answer) in (LEASE, LEASE + 1)


def test_the_owners_begin_time_is_kept(lua: LuaHook, folder: Path) -> None:
    soon, late, past = (int(time.time()) + seconds for seconds in (60, 7200, -60))
    answer = lua.submit(folder, **job(begin_time=soon))
    assert (tag_of(answer).begin, begin_of(answer)) in ((soon, LEASE), (soon, LEASE + 1))
    answer = lua.submit(folder, **job(begin_time=late))
    assert tag_of(answer).begin == late
    assert f"begin_time={late}" in answer["set"]
    for none in (past, 0, NO_VAL):
        assert tag_of(lua.submit(folder, **job(begin_time=none))).begin == 0


@pytest.mark.parametrize(("lease", "valid"), [(0, 60), (LEASE, -5)])
def test_tag_without_lease(lua: LuaHook, folder: Path, lease: int, valid: int) -> None:
    write_hook_conf(folder, ["gpu"], lease, time.time() + valid, RULES)
    answer = lua.submit(folder, **job())
    assert tag_of(answer) == SEEN
    assert begin_of(answer) is None


def test_conf_is_reread_when_it_changes(lua: LuaHook, folder: Path) -> None:
    assert lua.submit(folder, **job())["set"]
    write_hook_conf(folder, ["another"], LEASE, time.time() + 60, RULES)
    assert lua.submit(folder, **job())["set"] == []


def test_hints(lua: LuaHook, folder: Path) -> None:
    answer = lua.submit(folder, **job(comment="mine asrpt:profile=gpt-2,dataset=c4,bad=%s%n"))
    expected = describe(1000, b"train-1", SCRIPT.encode(), [], b"c4", RULES).group
    assert tag_of(answer) == Tag(expected, profile="gpt-2", program=JOB.program)
    assert answer["log_user"] == ["asrpt: ignored in --comment: bad=%s%n"]


@pytest.mark.parametrize(
    "comment",
    [
        f"asrpt1:g={'f' * 16};n=1",
        f"asrpt:g={'f' * 16},n=1,k={'f' * 16},v=e,i=1-1,b=1,l=off",
        f"asrpt:n=1;b=1 {UNSEEN.format().replace('n=0', 'n=1')}",
    ],
)
def test_a_comment_forges_no_field_of_the_tag(lua: LuaHook, folder: Path, comment: str) -> None:
    assert tag_of(lua.submit(folder, **job(comment=comment))) == SEEN


def test_a_submitted_admin_comment_is_replaced(lua: LuaHook, folder: Path) -> None:
    forged = {"admin_comment": f"asrpt1:g={'f' * 16};n=1"}
    assert tag_of(lua.submit(folder, **job(**forged))) == SEEN
    assert lua.submit(folder, **job(**forged, partition="other"))["set"] == ["admin_comment="]
    hidden = {"admin_comment": f"copied from the job: asrpt1:g={'f' * 16};n=1"}
    assert tag_of(lua.submit(folder, **job(**hidden))) == SEEN


def test_what_a_sites_own_hook_has_written_stays_before_the_tag(lua: LuaHook, folder: Path) -> None:
    texts = [text for text in lua.submit(folder, **job(admin_comment="JS1:xyz"))["set"] if "asrpt1:" in text]
    assert texts == [f"admin_comment=JS1:xyz {SEEN.format()}"]
    assert parse_tag(texts[0].partition("=")[2]) == SEEN


def test_arguments_count(lua: LuaHook, folder: Path) -> None:
    tag = tag_of(lua.submit(folder, **job(argc=3, argv="--model 2")))
    assert tag.group == describe(1000, b"train-1", SCRIPT.encode(), [b"--model", b"2"], b"", RULES).group


def test_hyperparameters_select_the_entry_and_are_in_the_tag(lua: LuaHook, folder: Path) -> None:
    wide = dict(keys_of(GROUP, JOB.program, 1000, 8, {"epochs": 90.0}))
    entries = {
        wide["exact"]: Entry(5, 4, 6),
        wide["program"]: Entry(1.5, 1, 2, "e", 1.75),
        wide["cluster"]: Entry.plain(77),
    }
    (folder / "table.txt").write_bytes(render_table(entries))
    asked = {"argc": 3, "argv": "--epochs 90"}
    tag = tag_of(lua.submit(folder, **job(tres_per_job="", tres_per_node="gres:gpu:a100:4", min_nodes=2, **asked)))
    assert tag == Tag(GROUP, 5, low=4, high=6, program=JOB.program, level="exact", features={"epochs": 90})
    tag = tag_of(lua.submit(folder, **job(tres_per_job="", tres_per_task="gres:gpu:1", num_tasks=7, **asked)))
    assert (tag.iterations, tag.low, tag.high, tag.mean, tag.level) == (135, 90, 180, 158, "program")
    assert (tag_of(lua.submit(folder, **job())).iterations, tag_of(lua.submit(folder, **job())).level) == (
        77,
        "cluster",
    )


@pytest.mark.parametrize("field", ["ntasks_per_tres", "ntasks_per_gpu"])
def test_tasks_and_tasks_per_gpu_are_a_number_of_gpus(lua: LuaHook, folder: Path, field: str) -> None:
    """-n16 --ntasks-per-gpu=2 (docs/slurm-notes.md): a job with eight GPUs, tagged in every mode."""
    eight = dict(keys_of(GROUP, JOB.program, 1000, 8, {}))
    (folder / "table.txt").write_bytes(render_table({eight["exact"]: Entry.plain(5)}))
    write_hook_conf(folder, ["gpu"], 0, time.time() + 60, RULES)
    assert tag_of(lua.submit(folder, **job(tres_per_job="", num_tasks=16, **{field: 2}))).iterations == 5
    assert lua.submit(folder, **job(tres_per_job="", num_tasks=1, **{field: 2}))["set"] == []
    assert lua.submit(folder, **job(tres_per_job="", num_tasks=16, **{field: 65534}))["set"] == []
    asked = job(tres_per_job="gres:gpu:4", num_tasks=16, **{field: 2})
    assert tag_of(lua.submit(folder, **asked)).iterations == 0, "the GPUs of the job count"


def test_a_long_tag_has_no_features(lua: LuaHook, folder: Path) -> None:
    words = "--epochs 1234567890 --steps 1234567890 --bs 1234567890 --lr 1.23456789e-10 --wd 12345"
    (folder / "table.txt").write_bytes(render_table({KEY: Entry.plain(1e12)}))
    tag = tag_of(lua.submit(folder, **job(argc=11, argv=words)))
    assert (len(tag.features), tag.iterations) == (5, 10**12)
    tag = tag_of(lua.submit(folder, **job(argc=11, argv=words, comment="asrpt:profile=" + "x" * 64, begin_time=10**11)))
    assert (tag.features, tag.iterations, tag.high) == ({}, 10**12, 10**12)


@pytest.mark.parametrize("name", ["hook.conf", "table.txt"])
@pytest.mark.parametrize("how", ["missing", "empty", "random", "cut", "folder"])
def test_invalid_files_cause_one_log_line(lua: LuaHook, folder: Path, name: str, how: str) -> None:
    path = folder / name
    whole = path.read_bytes()
    path.unlink()
    noise = {"empty": b"", "random": random.Random(1).randbytes(1000), "cut": whole[:-9]}
    if how == "folder":
        path.mkdir()
    elif how != "missing":
        path.write_bytes(noise[how])
    answer = lua.submit(folder, **job())
    assert answer["rc"] == ["0"]
    assert len(answer["log_error"]) == 1
    assert answer["log_error"][0].startswith("asrpt: ")
    if name == "hook.conf":
        assert answer["set"] == []
    else:
        assert tag_of(answer) == UNSEEN
        assert begin_of(answer) is not None


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_a_missing_table_is_one_log_line_an_hour(folder: Path, interpreter: str) -> None:
    """A new site has none until its first retrain: a line for each job would fill slurmctld's log."""
    (folder / "table.txt").unlink()
    program = (
        "slurm = {SUCCESS = 0, log_error = function(...) print('error', string.format(...)) end} "
        "local now, hour = os.time(), 0; os.time = function() return now + hour * 3600 end "
        f"local hook = dofile('{ROOT}/plugin_hooks/job_submit_asrpt.lua').open('{folder}') "
        "for at, due in ipairs({0, 0, 0.9, 1, 1.5}) do hour = due; print(at, due); "
        "hook.job_submit({tres_per_job = 'gres:gpu:1', name = 'a'}, {{name = 'gpu', flag_default = 1}}, 1000) end"
    )
    done = subprocess.run([interpreter, "-e", program], capture_output=True, text=True, check=True)
    said = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert said == ["1", "error", "2", "3", "4", "error", "5"], done.stdout


def test_any_changed_byte_in_the_conf_is_detected(lua: LuaHook, folder: Path) -> None:
    """Each of the Lua versions checks some of the bytes; together, all."""
    whole = (folder / "hook.conf").read_bytes()
    for at in range(INTERPRETERS.index(lua.interpreter), len(whole), len(INTERPRETERS)):
        damaged = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        (folder / "hook.conf").write_bytes(damaged)
        answer = lua.submit(folder, **job())
        assert (answer["set"], len(answer["log_error"])) == ([], 1)


@pytest.mark.parametrize("fail", ["admin_comment", "partition", "script", "argv", "part_list", "set admin_comment"])
def test_an_internal_error_leaves_the_job_unchanged(lua: LuaHook, folder: Path, fail: str) -> None:
    answer = lua.submit(folder, fail=fail, **job(argc=2))
    assert answer["rc"] == answer["modify"] == ["0"]
    assert answer["set"] == []
    assert len(answer["log_error"]) == 1


@pytest.mark.parametrize("module", ["good", "missing", "broken", "raises"])
@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_the_example_loads_with_any_module(tmp_path: Path, interpreter: str, module: str) -> None:
    example = (ROOT / "plugin_hooks" / "job_submit.lua").read_text().replace("/etc/slurm/asrpt", str(tmp_path))
    (tmp_path / "job_submit.lua").write_text(example)
    if module == "good":
        shutil.copy(ROOT / "plugin_hooks" / "job_submit_asrpt.lua", tmp_path)
    elif module != "missing":
        text = {"broken": "return {", "raises": "error('no')"}[module]
        (tmp_path / "job_submit_asrpt.lua").write_text(text)
    program = (
        "slurm = {SUCCESS = 0, log_error = function(...) print(string.format(...)) end} "
        f"dofile('{tmp_path}/job_submit.lua') "
        f"print(slurm_job_submit({{}}, {{}}, 0), slurm_job_modify({{}}, {{}}, {{}}, 0))"
    )
    done = subprocess.run([interpreter, "-e", program], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[-1] == "0\t0"
    assert len(lines) == 2  # one log line: no hook.conf here, or no module
    assert lines[0].startswith("asrpt: ")


@pytest.mark.parametrize("partition", ["a,b", "", "a b", "a\n", "ü"])
def test_conf_rejects_unsupported_values(partition: str) -> None:
    with pytest.raises(InputError):
        render_hook_conf([partition], LEASE, 0, RULES)
    with pytest.raises(InputError):
        render_hook_conf(["gpu"], LEASE, 0, GroupSettings(ignore_lines=["a\nb"]))


@pytest.mark.parametrize(
    "lists",
    [
        {"features": ["Ä x"]}, {"features": ["9 x"]}, {"features": [""]}, {"ignore_options": ["a b"]},
        {"ignore_options": [""]}, {"ignore_commands": ["a\n"]}, {"setup_commands": ["ü"]}, {"launchers": [""]},
        {"launchers": ["a*b"]}, {"launchers": ["a/b/c"]}, {"launchers": ["a x=0"]},
        {"ignore_commands": [f"command{i}" for i in range(9999)]},
    ],
)  # fmt: skip
def test_conf_rejects_unsupported_rules(lists: dict[str, list[str]]) -> None:
    with pytest.raises(InputError, match=r"\[?group"):
        render_hook_conf(["gpu"], LEASE, 0, GroupSettings(**lists))


PROFILES = "\nbert-large=0\nbert-large-dp4=4\nmine=8\n"


@pytest.mark.parametrize(
    ("name", "gpus", "says"),
    [
        ("bert-large-dp4", 4, ""),
        ("bert-large-dp4", 0, ""),
        ("bert-large", 7, ""),
        ("bert-large-tp2dp4", 8, ""),
        ("bert-large-1gpu", 1, ""),
        ("bert-large-dp4", 8, "is for 4 GPUs, but the job requests 8"),
        ("bert-large-tp2pp2dp4", 8, "is for 16 GPUs"),
        ("mine", 4, "is for 8 GPUs"),
        ("bert-large-dp2tp4", 8, "no profile bert-large-dp2tp4"),
        ("bert-large-dp0", 8, "no profile"),
        ("mine-dp8", 8, "no profile mine-dp8"),
        ("bert", 4, "no profile bert "),
        ("ert-large", 4, "no profile"),
        (".*", 4, "no profile"),
    ],
)
def test_why_a_profile_is_not_used(lua: LuaHook, name: str, gpus: int, says: str) -> None:
    said = lua.ask("why-unused", PROFILES, name, gpus).decode()
    assert says in said
    assert bool(said) == bool(says)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"comment": "asrpt:profile=vgg91"}, "there is no profile vgg91 (asrpt-profile list)"),
        ({"comment": "asrpt:profile=vgg19-dp4"}, "profile vgg19-dp4 is for 4 GPUs, but the job requests 1"),
        ({"comment": "asrpt:profile=vgg19-dp4", "tres_per_job": "gres:gpu:4"}, ""),
        ({"comment": "asrpt:profile=vgg19-dp4", "tres_per_job": "", "tres_per_node": "gres:gpu:2", "min_nodes": 1,
          "max_nodes": 4}, ""),
        ({"comment": "asrpt:profile=vgg19-dp4", "tres_per_job": "", "tres_per_node": "gres:gpu:4", "min_nodes": 2,
          "max_nodes": 2}, "profile vgg19-dp4 is for 4 GPUs, but the job requests 8"),
        ({"comment": "asrpt:profile=vgg19-dp4", "tres_per_job": "", "tres_per_task": "gres:gpu:1"}, ""),
        ({"comment": "hello"}, ""),
    ],
)  # fmt: skip
def test_an_owner_is_told_at_once_that_a_profile_is_missing_or_does_not_fit(
    lua: LuaHook, folder: Path, fields: dict[str, str | int], says: str
) -> None:
    site = ProfileNames([], lambda name: load_named(name, []))
    assert lua.submit(folder, **job(**fields))["log_user"] == []  # asrptd has not written the names yet
    assert site.write(folder)
    answer = lua.submit(folder, **job(**fields))
    assert answer["log_user"] == ([f"asrpt: {says}; the job counts as one without a profile"] if says else [])
    assert answer["log_error"] == []
    assert tag_of(answer).profile == fields["comment"].partition("profile=")[2]
