"""Constraints (-C), compared with the answers of Slurm 22.05 on nodes with these features."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.slurm.features import alternatives, satisfies

NODES = {"n1": {"a100", "nvlink"}, "n3": {"h100", "nvlink"}, "n4": {"h100"}}


@pytest.mark.parametrize(
    ("constraint", "nodes"),
    [
        ("h100|a100&nvlink", "n1 n3"),
        ("nvlink&a100|h100", "n1 n3 n4"),
        ("(a100|h100)&nvlink", "n1 n3"),
        ("h100&(a100|nvlink)", "n3"),
        ("a100|h100", "n1 n3 n4"),
        ("a100,nvlink", "n1"),
        ("(h100)", "n3 n4"),
    ],
)
def test_nodes_satisfy_constraints_as_in_slurm(constraint: str, nodes: str) -> None:
    assert [name for name, has in NODES.items() if satisfies(frozenset(has), constraint)] == nodes.split()


@pytest.mark.parametrize("constraint", ["a*2", "[a|b]", "a b", "(a", "a)", "(a))&(b", "a" * 2000])
def test_constraints_on_several_nodes_or_with_syntax_errors_are_refused(constraint: str) -> None:
    with pytest.raises(ValueError, match=r"constraint|parenthesis"):
        satisfies(frozenset({"a"}), constraint)


@pytest.mark.parametrize(
    ("constraint", "found"),
    [
        ("[a|b-1|c]", ("a", "b-1", "c")),
        ("[a]", ("a",)),
        ("a|b", ("a|b",)),
        ("[a|b]&c", ("[a|b]&c",)),
        ("[a*2|b]", ("[a*2|b]",)),
        ("[a&b|c]", ("[a&b|c]",)),
        ("[]", ("[]",)),
        ("", ("",)),
    ],
)
def test_bracketed_features_are_alternatives_for_all_nodes(constraint: str, found: tuple[str, ...]) -> None:
    assert alternatives(constraint) == found


@given(st.text("ab&|,()[]* ", max_size=40))
def test_any_constraint_is_evaluated_or_refused(constraint: str) -> None:
    try:
        satisfies(frozenset({"a"}), constraint)
    except ValueError:
        return
    assert not set("[]* ") & set(constraint)
