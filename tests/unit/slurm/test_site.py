"""The limits, priorities and preemption of a site, as different releases show the same ones."""

import math
from pathlib import Path

import pytest

from slurm_asrpt.slurm import parse
from slurm_asrpt.slurm.limits import Association, Qos
from slurm_asrpt.slurm.preemption import defaults_of, parse_qos
from slurm_asrpt.slurm.priorities import PartitionPriority
from slurm_asrpt.slurm.site import Site, needs_accounts, site_of

RECORDED = Path(__file__).parents[2] / "recorded"
RELEASES = sorted(file.parent.name for file in RECORDED.glob("*/site-config.txt"))


def read(release: str, name: str) -> str:
    return (RECORDED / release / f"site-{name}.txt").read_text(encoding="utf-8")


def site_in(release: str, **config: str) -> Site:
    texts = [read(release, name) for name in ("partitions", "licenses", "assoc_mgr")]
    return site_of(parse.parse_config(read(release, "config")) | config, *texts, qos_flags="")


def test_several_releases_are_recorded() -> None:
    assert RELEASES == ["22.05", "24.11", "26.05"]


@pytest.mark.parametrize("release", RELEASES)
def test_limits(release: str) -> None:
    limits = site_in(release).limits
    assert limits.qos == {
        "normal": Qos(
            "normal",
            job={"MaxWallPJ": 1440.0, "MaxTRESPJ=gres/gpu": 6.0},
            user={"MaxJobsPU": 5.0, "MaxTRESPU=cpu": 40.0, "MaxTRESPU=gres/gpu": 8.0},
            account={"MaxTRESPA=mem": 4096.0},
        ),
        "high": Qos("high", priority=1000.0),
        "scavenger": Qos("scavenger"),
    }
    account = limits.associations["lab", "", ""]
    assert account == Association(
        "lab", "", parent="root", group={"GrpJobs": 9.0, "GrpTRES=gres/gpu": 20.0, "GrpTRESMins=gres/gpu": 999.999}
    )
    user = limits.associations["lab", "asrpt1", ""]
    assert (user.job, user.priority, user.share) == ({"MaxJobs": 7.0}, 5.0, 1.0)
    assert limits.partition_qos == {"urgent": "normal"}
    assert limits.licenses == {"matlab": 3.0}


@pytest.mark.parametrize("release", RELEASES)
def test_minutes_of_running_jobs_count_as_slurmctld_counts_them(release: str) -> None:
    plain = site_in(release).limits
    assert (plain.safe, plain.period_s) == (False, 300.0)
    safe = site_in(
        release, AccountingStorageEnforce="associations,limits,qos,safe", PriorityCalcPeriod="00:01:00"
    ).limits
    assert (safe.safe, safe.period_s) == (True, 60.0)
    assert site_in(release, PriorityType="priority/basic").limits.period_s == math.inf


@pytest.mark.parametrize("release", RELEASES)
def test_priorities_and_preemption(release: str) -> None:
    found = site_in(release).priorities
    assert found.weights is not None
    assert (found.weights.qos, found.weights.fair_share, found.weights.max_age_s) == (100_000.0, 1000.0, 604_800.0)
    assert found.qos == {"normal": 0.0, "scavenger": 0.0, "high": 1000.0}
    assert found.partitions["urgent"] == PartitionPriority(10, 2.0)
    defaults = defaults_of(parse.parse_config(read(release, "config")))
    assert (defaults.by, defaults.mode) == ("qos", "REQUEUE")
    rules = parse_qos(read(release, "qos"), defaults)
    assert (rules.kinds["high"].may, rules.kinds["high"].grace_s) == (frozenset({"scavenger"}), 30.0)


def test_only_limits_that_slurm_enforces_are_in_force() -> None:
    site = site_in("22.05", AccountingStorageEnforce="none")
    assert site.limits.licenses == {"matlab": 3.0}
    assert not site.limits.qos
    assert site.priorities.qos.keys() == {"normal", "high", "scavenger"}


def test_qos_and_associations_are_asked_for_only_where_something_comes_from_them() -> None:
    plain = {"PriorityType": "priority/basic"}
    assert not needs_accounts(plain)
    assert needs_accounts(plain | {"AccountingStorageEnforce": "associations,limits"})
    assert needs_accounts({"PriorityType": "priority/multifactor", "PriorityWeightQOS": "1000"})
