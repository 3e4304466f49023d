"""The options on a job script's #SBATCH lines that the hook gets to see: job name, comment, GPUs."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

_OPTIONS = {"-J": "name", "--job-name": "name", "--comment": "comment"}
_SIZES = {
    "-G": "job", "--gpus": "job", "--gpus-per-node": "node", "--gres": "gres", "--gpus-per-task": "task",
    "-N": "nodes", "--nodes": "nodes", "-n": "tasks", "--ntasks": "tasks", "--ntasks-per-node": "tasks_per_node",
}  # fmt: skip
_COUNT = re.compile(r"(?:[A-Za-z0-9_.-]+:)?([0-9]{1,6})")


def sbatch_words(script: bytes) -> list[str]:
    """The words of all #SBATCH lines before the first command, as sbatch reads them."""
    found: list[str] = []
    for line in script.split(b"\n"):
        if line.strip() and not line.strip().startswith(b"#"):
            break
        if line.startswith(b"#SBATCH"):
            found += _words(os.fsdecode(line[len(b"#SBATCH") :]))
    return found


def directives(script: bytes, options: Mapping[str, str] = _OPTIONS) -> dict[str, str]:
    """The options on the #SBATCH lines, by default ``name`` and ``comment``."""
    return _options(sbatch_words(script), options)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # an open quote: sbatch would reject the script
        return []


def _options(words: list[str], options: Mapping[str, str]) -> dict[str, str]:
    """The options among ``words``, in each form of getopt: --key=value, --key value, -K value, -Kvalue."""
    found: dict[str, str] = {}
    for i, word in enumerate(words):
        key, equals, value = word.partition("=")
        if not word.startswith("--") and word[:2] in options and len(word) > 2:
            found[options[word[:2]]] = word[2:]
        elif key in options and equals:
            found[options[key]] = value
        elif word in options and i + 1 < len(words):
            found[options[word]] = words[i + 1]
    return found


def gpus_asked(script: bytes) -> int:
    """All GPUs that the #SBATCH lines request, counted as the hook does; 0 if they request none."""
    found = directives(script, _SIZES)
    nodes = _count(found.get("nodes", "1").partition("-")[0])
    tasks = _count(found["tasks"]) if "tasks" in found else nodes * _count(found.get("tasks_per_node", "1"))
    gres = [item.removeprefix("gpu:") for item in found.get("gres", "").split(",") if re.match("gpu(:|$)", item)]
    of_node = (_listed(found["node"]) if "node" in found else 0) + sum(map(_count, gres))
    if "job" in found:
        return _listed(found["job"])
    if of_node and not ("task" in found and "tasks" in found and "nodes" not in found):
        return of_node * nodes
    return _listed(found["task"]) * tasks if "task" in found else 0


def _listed(text: str) -> int:
    return sum(map(_count, text.split(",")))


def _count(text: str) -> int:
    found = _COUNT.fullmatch(text)
    return int(found[1]) if found else 1


def job_name(script: bytes, path: Path) -> str:
    """The job name without --job-name: $SBATCH_JOB_NAME, else the #SBATCH line, else the file's name."""
    return os.environ.get("SBATCH_JOB_NAME") or directives(script).get("name") or path.name
