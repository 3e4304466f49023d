"""Wrappers around Slurm's own programs (setting slurm.bin_dir) that corrupt every n-th answer.

A file has the mode and n. Modes: pass, fail (exit code 1 and a message, without effect), after (takes effect, then exit
code 1), hang, cut (half of the answer), garbage, unknown (fields and states of a later release).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

PROGRAMS = ("squeue", "scontrol", "scancel")
MODES = ("fail", "after", "hang", "cut", "garbage", "unknown")

_SCRIPT = """#!/bin/sh
read -r mode every < '{folder}/mode'
[ "$mode" = pass ] && exec '{program}' "$@"
read -r count < '{folder}/count'
echo $((count + 1)) > '{folder}/count'
[ $((count % every)) -eq 0 ] || exec '{program}' "$@"
echo "$mode" >> '{folder}/corrupted'
case $mode in
    fail) echo '{name}: error: Unable to contact slurm controller (connect failure)' >&2; exit 1 ;;
    after) '{program}' "$@"; echo '{name}: error: Socket timed out' >&2; exit 1 ;;
    hang) exec sleep 600 ;;
    cut) '{program}' "$@" > '{folder}/answer'; head -c $(($(wc -c < '{folder}/answer') / 2)) '{folder}/answer' ;;
    garbage) head -c 5000 /dev/urandom ;;
    unknown) '{program}' "$@" | exec /usr/bin/python3 -E '{folder}/unknown.py' ;;
esac
"""

_UNKNOWN = """import json, sys
text = sys.stdin.read()
try:
    answer = json.loads(text)
    for job in answer["jobs"]:
        job.update({"quantum_state": {"set": True, "number": [1, None]}, "tasks_v2": "many"})
        job["flags"] = [*(job.get("flags") or ()), "NOT_INVENTED_YET"]
    text = json.dumps({**answer, "meta": None, "errors": [], "warnings": [{"unheard": "of"}]})
except (ValueError, KeyError, TypeError, AttributeError):
    text = text.replace(" State=IDLE", " Quantum=a=b State=IDLE+HOVERING", 1)
sys.stdout.write(text)
"""


class Wrapper:
    """The wrappers of one lab, in their own directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "unknown.py").write_text(_UNKNOWN, encoding="utf-8")
        self.set("pass")
        for name in PROGRAMS:
            program = shutil.which(name)
            assert program is not None
            script = folder / name
            script.write_text(_SCRIPT.format(folder=folder, program=program, name=name), encoding="utf-8")
            script.chmod(0o755)

    def set(self, mode: str, every: int = 10) -> None:
        """Set the mode from the next call on."""
        (self.folder / "corrupted").unlink(missing_ok=True)
        (self.folder / "count").write_text("1\n", encoding="ascii")
        temporary = self.folder / "mode.new"
        temporary.write_text(f"{mode} {every}\n", encoding="ascii")
        os.replace(temporary, self.folder / "mode")

    def corrupted(self) -> int:
        """The number of answers corrupted since the mode was set."""
        file = self.folder / "corrupted"
        return len(file.read_text(encoding="ascii").splitlines()) if file.exists() else 0
