"""The tag in AdminComment: round trips, and any other text in that field."""

from __future__ import annotations

import string
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.hook.tag import LEVELS, MAX_BYTES, PREFIX, Tag, parse_tag, render_features
from slurm_asrpt.profile.sizes import Sizes

name_ends = st.text(string.ascii_letters + string.digits + "._+-", max_size=63)
names = st.builds(str.__add__, st.sampled_from(string.ascii_letters + string.digits), name_ends)
tags = st.builds(
    Tag,
    group=st.binary(min_size=8, max_size=8).map(bytes.hex),
    iterations=st.integers(0, 10**15 - 1),
    profile=st.one_of(st.just(""), names),
    begin=st.integers(0, 10**12 - 1),
    left=st.one_of(st.just(""), st.text(string.ascii_lowercase + "-", min_size=1, max_size=24)),
    low=st.integers(1, 10**12),
    high=st.integers(1, 10**12),
    program=st.one_of(st.just(""), st.binary(min_size=8, max_size=8).map(bytes.hex)),
    level=st.sampled_from(["", *LEVELS]),
    sizes=st.builds(Sizes, *[st.integers(0, 99_999)] * 4),
    mean=st.integers(0, 10**12),
)
numbers = st.floats(-1e14, 1e14).map(lambda value: float(f"{value + 0.0:.10g}"))
hyperparameters = st.dictionaries(st.sampled_from(["epochs", "steps", "batch_size", "lr"]), numbers)


@given(tags)
def test_round_trip(tag: Tag) -> None:
    text = tag.format()
    assert len(text) <= MAX_BYTES
    assert parse_tag(text) == tag


@given(tags, st.text(max_size=40))
def test_a_sites_own_text_may_come_before_it(tag: Tag, text: str) -> None:
    whole = f"{text} {tag.format()}"
    assert parse_tag(whole) == (tag if PREFIX not in text and len(whole) <= MAX_BYTES else None)
    assert parse_tag(f"{tag.format()} {text}") in (None, tag)
    assert parse_tag(f"{tag.format()} {tag.format()}") is None


@given(tags, hyperparameters)
def test_features_are_dropped_if_the_tag_would_be_too_long(tag: Tag, features: dict[str, float]) -> None:
    whole = replace(tag, features=features)
    expected = whole if len(tag.format()) + len(render_features(features)) + 3 <= MAX_BYTES else tag
    assert parse_tag(whole.format()) == expected


def test_all_fields() -> None:
    features = {"lr": 1e-5, "epochs": 90.0}
    tag = Tag(
        "0" * 16, 12, "gpt-2", 7, "off", 3, 40, "f" * 16, "program", features, Sizes(8, tp=2), "B:USR1", 15
    )  # fmt: skip
    text = "asrpt1:g=0000000000000000;n=12;p=gpt-2;b=7;l=off;i=3-40;m=15;k=ffffffffffffffff;v=p;s=g8t2;c=B:USR1;"
    text += "f=epochs:90,lr:1e-05"
    assert (tag.format(), parse_tag(text)) == (text, tag)


@given(st.one_of(st.text(), st.text().map(PREFIX.__add__), st.binary().map(lambda b: PREFIX + b.decode("latin-1"))))
def test_any_text_may_be_in_the_field(text: str) -> None:
    tag = parse_tag(text)
    assert tag is None or parse_tag(tag.format()) == tag


@given(tags, st.integers(0, 300), st.text(min_size=1, max_size=3))
def test_damaged_tags_never_raise(tag: Tag, at: int, junk: str) -> None:
    text = tag.format()
    parse_tag(text[:at])
    parse_tag(text[:at] + junk + text[at:])


@pytest.mark.parametrize(
    "text",
    [
        "asrpt1:",
        "asrpt1:g=0123456789abcdef",
        "asrpt1:n=1",
        "asrpt1:g=0123456789ABCDEF;n=1",
        "asrpt1:g=0123456789abcdef;n=-1",
        "asrpt1:g=0123456789abcdef;n=1\n",
        "asrpt1:g=0123456789abcdef;n=1;n=2",
        "asrpt1:g=0123456789abcdef;n=1;x=2",
        "asrpt1:g=0123456789abcdef;n=1;",
        "asrpt1:g=0123456789abcdef;n=٣",
        "asrpt1:g=0123456789abcdef;n=1;p=" + "x" * 65,
        "asrpt1:g=0123456789abcdef;n=1;p=a b",
        "asrpt1:g=0123456789abcdef;n=1;i=3",
        "asrpt1:g=0123456789abcdef;n=1;v=x",
        "asrpt1:g=0123456789abcdef;n=1;k=",
        "asrpt1:g=0123456789abcdef;n=1;f=lr:nan",
        "asrpt1:g=0123456789abcdef;n=1;f=lr:1e999",
        "asrpt1:g=0123456789abcdef;n=1;f=lr:1,lr:1",
        "asrpt1:g=0123456789abcdef;n=1;f=lr:1,epochs:1",
        "asrpt2:g=0123456789abcdef;n=1",
        "xasrpt1:g=0123456789abcdef;n=1",
    ],
)
def test_invalid_tags_are_ignored(text: str) -> None:
    assert parse_tag(text) is None
