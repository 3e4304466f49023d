"""The hook's Lua module in a separate process, with each Lua that this machine has."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.core.units import Unit
from slurm_asrpt.hook.group import Identity
from slurm_asrpt.hook.hook_conf import render_hook_conf
from slurm_asrpt.hook.table import Answer
from slurm_asrpt.hook.tag import parse_features
from slurm_asrpt.profile.sizes import parse_sizes

ROOT = Path(__file__).resolve().parents[2]
MODULE = ROOT / "plugin_hooks" / "job_submit_asrpt.lua"
INTERPRETERS = [name for name in ("lua5.1", "lua5.3", "lua5.4") if shutil.which(name)]


class LuaHook:
    def __init__(self, interpreter: str) -> None:
        self.interpreter = interpreter
        self._rules: GroupSettings | None = None
        driver = Path(__file__).with_name("lua_hook.lua")
        self._process = subprocess.Popen(
            [interpreter, str(driver), str(MODULE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def close(self) -> None:
        self._process.communicate()

    def ask(self, *fields: bytes | str | int) -> bytes:
        assert self._process.stdin
        assert self._process.stdout
        raw = [f if isinstance(f, bytes) else str(f).encode() for f in fields]
        self._process.stdin.write(b"%d\n" % len(raw) + b"".join(b"%d\n%s" % (len(f), f) for f in raw))
        self._process.stdin.flush()
        size = int(self._process.stdout.readline())
        answer = self._process.stdout.read(size)
        assert not answer.startswith(b"DRIVER ERROR"), answer
        return answer

    def describe(
        self, uid: int, name: bytes, script: bytes, args: Sequence[bytes], dataset: bytes, rules: GroupSettings
    ) -> Identity:
        if rules is not self._rules:
            self._rules = rules
            self.ask("rules", render_hook_conf([], 0, 0, rules))
        answer = self.ask("describe", uid, name, script, dataset, *args).decode()
        group, program, features, sizes = answer.split(" ")
        return Identity(group, program, parse_features(features), parse_sizes(sizes))

    def forget_rules(self) -> None:
        """Make the next ``describe`` send its rules again."""
        self._rules = None

    def lookup(self, path: Path, keys: Sequence[str], features: Mapping[str, float]) -> tuple[Answer, str]:
        """The hook's answer; its level is the number of the key in ``keys``, from 1."""
        wanted = [repr(features.get(name, "")) for name in ("epochs", "steps")]
        answer = self.ask("lookup", str(path), *wanted, *keys).decode()
        n, low, high, mean, level, unit, trouble = answer.split(" ", 6)
        return Answer(int(n), int(low), int(high), level.strip("-"), int(mean), Unit(unit)), trouble

    def submit(
        self, hook_dir: Path, fail: str = "", default: str = "gpu", **fields: bytes | str | int
    ) -> dict[str, list[str]]:
        """Submit a job with these job_desc fields. Returns {"set": [...], "log_error": [...], "rc": [...], ...}."""
        flat: list[bytes | str | int] = []
        for key, value in fields.items():
            kind = "argv" if key == "argv" else "n" if isinstance(value, int) else "s"
            flat += [key, kind, value]
        result: dict[str, list[str]] = {"set": [], "log_error": [], "log_user": []}
        for line in self.ask("submit", str(hook_dir), default, fail, *flat).decode().split("\n"):
            key, _, rest = line.partition(" ") if line.startswith(("set ", "log_")) else line.partition("=")
            result.setdefault(key.rstrip(":"), []).append(rest)
        return result
