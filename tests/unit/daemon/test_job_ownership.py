"""Only slurm_asrpt/daemon/jobs assigns to the state of a managed job; others call its methods."""

import ast
from dataclasses import fields
from pathlib import Path

import pytest

import slurm_asrpt
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from tests.benches.daemon import Bench

PACKAGE = Path(slurm_asrpt.__file__).parent
OWNER = PACKAGE / "daemon" / "jobs"
FIELDS = frozenset(each.name for each in fields(ManagedJob))
COMMON = frozenset({"state", "reason"})
"""Fields that rows of status.json have, too."""


def assigned(source: str) -> set[str]:
    """Attributes of other objects that are assigned to, deleted, or set by name, with the name of the object."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            found.add(ast.unparse(node))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "object.__setattr__", "delattr"):
            name = node.args[1]
            found.add(f"{ast.unparse(node.args[0])}.{name.value if isinstance(name, ast.Constant) else '*'}")
    return found


def foreign_assignments(source: str) -> set[str]:
    """Assignments to possible fields of a managed job; outside of its package, ``self`` is never one."""
    found = set()
    for target in assigned(source):
        owner, _, name = target.rpartition(".")
        is_field = name in FIELDS and not (name in COMMON and owner == "row")
        if owner != "self" and (is_field or name == "*"):
            found.add(target)
    return found


@pytest.mark.parametrize(
    "source",
    [
        "job.pin = None",
        "tracked.lease_until += 1",
        "self._jobs[name].state = 1",
        "a.mapped, b = 1, 2",
        "del job.forecast",
        "setattr(job, 'service', None)",
        "setattr(job, name, None)",
        "for job.reason in found: pass",
    ],
)
def test_the_ownership_check_finds_assignments(source: str) -> None:
    assert foreign_assignments(source)


@pytest.mark.parametrize(
    "source", ["self.pin = None", "row.state = 1", "job.pinned(1)", "pin = job.pin", "row.rank = 1"]
)
def test_the_ownership_check_ignores_other_code(source: str) -> None:
    assert not foreign_assignments(source)


def test_the_owning_package_assigns_to_its_fields() -> None:
    written = assigned((OWNER / "managed_job.py").read_text(encoding="utf-8"))
    assert {f"self.{name}" for name in ("pin", "state", "service", "lease_until")} <= written


def test_no_other_module_assigns_to_a_field_of_a_managed_job() -> None:
    modules = [path for path in (PACKAGE / "daemon").rglob("*.py") if OWNER not in path.parents]
    assert len(modules) > 20
    found = {str(path.relative_to(PACKAGE)): foreign_assignments(path.read_text(encoding="utf-8")) for path in modules}
    assert {name: what for name, what in found.items() if what} == {}


def test_jobs_alike_are_different_jobs(bench: Bench) -> None:
    """Lists of jobs are compared: one job must not stand for another one with the same saved state."""
    first, second = bench.slurm.submit(1, 5), bench.slurm.submit(1, 5)
    bench.slurm.starts_jobs = False
    bench.cycle(1)
    one, other = bench.scheduling.jobs[first], bench.scheduling.jobs[second]
    assert one.submit_time == other.submit_time
    assert one != other
    assert len({one, other, bench.scheduling.jobs[first]}) == 2
