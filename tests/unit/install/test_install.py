"""asrpt-admin install: it keeps the site's files, is safe to run repeatedly, and can be removed completely."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_asrpt_cli.admin import app
from slurm_asrpt_cli.admin.install import show_next
from typer.testing import CliRunner

from slurm_asrpt.config.settings import parse_settings
from slurm_asrpt.daemon.leader import LeaderLock
from slurm_asrpt.errors import AsrptError, InputError
from slurm_asrpt.hook.hook_conf import valid_until
from slurm_asrpt.hook.table import parse_table
from slurm_asrpt.install import apply, check, job_submit, lines, parts, remove
from slurm_asrpt.install.parts import Include
from slurm_asrpt.install.site import UNITS, Site
from slurm_asrpt.install.slurm_conf import State, wanted_lines
from slurm_asrpt.shipped import HOOKS, folders, shipped
from slurm_asrpt.slurm.parse import parse_config

ROOT = Path(__file__).parents[3]
LUAS = [name for name in ("lua5.1", "lua5.3", "lua5.4") if shutil.which(name)]
BLOCK = shipped(HOOKS, "job_submit.lua")
SITE = b"""\
-- the site's own
function slurm_job_submit(job_desc, part_list, uid)
  if job_desc.name == "forbidden" then return slurm.ERROR end
  return slurm.SUCCESS
end
function slurm_job_modify(job_desc, job_rec, part_list, uid) return slurm.SUCCESS end
slurm.log_info("loaded")
return slurm.SUCCESS
"""
LIVE = {"SLURM_VERSION": "22.05.8", "JobSubmitPlugins": "lua", "GresTypes": "gpu", "SelectType": "select/cons_tres"}


def make_site(folder: Path, **config: str) -> Site:
    """A site with all its paths in a directory of the test."""
    paths = {name: str(folder / name) for name in ("state", "run", "hook", "scripts", "spool")}
    settings = parse_settings({"paths": paths}, "test")
    (folder / "units").mkdir(exist_ok=True)
    answers = LIVE | config if config.get("SLURM_VERSION") != "" else {}
    path, slurm = folder / "asrpt.toml", folder / "etc"
    slurm.mkdir(exist_ok=True)
    return Site(settings, path, slurm, folder / "units", Path("/opt/asrpt/bin"), "root", Path("/"), answers)


def states(site: Site) -> set[State]:
    return {step.state for step in check(site)}


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# the block in job_submit.lua


PIECES = [b"return x", b"\n", b"-- c", b" ", b"end", b"x=1", b"\r\n", b"--[[", b"]]", b"\xff", b"returned"]


sites = st.binary(max_size=50) | st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join)


@given(sites.filter(lambda site: b"slurm-asrpt" not in site))  # Hypothesis also takes the markers from our source
def test_removing_the_block_restores_the_script(site: bytes) -> None:
    text = job_submit.with_block(site, BLOCK)
    assert job_submit.block_in(text) == BLOCK
    assert job_submit.without_block(text).removesuffix(b"\n") == site.removesuffix(b"\n")
    assert job_submit.with_block(text, BLOCK) == text


@pytest.mark.parametrize("end", ["", "\n", "\n\n-- the end\n", "  -- why\n", ";\n"])
def test_the_block_is_inserted_before_a_final_return(end: str) -> None:
    site = SITE.rstrip(b"\n") + end.encode()
    text = job_submit.with_block(site, BLOCK)
    assert text.index(BLOCK) < text.rindex(b"return slurm.SUCCESS")
    assert job_submit.without_block(text) == site


@pytest.mark.parametrize("last", [b"  return slurm.SUCCESS end\n", b"returned = 1\n", b"end\n"])
def test_a_return_inside_a_function_is_not_a_final_return(last: bytes) -> None:
    assert job_submit.with_block(b"function f()\n" + last, BLOCK).endswith(BLOCK)


def test_damaged_markers_are_an_error() -> None:
    whole = job_submit.with_block(SITE, BLOCK)
    for text in (whole.replace(b"-- <<< slurm-asrpt", b""), whole + BLOCK, whole.replace(b"-- >>> slurm-asrpt", b"")):
        with pytest.raises(InputError, match="by hand"):
            job_submit.without_block(text)


def test_an_include_written_by_the_site_is_recognized() -> None:
    assert job_submit.included_by_hand(b'local a = dofile("/x/job_submit_asrpt.lua").open("/x")\n')
    assert not job_submit.included_by_hand(b'-- dofile("/x/job_submit_asrpt.lua")\n' + BLOCK)


DRIVER = """\
slurm = {SUCCESS = 0, ERROR = -1, log_error = function(...) print("log", ...) end, log_info = function() end}
dofile("%s")
for _, name in ipairs({"good", "forbidden"}) do
  local desc = {name = name, user_id = 7}
  local answer = slurm_job_submit(desc, {}, 7)
  print(name, answer, desc.site, desc.asrpt)
end
print(slurm_job_modify({}, {}, {}, 7))
"""
MODULE = "return {open = function() return {job_submit = function(d) d.asrpt = d.site or 'alone' return 0 end} end}\n"
SITES = {
    "none": (b"", ["good\t0\tnil\talone", "forbidden\t0\tnil\talone", "0"]),
    "own": (
        SITE.replace(b"  if job", b"  job_desc.site = 'site'\n  if job"),
        ["good\t0\tsite\tsite", "forbidden\t-1\tsite\tnil", "0"],
    ),
    "nil": (
        b"function slurm_job_submit(d) d.site = 1 end function slurm_job_modify() return 9 end",
        ["good\tnil\t1\t1", "forbidden\tnil\t1\t1", "9"],
    ),
}


@pytest.mark.parametrize("kind", SITES)
@pytest.mark.parametrize("interpreter", LUAS)
def test_the_sites_function_runs_first_and_its_refusals_hold(tmp_path, interpreter, kind) -> None:
    text, expected = SITES[kind]
    script = job_submit.with_block(text, BLOCK.replace(b"/etc/slurm/asrpt", bytes(tmp_path)))
    (tmp_path / "job_submit.lua").write_bytes(script)
    (tmp_path / job_submit.MODULE).write_text(MODULE)
    program = DRIVER % (tmp_path / "job_submit.lua")
    done = subprocess.run([interpreter, "-e", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == expected


def test_slurms_own_lua_finds_syntax_errors() -> None:
    plugin = job_submit.plugin({"PluginDir": "/nowhere:/usr/lib/x86_64-linux-gnu/slurm-wlm"})
    if plugin is None:
        pytest.skip("no job_submit_lua.so on this machine")
    assert job_submit.trouble_with(job_submit.with_block(SITE, BLOCK), plugin) == ""
    assert "expected" in str(job_submit.trouble_with(SITE + b"x = 1\n", plugin))
    assert job_submit.trouble_with(b"os.exit(3)", plugin) == ""  # it is loaded, not run
    assert job_submit.plugin({}) is None


def test_a_plugin_whose_lua_is_not_installed_checks_nothing(tmp_path: Path) -> None:
    (tmp_path / job_submit.PLUGIN).write_bytes(b"\0liblua9.9.so.7\0")
    assert job_submit.trouble_with(b"", tmp_path / job_submit.PLUGIN) is None


# apply and remove


def test_apply_installs_everything_and_is_safe_to_repeat(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    assert states(site) == {State.MISSING}
    assert all(step.changed for step in apply(site))
    assert states(site) == {State.PRESENT}
    before = files(tmp_path)
    assert not any(step.changed for step in apply(site))
    assert files(tmp_path) == before
    assert parse_table((tmp_path / "hook" / "table.txt").read_bytes()) == {}
    assert valid_until((tmp_path / "hook" / "hook.conf").read_bytes())
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert os.access(tmp_path / "scripts" / "asrpt-prolog", os.X_OK)


def test_installed_files_contain_the_configured_paths(tmp_path: Path) -> None:
    apply(make_site(tmp_path))
    unit = (tmp_path / "units" / "asrptd.service").read_text()
    assert "ExecStart=/opt/asrpt/bin/asrptd\n" in unit
    assert "User=root\nGroup=root\n" in unit
    assert f"Environment=ASRPT_CONFIG={tmp_path}/asrpt.toml\n" in unit
    writable = next(line for line in unit.splitlines() if line.startswith("ReadWritePaths="))
    assert {f"-{tmp_path}/{name}" for name in ("hook", "spool", "state", "run")} == set(writable[15:].split())
    assert f"SPOOL={tmp_path}/spool\n" in (tmp_path / "scripts" / "asrpt-prolog").read_text()
    placed = f'SCRIPTS, HOOK = "{tmp_path}/scripts", "{tmp_path}/hook"'
    assert placed in (tmp_path / "etc" / "job_submit.lua").read_text()
    for name in UNITS:
        assert "/etc/slurm/asrpt" not in (tmp_path / "units" / name).read_text().replace("asrpt.toml", "")


def test_a_directory_whose_name_begins_like_a_default_one_is_kept_as_it_is(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    paths = site.settings.paths.model_copy(update={"hook": Path("/var/spool/asrpt-hook"), "spool": Path("/nfs/asrpt")})
    site = replace(site, settings=site.settings.model_copy(update={"paths": paths}))
    assert b'HOOK = "%s/scripts", "/var/spool/asrpt-hook"' % str(tmp_path).encode() in site.block()
    assert b"\nHOOK=/var/spool/asrpt-hook\n" in site.script("asrpt-epilog-slurmctld")
    assert b"\nSPOOL=/nfs/asrpt\n" in site.script("asrpt-prolog")
    assert b"ReadWritePaths=-/var/spool/asrpt-hook -/nfs/asrpt -" in site.unit("asrptd.service")


def test_a_custom_run_directory_is_created(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    apply(site)
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o755
    here = replace(site, settings=parse_settings({}, "test"))  # created as the unit's RuntimeDirectory
    assert "/run/asrpt" not in {str(part.path) for part in parts(here)}


def test_remove_restores_the_sites_script(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    script = tmp_path / "etc" / "job_submit.lua"
    script.write_bytes(SITE)
    script.chmod(0o640)
    note = next(step.note for step in apply(site) if step.what == "its include")
    assert Path(note.removeprefix("previous file: ")).read_bytes() == SITE
    assert job_submit.without_block(script.read_bytes()) == SITE
    remove(site)
    assert script.read_bytes() == SITE
    assert script.stat().st_mode & 0o777 == 0o640


def test_a_script_that_would_not_load_is_not_changed(tmp_path: Path) -> None:
    site = make_site(tmp_path, PluginDir="/usr/lib/x86_64-linux-gnu/slurm-wlm")
    if job_submit.plugin(site.config) is None:
        pytest.skip("no job_submit_lua.so on this machine")
    script = tmp_path / "etc" / "job_submit.lua"
    script.write_bytes(b"if true then return slurm.SUCCESS -- and no end\n")
    with pytest.raises(AsrptError, match=r"job_submit\.lua: would not load"):
        apply(site)
    assert script.read_bytes() == b"if true then return slurm.SUCCESS -- and no end\n"


def test_changed_files_are_replaced_and_backed_up(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    apply(site)
    module, unit = tmp_path / "scripts" / job_submit.MODULE, tmp_path / "units" / UNITS[0]
    module.write_text("return {}\n")
    unit.write_text(unit.read_text() + "# ours\n")
    script = tmp_path / "etc" / "job_submit.lua"
    os.utime(script, (1, 1))
    assert [step.what for step in check(site) if step.state is State.DIFFERS] == ["submit hook", "systemd unit"]
    kept = [step.note.removeprefix("previous file: ") for step in apply(site) if step.changed]
    assert [Path(path).read_text().splitlines()[-1] for path in kept] == ["return {}", "# ours"]
    assert script.stat().st_mtime > 1  # otherwise slurmctld would keep the old module
    assert states(site) == {State.PRESENT}


def test_the_sites_settings_are_never_replaced(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    site.settings_path.write_text('[daemon]\nmode = "order"\n')
    apply(site)
    assert site.settings_path.read_text() == '[daemon]\nmode = "order"\n'
    remove(site)
    assert site.settings_path.exists()
    site.settings_path.write_text("mode = 7\n")
    with pytest.raises(InputError, match="unknown setting mode"):
        check(site)


def test_loose_directory_permissions_are_fixed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o777)
    (tmp_path / "state").chmod(0o777)
    site = make_site(tmp_path)
    assert check(site)[0].state is State.DIFFERS
    apply(site)
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_remove_keeps_only_history_and_settings(tmp_path: Path) -> None:
    site = make_site(tmp_path, JobSubmitPlugins="(null)")
    apply(site)
    (tmp_path / "state" / "history.sqlite").write_bytes(b"runs")
    remove(site)
    assert set(files(tmp_path)) == {"asrpt.toml", "state/history.sqlite"}
    assert all(not step.changed for step in remove(site))


def test_remove_keeps_files_that_slurm_still_needs(tmp_path: Path) -> None:
    """A missing prolog drains nodes, and without its script slurmctld does not start."""
    site = make_site(tmp_path, **{"Prolog[0]": f"{tmp_path}/scripts/asrpt-prolog", "Epilog": "/site/epilog"})
    apply(site)
    kept = {step.what: step.note for step in remove(site) if step.state is State.KEPT}
    assert "scontrol reconfigure" in kept["Prolog"]
    assert "JobSubmitPlugins=lua" in kept["its include"]
    assert (tmp_path / "etc" / "job_submit.lua").read_bytes() == job_submit.STUB
    assert not (tmp_path / "scripts" / "asrpt-epilog").exists()
    apply(site)
    assert states(site) == {State.PRESENT}
    without = make_site(tmp_path, JobSubmitPlugins="(null)")
    remove(without)
    assert not (tmp_path / "etc" / "job_submit.lua").exists()


@pytest.mark.parametrize("interpreter", LUAS)
def test_the_remaining_stub_is_valid_lua(tmp_path: Path, interpreter: str) -> None:
    (tmp_path / "s.lua").write_bytes(job_submit.STUB)
    program = f"slurm = {{SUCCESS = 0}} dofile('{tmp_path}/s.lua') print(slurm_job_submit(), slurm_job_modify())"
    done = subprocess.run([interpreter, "-e", program], capture_output=True, text=True, check=True)
    assert done.stdout == "0\t0\n"


@pytest.mark.parametrize("path", ["/etc/slurm/a b", "/x;y", '/quoted"', "/a%i"])
def test_paths_with_special_characters_are_refused(tmp_path: Path, path: str) -> None:
    settings = parse_settings({"paths": {"hook": path}}, "test")
    with pytest.raises(InputError, match="scripts"):
        Site(settings, tmp_path, tmp_path, tmp_path, tmp_path, "root", Path("/"), {})


@pytest.mark.parametrize(("hook", "scripts"), [("/a", "/a"), ("/a", "/a/b"), ("/a/b", "/a")])
def test_scripts_and_hook_need_separate_directories(tmp_path: Path, hook: str, scripts: str) -> None:
    settings = parse_settings({"paths": {"hook": hook, "scripts": scripts}}, "test")
    with pytest.raises(InputError, match="use two directories"):
        Site(settings, tmp_path, tmp_path, tmp_path, tmp_path, "slurm", Path("/"), {})


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away, which takes root")
def test_scripts_are_owned_by_root_and_hook_files_by_the_daemons_user(tmp_path: Path) -> None:
    """An older release made SlurmUser the owner of all files."""
    site = replace(make_site(tmp_path), user="daemon")
    apply(site)
    uid, gid = site.owner or (0, 0)
    assert uid
    scripts, hook = tmp_path / "scripts", tmp_path / "hook"
    for path in (scripts, *scripts.iterdir()):
        os.chown(path, uid, gid)
    wrong = {step.where for step in check(site) if step.state is State.DIFFERS}
    assert wrong == {str(path) for path in (scripts, *scripts.iterdir())}
    apply(site)
    assert {
        path.stat().st_uid for path in (scripts, *(scripts / name for name in (job_submit.MODULE, "asrpt-prolog")))
    } == {0}
    assert {path.stat().st_uid for path in (hook, *hook.iterdir())} == {uid}
    assert states(site) == {State.PRESENT}


# slurm.conf


@pytest.mark.parametrize("release", ["22.05", "24.11", "26.05"])
def test_the_lab_has_all_wanted_lines_of_slurm_conf(release: str) -> None:
    config = parse_config((ROOT / "tests" / "recorded" / release / "config.txt").read_text())
    config |= {"EpilogSlurmctld": "/lab/etc/asrpt-epilog-slurmctld"}  # the labs of the recordings had none
    found = wanted_lines(config, Path("/lab/etc"))
    assert {line.state for line in found} == {State.PRESENT}
    elsewhere = wanted_lines(config, Path("/elsewhere"))
    scripts = [line for line in elsewhere if "rolog" in line.text or "Epilog" in line.text]
    assert {line.state for line in scripts} == {State.PRESENT}  # recognized by name, in any directory


def test_missing_and_differing_lines_of_slurm_conf_are_reported(tmp_path: Path) -> None:
    site_prolog = tmp_path / "prolog"
    site_prolog.write_text("#!/bin/sh\nmount-scratch\n")
    config = {
        "SLURM_VERSION": "24.11.5", "JobSubmitPlugins": "throttle", "GresTypes": "(null)",
        "SelectType": "select/linear",
        "Prolog[0]": str(site_prolog), "Epilog": "(null)", "TaskProlog": "(null)",
        "AccountingStorageType": "accounting_storage/slurmdbd", "AccountingStorageTRES": "cpu,mem",
    }  # fmt: skip
    found = {line.text: line.state for line in wanted_lines(config, Path("/h"))}
    assert found == {
        "JobSubmitPlugins=throttle,lua": State.DIFFERS,
        f"Prolog={site_prolog}": State.DIFFERS,
        "Epilog=/h/asrpt-epilog": State.MISSING,
        "TaskProlog=/h/asrpt-task-prolog": State.MISSING,
        "EpilogSlurmctld=/h/asrpt-epilog-slurmctld": State.MISSING,
        "GresTypes=gpu": State.MISSING,
        "SelectType=select/cons_tres": State.DIFFERS,
        "AccountingStorageTRES=cpu,mem,gres/gpu": State.MISSING,
        "AccountingStoreFlags=job_comment": State.MISSING,
    }
    site_prolog.write_text("#!/bin/sh\nmount-scratch\n/h/asrpt-prolog\n")
    assert wanted_lines(config, Path("/h"))[1].state is State.PRESENT


def test_without_slurms_configuration_no_lines_are_reported(tmp_path: Path) -> None:
    site = make_site(tmp_path, SLURM_VERSION="")
    assert lines(site) == []
    assert next(part for part in parts(site) if isinstance(part, Include)).needed


# the command


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["install", *words])
    assert done.exit_code == code, done.output
    return done.output


def test_installation_into_an_image_does_not_query_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASRPT_CONFIG", raising=False)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/asrpt-admin"])
    run("--check", "--root", str(tmp_path), code=1)
    assert list(tmp_path.iterdir()) == []
    run("--apply", "--root", str(tmp_path))
    assert "Slurm was not asked" in run("--check", "--root", str(tmp_path))
    unit = (tmp_path / "etc/systemd/system/asrptd.service").read_bytes()
    assert unit == shipped("etc", "systemd/asrptd.service")
    found = json.loads(run("--check", "--json", "--root", str(tmp_path)))
    assert {step["state"] for step in found["steps"]} == {"present"}
    assert found["slurm_conf"] == []
    assert "  GresTypes=gpu   # lets" in run("--check", "--root", str(tmp_path))
    said = run("--remove", "--root", str(tmp_path))
    assert "must no longer have these lines:\n  Prolog=/etc/slurm/asrpt/asrpt-prolog\n" in said
    assert "GresTypes" not in said
    assert set(files(tmp_path)) == {"etc/slurm/asrpt.toml", "etc/slurm/job_submit.lua"}


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away, which takes root")
def test_in_an_image_files_belong_to_the_images_own_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine may have another number for it, or no such user."""
    monkeypatch.delenv("ASRPT_CONFIG", raising=False)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/asrpt-admin"])
    image = str(tmp_path)
    said = run("--apply", "--root", image, "--user", "sched")
    assert "has no user sched, so all belongs to root" in said
    assert "has no /usr/bin/asrptd, which the units run" in said
    for path, text in (("etc/passwd", "root:x:0:0::/:\nsched:x:4711:4712::/:\n"), ("usr/bin/asrptd", "")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "var/lib/asrpt-hook/table.txt").write_text("learned")
    run("--check", "--root", image, "--user", "sched", code=1)
    assert "has no" not in run("--apply", "--root", image, "--user", "sched")
    run("--check", "--root", image, "--user", "sched")
    owners = {name: (tmp_path / name).stat().st_uid for name in ("var/lib/asrpt-hook", "etc/slurm/asrpt")}
    assert owners == {"var/lib/asrpt-hook": 4711, "etc/slurm/asrpt": 0}
    assert (tmp_path / "var/lib/asrpt-hook/wakeup").stat().st_uid == 4711
    assert (tmp_path / "var/lib/asrpt-hook/table.txt").read_text() == "learned"


def test_nothing_is_installed_if_slurm_does_not_answer(tmp_path: Path) -> None:
    config, units = tmp_path / "asrpt.toml", tmp_path / "units"
    paths = "".join(f'{name} = "{tmp_path}/{name}"\n' for name in ("state", "run", "hook", "scripts", "spool"))
    config.write_text(f'[slurm]\nbin_dir = "{tmp_path}"\nconf = "{tmp_path}/etc/slurm.conf"\n[paths]\n{paths}')
    words = ["install", "--config", str(config), "--units", str(units)]
    found = CliRunner().invoke(app, [*words, "--check", "--json"])
    assert str(tmp_path / "etc" / "job_submit.lua") in found.stdout  # where asrpt.toml says
    done = CliRunner().invoke(app, [*words, "--apply", "--user", "root"])
    assert isinstance(done.exception, AsrptError)
    assert "start slurmctld" in str(done.exception)
    assert os.listdir(tmp_path) == ["asrpt.toml"]


def test_a_running_asrptd_must_be_restarted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = make_site(tmp_path)
    state = site.settings.paths.state
    state.mkdir(exist_ok=True)
    lead = LeaderLock(state)
    assert lead.take()
    show_next([], [], site)
    lead.close()
    assert "systemctl restart asrptd" in capsys.readouterr().out
    show_next([], [], site)
    assert "systemctl enable --now asrptd" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["--check", "--apply"], ["--apply", "--remove"]])
def test_exactly_one_of_check_apply_and_remove_is_required(words: list[str]) -> None:
    done = CliRunner().invoke(app, ["install", *words])
    assert isinstance(done.exception, InputError)


@pytest.mark.parametrize("what", ["--check", "--apply", "--remove"])
def test_a_lab_is_refused(tmp_path: Path, what: str) -> None:
    """Units of this machine must not run the asrptd of a lab."""
    config = tmp_path / "etc" / "asrpt.toml"
    config.parent.mkdir()
    config.write_text(f'[slurm]\nbin_dir = "{tmp_path}"\n')
    (tmp_path / "lab.json").write_text("{}")
    done = CliRunner().invoke(app, ["install", what, "--config", str(config)])
    assert isinstance(done.exception, InputError)
    assert "is of a lab" in str(done.exception)
    assert sorted(os.listdir(tmp_path)) == ["etc", "lab.json"]


def test_shipped_files_are_found() -> None:
    assert (folders(HOOKS)[0] / job_submit.MODULE).is_file()
    with pytest.raises(FileNotFoundError):
        shipped(HOOKS, "nothing")
