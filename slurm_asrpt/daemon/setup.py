"""Prepares and checks what asrptd needs: directories, settings, the policy, the client, and Slurm's configuration."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from slurm_asrpt.config.settings import Client, Mode, Settings
from slurm_asrpt.core.policies import (
    banded_policies,
    make_policy,
    policy_names,
    policy_settings,
)
from slurm_asrpt.core.policies.base import Policy
from slurm_asrpt.core.policies.registry import OptionError, plugin_errors
from slurm_asrpt.errors import AsrptError, Collected, InputError, SlurmError, as_one, one_line, printable
from slurm_asrpt.files import check_trusted_folder, make_folder, trusted_users
from slurm_asrpt.hook.hook_conf import render_hook_conf
from slurm_asrpt.slurm import pyslurm
from slurm_asrpt.slurm.client import SlurmClient, SlurmConfig
from slurm_asrpt.spool import hosts_dir, progress_dir

LOG = logging.getLogger("asrptd")


def prepare(settings: Settings) -> None:
    """Create the directories and check the settings, so that a standby also fails at once.

    Raises AsrptError, InputError.
    """
    for error in plugin_errors():
        LOG.warning("policy %s of %s is not available: %s", error.name, error.source, printable(error.why))
    errors = Collected()
    with errors:
        _check_slurm_conf(settings.slurm.conf)
    with errors:
        configured_policy(settings)
    with errors:
        render_hook_conf(settings.slurm.partitions, 0, 0.0, settings.group)
    errors.check()
    _make_folders(settings)


def _check_slurm_conf(path: str) -> None:
    """Raises InputError: without its file a Slurm command searches the network for one, and is silent for long."""
    if path and not Path(path).is_file():
        raise InputError(f"slurm.conf: {path} is not there; mend that setting, or bring Slurm up first")


def configured_policy(settings: Settings) -> Policy:
    """Create the configured policy. Raises InputError, which lists the known policies."""
    name = settings.policy.name
    fabric = settings.fabric.to_core()
    if settings.policy.fairshare_bands and name in policy_names() and name not in (able := banded_policies()):
        raise InputError(f"policy.fairshare_bands: {name} does not support bands; use {', '.join(able)}")
    chosen = settings.policy.chosen(policy_settings(name))
    try:
        return make_policy(name, fabric=fabric, **chosen)
    except OptionError as error:
        raise as_one(InputError(f"policy: {problem}") for problem in error.problems) from None
    except ValueError as error:
        raise InputError(f"{'policy' if name in policy_names() else 'policy.name'}: {error}") from None


def check_slurm(settings: Settings, config: SlurmConfig) -> None:
    """Raises InputError if Slurm lacks a feature that the mode or the bands need."""
    if settings.daemon.mode is Mode.ORDER and not config.multifactor:
        raise InputError("daemon.mode: mode order requires PriorityType=priority/multifactor, for SiteFactor")
    if settings.policy.fairshare_bands and not (config.multifactor and config.accounts):
        raise InputError("policy.fairshare_bands: requires PriorityType=priority/multifactor and slurmdbd")
    if settings.daemon.mode is not Mode.SHADOW and os.geteuid() not in (0, config.slurm_uid):
        LOG.warning(
            "asrptd runs as user %d, SlurmUser is %d: Slurm refuses its updates unless it is an operator "
            "(sacctmgr modify user NAME set adminlevel=operator)",
            os.geteuid(),
            config.slurm_uid,
        )


def preferred_client(settings: Settings, client: SlurmClient, config: SlurmConfig) -> SlurmClient:
    """The pyslurm client if the settings allow it and it can be loaded, else the given client."""
    if settings.slurm.client is Client.CLI:
        return client
    try:
        found = pyslurm.load(settings.slurm, config.version)
    except SlurmError as why_not:
        LOG.debug("pyslurm is not used: %s", one_line(why_not))
        return client
    LOG.info("pyslurm is used where possible (slurm.client)")
    return found


def _make_folders(settings: Settings) -> None:
    paths = settings.paths
    folders: dict[Path, int] = {
        paths.state: 0o700,
        paths.run: 0o755,
        paths.hook: 0o755,
        paths.spool: 0o755,
        hosts_dir(paths.spool): 0o755,
        progress_dir(paths.spool): 0o755,
    }
    for folder, mode in folders.items():
        try:
            make_folder(folder, mode)
            check_trusted_folder(folder.resolve(), trusted_users())
        except OSError as error:
            remedy = "run asrptd as root or SlurmUser; only these may write its directories (chown, chmod go-w)"
            raise AsrptError(f"{folder} cannot be used ({error.strerror}); {remedy}") from error
