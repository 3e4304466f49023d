"""Structure of the code base in figures: python -m benchmarks.house --json

Prints files and lines per package, the share of short files, pairs of packages that import each other, and the longest
functions. It reads the sources as text, so it can also measure another checkout: ``--tree DIR``.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

ROOTS = ("slurm_asrpt", "cli", "papers")
SHORT_LINES = 60
NAMES = {"cli": "slurm_asrpt_cli"}


def module_of(path: Path) -> tuple[str, ...]:
    """The dotted name of a file, as its parts."""
    first, *others = path.with_suffix("").parts
    parts = (NAMES.get(first, first), *others)
    return parts[:-1] if parts[-1] == "__init__" else parts


def layer_of(module: tuple[str, ...]) -> str:
    """The unit of the layers contract: a package or module directly in slurm_asrpt, or another root package."""
    return ".".join(module[:2]) if module[0] == "slurm_asrpt" else module[0]


def imports(tree: ast.Module, modules: frozenset[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Our modules that a file imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            base = tuple(node.module.split("."))
            for alias in node.names:
                yield (*base, alias.name) if (*base, alias.name) in modules else base


def functions(tree: ast.Module) -> Iterator[int]:
    """The number of lines of each function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


def measure(tree: Path) -> dict[str, Any]:
    """The figures of a checkout."""
    paths = [path.relative_to(tree) for root in ROOTS for path in sorted((tree / root).rglob("*.py"))]
    texts = {path: (tree / path).read_text(encoding="utf-8") for path in paths}
    parsed = {path: ast.parse(text) for path, text in texts.items()}
    modules = frozenset(module_of(path) for path in paths)
    packages = {layer_of(module_of(path)) for path in paths if path.name == "__init__.py"}
    rooms: dict[str, list[int]] = defaultdict(list)
    edges: set[tuple[str, str]] = set()
    for path in paths:
        layer, lines = layer_of(module_of(path)), texts[path].count("\n")
        if path.name != "__init__.py" or lines > 1:
            rooms[layer if layer in packages else "slurm_asrpt"].append(lines)
        edges |= {(layer, layer_of(other)) for other in imports(parsed[path], modules)}
    counts = [lines for room in rooms.values() for lines in room]
    lengths = [lines for tree_ in parsed.values() for lines in functions(tree_)]
    return {
        "packages": {room: {"files": len(rows), "lines": sum(rows)} for room, rows in sorted(rooms.items())},
        "files": len(counts),
        "lines": sum(counts),
        "short_files": sum(lines <= SHORT_LINES for lines in counts),
        "longest_file": max(counts),
        "mutual_imports": [pair for pair in sorted(edges) if pair[0] < pair[1] and pair[::-1] in edges],
        "function_median_lines": median(lengths),
        "function_longest_lines": max(lengths),
    }


def show(found: dict[str, Any]) -> None:
    for room, row in found["packages"].items():
        print(f"{room:<28}{row['files']:>6} files{row['lines']:>8} lines")
    share = found["short_files"] / found["files"]
    print(
        f"{found['files']} files, {found['lines']} lines; {found['short_files']} ({share:.0%}) of at most {SHORT_LINES}"
    )
    print(f"packages that import each other: {found['mutual_imports'] or 'none'}")
    print(f"functions: median {found['function_median_lines']} lines, longest {found['function_longest_lines']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--tree", type=Path, default=Path(__file__).parents[1], metavar="DIR", help="checkout to measure"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.tree)
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)


if __name__ == "__main__":
    main()
