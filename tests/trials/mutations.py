"""Change core in small ways, and run the tests around each change: python -m tests.trials.mutations (make mutations)

Each mutant has one change: a comparison, an operator, a number, a condition. The tests of ``tests/unit/core`` and the
property tests of its part run until one fails; a mutant that none notices survives and is printed. docs/mutations.md
says why those left are right. With ``--every 5``, every fifth mutant is tried, from ``--first`` on.

The tests run on a copy of the checkout, in forks of this process, which has imported the libraries.
"""

from __future__ import annotations

import argparse
import ast
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import networkx
import pandas
import pytest

ROOT = Path(__file__).parents[2]
LONGER, LEAST_S = 5.0, 60.0
"""A mutant that takes so many times as long as the tests without a change, and at least so long, counts as noticed."""
LIBRARIES = (hypothesis, networkx, pandas)


@dataclass(frozen=True)
class Part:
    """Modules below slurm_asrpt/core, and the files of tests that should notice a change, the quickest first."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]

    @property
    def paths(self) -> list[Path]:
        found = (path for module in self.modules for path in sorted((ROOT / "slurm_asrpt/core").glob(module)))
        return [path for path in found if path.name != "__init__.py"]


PARTS = {
    "heavy-edge": Part(
        ("placement/graph.py", "placement/heavy_edge.py"),
        ("unit/core/test_heavy_edge.py", "unit/core/test_graph_extensions.py", "unit/core/test_tensor_groups.py",
         "unit/core/test_blocks_of_servers.py", "property/test_core.py", "property/test_algorithm1.py"),
    ),
    "selection": Part(
        ("placement/splitter.py", "placement/selection.py", "placement/mapping.py", "placement/best_alpha.py",
         "free_index.py"),
        ("unit/core/test_selection.py", "unit/core/test_tensor_groups.py", "unit/core/test_blocks_of_servers.py",
         "unit/core/test_explain_shapes.py", "unit/core/test_gpu_types.py", "property/test_freeindex.py",
         "property/test_mixed_gpus.py", "property/test_within.py", "property/test_limits.py",
         "property/test_levels.py", "property/test_core.py",
         "property/test_algorithm1.py"),
    ),
    "timing": Part(
        ("timing/*.py", "placement/nic_sharing.py"),
        ("unit/core/test_timing.py", "unit/core/test_timing_extensions.py", "unit/core/test_blocks_of_servers.py",
         "unit/core/test_gpu_types.py", "property/test_ring.py", "property/test_contention.py",
         "property/test_levels.py", "property/test_algorithm1.py"),
    ),
    "asrpt": Part(
        ("policies/asrpt/*.py",),
        ("unit/core/test_asrpt.py", "property/test_asrpt_twins.py", "property/test_algorithm1.py",
         "property/test_limits.py", "property/test_contention.py", "property/test_theory.py"),
    ),
    "baselines": Part(
        ("policies/priority_queue.py",),
        ("unit/core/test_baselines.py", "property/test_simulation.py", "property/test_priorities.py",
         "property/test_limits.py"),
    ),
    "gated": Part(
        ("policies/gated/*.py", "policies/running_jobs.py"),
        ("unit/core/test_gated.py", "unit/core/test_gated_estimates.py", "unit/core/test_gated_requests.py",
         "unit/core/test_gated_similar.py", "unit/core/test_nodes_that_sleep.py", "unit/core/test_gpu_types.py",
         "unit/sim/test_interruptions.py", "unit/sim/test_fillers.py", "property/test_next_starts.py",
         "property/test_gated_switches.py", "property/test_node_parts.py", "property/test_slurm_preemption.py",
         "property/test_limits.py", "property/test_priorities.py", "property/test_priced_bound.py",
         "property/test_gated_promise.py", "property/test_interruptions_promise.py"),
    ),
    "backfill": Part(
        ("policies/easy_backfill.py", "policies/limit_tree.py", "policies/slurm_backfill/*.py", "multifactor.py"),
        ("unit/core/test_slurm_backfill.py", "unit/core/test_multifactor.py", "unit/core/test_baselines.py",
         "property/test_slurm_backfill_stops.py", "property/test_limits.py", "property/test_priorities.py",
         "property/test_simulation.py"),
    ),
    "hlas": Part(
        ("policies/hlas/*.py", "convergence.py", "loss_curve.py"),
        ("unit/core/test_hlas.py", "unit/core/test_convergence.py", "property/test_hlas_bounds.py"),
    ),
    "sjf-bco": Part(
        ("policies/sjf_bco/*.py",),
        ("unit/core/test_sjf_bco_online.py", "property/test_sjf_bco.py", "property/test_planner.py"),
    ),
    "rounds": Part(
        ("rounds/*.py",),
        ("unit/papers/test_rounds_toys.py", "unit/pool/test_pool_board.py", "unit/pool/test_pool_decisions.py",
         "property/test_rounds.py", "property/test_pool_rounds.py"),
    ),
    "rules": Part(
        ("limits.py", "priorities.py", "slurm_preemption.py", "cpu_jobs.py", "capacity.py"),
        ("unit/core/test_kept_room.py", "unit/slurm/test_slurm_priorities.py", "property/test_cpu_stock.py",
         "property/test_slurm_preemption.py", "property/test_limits.py", "property/test_priorities.py",
         "unit/status/test_explain.py", "unit/daemon/test_cpu_jobs.py"),
    ),
    "rest": Part(
        ("conformal.py", "job.py", "policies/nic_contention.py", "policies/power_saving.py", "policies/base.py",
         "policies/queue_policy.py", "policies/snapshot.py"),
        ("unit/core/test_nodes_that_sleep.py", "unit/core/test_policy_registry.py", "unit/core/test_tensor_groups.py",
         "unit/core/test_gated.py", "unit/core/test_slurm_backfill.py", "unit/forecast/test_forecast.py",
         "property/test_contention.py", "property/test_node_parts.py", "property/test_priorities.py"),
    ),
    "cluster": Part(
        ("cluster.py", "topology.py", "domains.py", "sensitivity.py"),
        ("unit/core/test_cluster_view.py", "unit/core/test_selection.py", "unit/core/test_blocks_of_servers.py",
         "unit/core/test_gpu_types.py", "unit/core/test_baselines.py", "property/test_switches.py",
         "property/test_domains.py", "property/test_sensitivity.py", "property/test_node_parts.py",
         "property/test_levels.py", "property/test_core.py", "property/test_freeindex.py"),
    ),
}  # fmt: skip

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.And: ast.Or, ast.Or: ast.And, ast.USub: ast.UAdd,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


Change = tuple[ast.AST, str, object]
"""A node, one of its fields, and the new value."""


@dataclass(frozen=True)
class Mutant:
    """A module with one change: its line as it was and as it is, and the text of the module."""

    path: Path
    line: int
    before: str
    after: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.before}  ->  {self.after}"


def mutants(path: Path) -> Iterator[Mutant]:
    """All mutants of a module. Annotations, decorators (sizes of caches) and messages of errors stay as they are."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node, statement in list(_nodes(tree, tree)):
        for owner, field, value in _changes(node):
            before, line = getattr(owner, field), _line(statement)
            setattr(owner, field, value)
            yield Mutant(path, getattr(node, "lineno", 0), line, _line(statement), ast.unparse(tree))
            setattr(owner, field, before)


def _line(statement: ast.AST) -> str:
    lines = ast.unparse(statement).splitlines()
    return next(line for line in lines if not line.startswith("@")).strip()


def _nodes(node: ast.AST, statement: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """All nodes below, each with its statement."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.Raise | ast.Import | ast.ImportFrom) or not isinstance(child, ast.AST):
                continue
            around = child if isinstance(child, ast.stmt | ast.comprehension) else statement
            yield child, around
            yield from _nodes(child, around)


def _changes(node: ast.AST) -> Iterator[Change]:
    yield from _of_operators(node)
    yield from _of_values(node)
    yield from _of_statements(node)


def _of_operators(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Compare(ops=ops):
            for at, op in enumerate(ops):
                yield node, "ops", [*ops[:at], SWAPS[type(op)](), *ops[at + 1 :]]
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op) if type(op) in SWAPS:
            yield node, "op", SWAPS[type(op)]()
        case ast.UnaryOp(op=ast.USub()):
            yield node, "op", ast.UAdd()
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, "operand", _not(operand)


def _of_values(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Constant(value=bool() as value):
            yield node, "value", not value
        case ast.Constant(value=int() | float() as value):
            yield node, "value", value + 1
        case ast.Call(func=ast.Name(id=name) as func) if name in NAMES:
            yield func, "id", NAMES[name]


def _of_statements(node: ast.AST) -> Iterator[Change]:
    """Conditions are turned round; a call, or what is added, is left out."""
    match node:
        case ast.comprehension(ifs=ifs) if ifs:
            yield node, "ifs", [_not(each) for each in ifs]
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if "TYPE_CHECKING" not in ast.unparse(
            test
        ):
            yield node, "test", _not(test)
        case ast.Expr(value=ast.Call()):
            yield node, "value", ast.Constant(None)
        case ast.AugAssign(op=ast.Add() | ast.Sub()):
            yield node, "value", ast.Constant(0)


def _not(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


class NoShrinking:
    """A plugin: a failure suffices, its smallest example is not needed."""

    def pytest_configure(self) -> None:
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutations", hypothesis.settings(), phases=phases)
        hypothesis.settings.load_profile("mutations")


def _test(copy: Path, tests: Sequence[str]) -> None:
    """Run the tests in a copy of the checkout, and exit with pytest's status."""
    os.chdir(copy)
    sys.path.insert(0, str(copy))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("slurm_asrpt", "tests")]:
        del sys.modules[name]
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    paths = [f"tests/{test}" for test in tests]
    os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *paths], plugins=[NoShrinking()])))


def noticed(copy: Path, tests: Sequence[str], timeout_s: float | None = None) -> bool:
    """Whether a test fails, or the tests do not end in time."""
    run = multiprocessing.get_context("fork").Process(target=_test, args=(copy, tests))
    run.start()
    run.join(timeout_s)
    if run.is_alive():
        run.kill()
        run.join()
    return run.exitcode != 0


def survivors(copy: Path, part: Part, first: int, every: int, minutes: float) -> Iterator[tuple[Mutant, bool]]:
    """The mutants of a part that are tried in this time, and whether each survives. Raises ValueError if the tests fail
    without a change."""
    began = time.monotonic()
    if noticed(copy, part.tests):
        raise ValueError("the tests fail without a change")
    timeout_s = max(LEAST_S, LONGER * (time.monotonic() - began))
    found = [mutant for path in part.paths for mutant in mutants(path)]
    for mutant in found[first::every]:
        if time.monotonic() > began + 60 * minutes:
            return
        there = copy / mutant.path.relative_to(ROOT)
        there.write_text(mutant.text, encoding="utf-8")
        yield mutant, not noticed(copy, part.tests, timeout_s)
        there.write_text(mutant.path.read_text(encoding="utf-8"), encoding="utf-8")


def _copy(to: Path) -> Path:
    for name in ("slurm_asrpt", "tests", "papers"):
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", to)
    return to


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=600.0, help="for each part")
    chosen = parser.parse_args()
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory() as folder:
        copy = _copy(Path(folder))
        for name in chosen.parts:
            tried = list[bool]()
            for mutant, survives in survivors(copy, PARTS[name], chosen.first, chosen.every, chosen.minutes):
                tried.append(survives)
                if survives:
                    print(mutant, flush=True)
            print(f"{name}: {len(tried)} tried, {sum(tried)} survive", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
