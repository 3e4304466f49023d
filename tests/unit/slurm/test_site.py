"""The limits and priorities of a site, made from the same answers of slurmctld."""

from pathlib import Path

import pytest

from slurm_asrpt.slurm import parse
from slurm_asrpt.slurm.site import needs_accounts, site_of

RECORDED = Path(__file__).parents[2] / "recorded" / "22.05"
CONFIG = parse.parse_config((RECORDED / "priorities-config.txt").read_text(encoding="utf-8"))
PARTITIONS = (RECORDED / "priorities-partitions.txt").read_text(encoding="utf-8")
ASSOC_MGR = (RECORDED / "priorities-assoc_mgr.txt").read_text(encoding="utf-8")
LICENSES = "LicenseName=matlab Total=3 Used=1 Free=2 Reserved=0 Remote=no\n"


@pytest.mark.parametrize("enforce", ["none", "associations,limits,qos"])
def test_limits_are_in_force_if_slurm_enforces_them_and_priorities_in_any_case(enforce):
    site = site_of(CONFIG | {"AccountingStorageEnforce": enforce}, PARTITIONS, LICENSES, ASSOC_MGR)
    assert site.limits.licenses == {"matlab": 3.0}
    assert bool(site.limits.qos) is (enforce != "none")
    assert site.priorities.qos.keys() == {"normal", "high"}
    assert site.priorities.weights is not None


def test_qos_and_associations_are_asked_for_only_where_something_comes_from_them():
    plain = {"PriorityType": "priority/basic"}
    assert not needs_accounts(plain)
    assert needs_accounts(plain | {"AccountingStorageEnforce": "associations,limits"})
    assert needs_accounts(CONFIG)
