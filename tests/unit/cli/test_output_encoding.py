"""Bars are drawn with blocks only where the output can show them."""

from __future__ import annotations

import pytest

from slurm_asrpt.text import can_show


@pytest.mark.parametrize(
    ("encoding", "blocks"),
    [("utf-8", True), ("cp437", True), ("latin-1", False), ("ascii", False), (None, False), ("no-such", False)],
)
def test_blocks_are_shown_where_the_encoding_has_them(encoding: str | None, blocks: bool) -> None:
    assert can_show("█", encoding) is blocks
    assert can_show("#", encoding) is (encoding != "no-such")
