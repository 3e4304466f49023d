"""What sbatch would make of a script file: the job name and the comment that the hook gets to see."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

_OPTIONS = {"-J": "name", "--job-name": "name", "--comment": "comment"}


def directives(script: bytes) -> dict[str, str]:
    """``name`` and ``comment`` from the #SBATCH lines, as far as given; sbatch stops at the first command."""
    found: dict[str, str] = {}
    for line in script.split(b"\n"):
        if line.strip() and not line.strip().startswith(b"#"):
            break
        if line.startswith(b"#SBATCH"):
            found |= _options(_words(os.fsdecode(line[len(b"#SBATCH") :])))
    return found


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # an open quote: sbatch would refuse the script, there is nothing to find out
        return []


def _options(words: list[str]) -> dict[str, str]:
    """Our options among ``words``, in each spelling of getopt: --key=value, --key value, -K value, -Kvalue."""
    found: dict[str, str] = {}
    for i, word in enumerate(words):
        key, equals, value = word.partition("=")
        if not word.startswith("--") and word[:2] in _OPTIONS and len(word) > 2:
            found[_OPTIONS[word[:2]]] = word[2:]
        elif key in _OPTIONS and equals:
            found[_OPTIONS[key]] = value
        elif word in _OPTIONS and i + 1 < len(words):
            found[_OPTIONS[word]] = words[i + 1]
    return found


def job_name(script: bytes, path: Path) -> str:
    """The job name without --job-name: $SBATCH_JOB_NAME, else the #SBATCH line, else the file's name."""
    return os.environ.get("SBATCH_JOB_NAME") or directives(script).get("name") or path.name
