"""Why a job is in its group: what of its script counts, and what was set aside by which rule."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.hook.group import counted_name, identity
from slurm_asrpt.hook.keys import keys_of
from slurm_asrpt.hook.wordrules import make_rules
from slurm_asrpt.hook.words import Reader, fold_dates, read_script


@dataclass(frozen=True)
class Line:
    """A line of a script: what of it counts, and what does not, as (rule, words)."""

    text: str
    counts: str
    set_aside: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Dissected:
    """A submission taken apart. keys: from narrow to wide, as the hook looks them up."""

    group: str
    program: str
    programs: list[str]
    features: dict[str, float]
    sizes: str
    keys: dict[str, str]
    job_name: str
    uid: int
    dataset: str
    lines: list[Line]

    @property
    def counted(self) -> list[str]:
        return [line.counts for line in self.lines if line.counts]


def dissect(uid: int, name: bytes, script: bytes, dataset: bytes, gpus: int, settings: GroupSettings) -> Dissected:
    """Take a submission without arguments apart."""
    notes: list[tuple[str, str]] = []
    reader = Reader(make_rules(settings), lambda rule, word: notes.append((rule, os.fsdecode(word))))
    lines, marks = [], list[int]()
    for text in read_script(script, reader):
        lines.append((text, len(notes)))
        marks.append(len(reader.out))
    ends = [*(at for _, at in lines), len(notes)][1:]  # none for a script without lines
    fold = fold_dates if settings.fold_dates else bytes
    parts = [b" ".join(reader.out[a:b]).strip() for a, b in zip(marks, [*marks, len(reader.out)][1:], strict=True)]
    read = [
        Line(os.fsdecode(text), os.fsdecode(fold(part)), tuple(notes[at:end]))
        for (text, at), end, part in zip(lines, ends, parts, strict=True)
    ]
    job = identity(uid, name, reader, (), dataset)
    return Dissected(
        group=job.group,
        program=job.program,
        programs=[os.fsdecode(name) for name in reader.programs],
        features=job.features,
        sizes=str(job.sizes),
        keys=dict(keys_of(job.group, job.program, uid, gpus, job.features)),
        job_name=os.fsdecode(counted_name(name, settings)),
        uid=uid,
        dataset=os.fsdecode(dataset),
        lines=read,
    )


def differences(one: Dissected, two: Dissected) -> list[tuple[str, str]]:
    """Why two submissions are in two groups: (what, as in a diff) for each difference; none if they are in one."""
    named = [("job name", one.job_name, two.job_name), ("dataset hint", one.dataset, two.dataset)]
    named += [("user", str(one.uid), str(two.uid))]
    found = [(what, f"{a or '(none)'} / {b or '(none)'}") for what, a, b in named if a != b]
    return found + [("line", text) for text in _diff(one.counted, two.counted)]


def _diff(one: Sequence[str], two: Sequence[str]) -> list[str]:
    return [line for line in difflib.ndiff(one, two) if line.startswith(("- ", "+ "))]
