"""Completion of option values: policies, profiles, the user's jobs. Typer calls these for the shell."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Mapping

Words = Callable[[], Iterable[str]]

_HARMLESS = re.compile(r"[A-Za-z0-9_.+-]+")


def one_of(words: Words) -> Callable[[str], list[str]]:
    """Complete a single word."""
    return lambda incomplete: [word for word in _known(words) if word.startswith(incomplete)]


def some_of(words: Words) -> Callable[[str], list[str]]:
    """Complete the last word of a comma-separated list."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{word}" for word in _known(words) if word.startswith(last)]

    return complete


def _known(words: Words) -> list[str]:
    """The words, or none if they cannot be found: a completion must not print errors.

    Shells may evaluate the words, so only words of harmless characters are returned.
    """
    with contextlib.suppress(Exception):
        return [word for word in words() if _HARMLESS.fullmatch(word)]
    return []


def my_jobs() -> Iterable[str]:
    """IDs of the user's jobs that asrptd knows."""
    from slurm_asrpt_cli._app.users import own_name
    from slurm_asrpt_cli.status.status_file import published, status_folder

    me = own_name()
    return [job.job_id for job in published(status_folder(None), time.time()).jobs if job.user == me]


def states() -> Iterable[str]:
    from slurm_asrpt.core.reasons import Phase

    return [phase.name.lower() for phase in Phase]


def sort_keys() -> Iterable[str]:
    from slurm_asrpt_cli.status.selection import SORTS

    return SORTS


def partitions() -> Iterable[str]:
    """The managed partitions."""
    from slurm_asrpt.config.settings import load_settings

    return load_settings(None).slurm.partitions


def policies() -> Iterable[str]:
    from slurm_asrpt.core.policies import policy_names

    return policy_names()


def simulated_policies() -> Iterable[str]:
    return [*policies(), *(f"{name}-perfect" for name in policies()), "all"]


def profiles() -> Iterable[str]:
    """Shipped profiles and this site's."""
    from slurm_asrpt.config.settings import load_settings
    from slurm_asrpt.profile.schema import known_names

    return known_names(load_settings(None).paths.profiles)


def models() -> Iterable[str]:
    """The stored models."""
    from slurm_asrpt.config.settings import load_settings
    from slurm_asrpt.predict.model_store import list_models
    from slurm_asrpt.predict.retrain import models_folder

    return [listed.name for listed in list_models(models_folder(load_settings(None)))]


def trace_kinds() -> Iterable[str]:
    from slurm_asrpt.traces import AUTO, formats

    return [AUTO, *formats()]


def predictors() -> Iterable[str]:
    from slurm_asrpt.predict.predictors import predictor_names

    return predictor_names()


def round_policies() -> Iterable[str]:
    from slurm_asrpt.core.rounds.policies import round_policy_names

    return round_policy_names()


BY_METAVAR: Mapping[str, Callable[[str], list[str]]] = {
    "JOB": one_of(my_jobs),
    "JOBS": some_of(my_jobs),
    "STATES": some_of(states),
    "COLUMNS": some_of(sort_keys),
    "PARTITIONS": some_of(partitions),
    "POLICY": one_of(policies),
    "POLICIES": some_of(simulated_policies),
    "PROFILE": one_of(profiles),
    "MODEL": one_of(models),
    "KIND": one_of(trace_kinds),
    "PREDICTOR": one_of(predictors),
    "ROUND-POLICY": one_of(round_policies),
}
"""Completers by the metavar of an option or argument."""
