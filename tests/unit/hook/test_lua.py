"""How Python runs the hook's Lua: the file, its sandbox, and the programs that do not need it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slurm_asrpt.hook.group import keys_of
from slurm_asrpt.hook.lua import FILE_NAME, call

CALL = """\
import sys
from pathlib import Path
from slurm_asrpt import shipped
shipped.PACKAGE = Path(sys.argv[1]) / "slurm_asrpt"
from slurm_asrpt.hook.lua import call
print(call("run", print, ["a"]))
"""


def run_instead(
    folder: Path, source: str, mode: int = 0o644, folder_mode: int = 0o755
) -> subprocess.CompletedProcess[str]:
    """Run Python with this file instead of the hook's, and call its function ``run`` with a Python function."""
    (folder / "slurm_asrpt").mkdir(mode=0o755)
    hooks = folder / "plugin_hooks"
    hooks.mkdir()
    (hooks / FILE_NAME).write_text(source)
    (hooks / FILE_NAME).chmod(mode)
    hooks.chmod(folder_mode)
    return subprocess.run([sys.executable, "-c", CALL, str(folder)], capture_output=True, text=True, check=False)


def test_the_hook_has_no_access_to_the_system(tmp_path: Path) -> None:
    source = "local names = {} for name in pairs(_ENV) do names[#names + 1] = name end table.sort(names)\n"
    source += "for name in pairs(io) do names[#names + 1] = 'io.' .. name end\n"
    source += "return { run = function() return table.concat(names, ' ') end }"
    seen = "assert error io ipairs math next pairs pcall select setmetatable string table tonumber tostring type"
    assert run_instead(tmp_path, source).stdout == f"b'{seen} io.open'\n"


@pytest.mark.parametrize("reach", ["f.__self__", "f.__call__", "pcall.__class__", "f['__globals__']"])
def test_the_hook_cannot_inspect_a_python_function(tmp_path: Path, reach: str) -> None:
    done = run_instead(tmp_path, f"return {{ run = function(f) return tostring({reach}) end }}")
    assert done.returncode
    assert "is not for Lua" in done.stderr or "index a function value" in done.stderr


def test_the_hook_writes_no_file(tmp_path: Path) -> None:
    target = tmp_path / "written"
    done = run_instead(tmp_path, f"return {{ run = function() return io.open({str(target)!r}, 'w') end }}")
    assert done.returncode == 0
    assert not target.exists()


@pytest.mark.parametrize(("mode", "folder_mode"), [(0o666, 0o755), (0o664, 0o755), (0o644, 0o777)])
def test_a_file_that_others_can_write_is_not_run(tmp_path: Path, mode: int, folder_mode: int) -> None:
    done = run_instead(tmp_path, "return { run = function() return 1 end }", mode, folder_mode)
    assert "PermissionError" in done.stderr
    assert "others could have written it" in done.stderr


def test_bytes_pass_through_unchanged() -> None:
    every = bytes(range(256))
    assert call("fold_dates", every) == every


def test_lua_errors_become_value_errors() -> None:
    with pytest.raises(ValueError, match="arithmetic"):
        keys_of("no group", "", 1, 1, {})


def test_the_daemon_and_asrpt_status_do_not_need_lua() -> None:
    code = """\
import sys
import slurm_asrpt.daemon.main, slurm_asrpt_cli.status.command, slurm_asrpt.history.importing
from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.hook.hook_conf import render_hook_conf
from slurm_asrpt.hook.tag import parse_tag
render_hook_conf(["gpu"], 600, 0, GroupSettings())
assert parse_tag("asrpt1:g=0123456789abcdef;n=1")
print([name for name in sys.modules if "lupa" in name])
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
