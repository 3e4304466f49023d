"""A job script as the hook would see it, for the commands that predict from a script."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_asrpt_cli._app.users import find_user

from slurm_asrpt.errors import InputError
from slurm_asrpt.hook.attachments import read_attachments
from slurm_asrpt.hook.job_script import directives, gpus_asked, job_name
from slurm_asrpt.profile.sizes import Sizes

if TYPE_CHECKING:
    from slurm_asrpt.config.settings import Settings
    from slurm_asrpt.hook.group import Hints
    from slurm_asrpt.predict.evidence import PredictionInput


@dataclass(frozen=True)
class AsSbatch:
    """The options of sbatch that are not in the script; None and 0: as the script says."""

    args: Sequence[str] = ()
    name: str | None = None
    user: str | None = None
    comment: str | None = None
    gpus: int = 0


@dataclass(frozen=True)
class Submission:
    """A job script as it would be submitted. profile: named by the user, else attached by an admin; "" for none."""

    subject: PredictionInput
    job_name: str
    user: str
    hints: Hints
    profile: str
    sizes: Sizes


def read_script(path: Path) -> bytes:
    """The contents of a job script. Raises InputError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot read ({error.strerror}); give the job script to submit") from None


def as_submitted(settings: Settings, script: Path, given: AsSbatch) -> Submission:
    """Raises InputError."""
    from slurm_asrpt.hook.group import attached, describe, parse_comment
    from slurm_asrpt.predict.evidence import PredictionInput

    text = read_script(script)
    hints = parse_comment(os.fsencode(directives(text).get("comment", "") if given.comment is None else given.comment))
    uid, user_name = find_user(given.user)
    name = given.name or job_name(text, script)
    words = [os.fsencode(arg) for arg in given.args]
    job = describe(uid, os.fsencode(name), text, words, hints.dataset.encode(), settings.group)
    profile = attached(read_attachments(settings.paths.attachments), job.group, os.fsencode(name))
    profile = hints.profile or profile
    subject = PredictionInput(job.group, job.program, uid, given.gpus or gpus_asked(text), job.features, profile)
    return Submission(subject, name, user_name, hints, profile, job.sizes)
