"""The site that is simulated beside a policy, and its limits: those in files, else those of the Slurm that answers."""

from __future__ import annotations

import time
from pathlib import Path

from slurm_asrpt_cli._app.progress import patience

from slurm_asrpt.config.settings import SlurmSettings
from slurm_asrpt.errors import SlurmError, one_line
from slurm_asrpt.sim.what_if import KnownSite
from slurm_asrpt.slurm.cli import CliClient
from slurm_asrpt.slurm.limits import SiteLimits
from slurm_asrpt.traces.accounting import parse_limits, parse_site, read_text


def known_site(file: Path | None, slurm: SlurmSettings | None) -> tuple[KnownSite | None, str]:
    """The site, and why the Slurm that was asked did not answer. slurm: None: it is not asked. Raises InputError."""
    if file:
        return KnownSite(parse_site(read_text(file), str(file)), str(file)), ""
    if slurm is None:
        return None, ""
    try:
        with patience("waiting for Slurm"):
            return KnownSite(CliClient(slurm).site(), "scontrol show config", time.time()), ""
    except SlurmError as error:
        return None, one_line(error)


def limits_of(site: KnownSite | None, file: Path | None) -> SiteLimits | None:
    """The limits in a file, else those that the site enforces, if any. Raises InputError."""
    if file:
        return parse_limits(read_text(file), str(file))
    return site.site.limits if site and site.site.limits.any else None
