"""What the mutation tester changes, and what it leaves alone."""

from __future__ import annotations

import ast

import pytest

from tests.trials.mutations import PARTS, ROOT, mutants

SOURCE = '''
@cache(maxsize=3)
def f(a: int = 2) -> int:
    """Not this 1."""
    if a < 5 and not b:
        total += 1
    if a:
        raise ValueError(f"{7}")
    f(b)
    return max(a, -a)
'''


@pytest.fixture
def found(monkeypatch, tmp_path):
    monkeypatch.setattr("tests.trials.mutations.ROOT", tmp_path)
    path = tmp_path / "small.py"
    path.write_text(SOURCE, encoding="utf-8")
    return list(mutants(path))


def test_each_mutant_has_one_change(found):
    assert sorted(mutant.after for mutant in found) == [
        "None",
        "def f(a: int=3) -> int:",
        "if a < 5 and (not not b):",
        "if a < 5 or not b:",
        "if a < 6 and (not b):",
        "if a <= 5 and (not b):",
        "if not (a < 5 and (not b)):",
        "if not a:",
        "return max(a, +a)",
        "return min(a, -a)",
        "total += 0",
        "total += 2",
        "total -= 1",
    ]


def test_annotations_decorators_docstrings_and_messages_stay(found):
    for mutant in found:
        assert "maxsize=3" in mutant.text
        assert "Not this 1." in mutant.text
        assert "{7}" in mutant.text
        assert "-> int" in mutant.text


def test_the_parts_name_files():
    for part in PARTS.values():
        assert part.paths
        assert all((ROOT / "tests" / test).is_file() for test in part.tests)
        assert ast.parse(next(mutants(part.paths[0])).text)
