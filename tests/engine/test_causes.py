"""Causes: similar texts are counted together, and the counts add up."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.engine.causes import MOST_APART, CauseCounter, are_alike, normalise

WORDS = st.sampled_from(["customer", "x7", "'a'", "12", "is", "3.5", "unknown", "…", '"b c"'])
TEXTS = st.lists(WORDS, max_size=6).map(" ".join)


def count(*texts: str, most: int = 1_000) -> list[tuple[str, int]]:
    counter = CauseCounter(most)
    for text in texts:
        counter.add(text)
    return [(cause.text, cause.count) for cause in counter.causes()]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("customer x700077 is not known", "customer x1 is not known"),
        ("no row 'a' in table", "no row 'b c' in table"),
        ('key "a" is missing', 'key "it\'s" is missing'),
        ("order 0b7ac0e2-9a1c-4f3e-8f50-1c5e4f1d2a3b late", "order 11111111-2222 late"),
        ("took 3 s", "took 3.25 s"),
        ("at 2026-11-17T20:04:01", "at 2025-01-01T00:00:00"),
        ("bob@example.com is unknown", "a.b@c.org is unknown"),
    ],
)
def test_texts_that_differ_in_numbers_ids_and_quoted_values_are_similar(
    one: str, other: str
) -> None:
    assert are_alike(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("it isn't so, don't ask", "it isn't, don't ask"), ("no such row", "no such column")],
)
def test_texts_that_differ_in_words_are_not_similar(one: str, other: str) -> None:
    assert not are_alike(one, other)


def test_a_few_similar_texts_are_listed_one_by_one() -> None:
    assert count("reason 0", "reason 1", "reason 2", "reason 1") == [
        ("reason 1", 2), ("reason 0", 1), ("reason 2", 1),
    ]  # fmt: skip


def test_many_similar_texts_become_one_cause_that_shows_where_they_differ() -> None:
    texts = [f"S3 has no customer x{number} in 'eu'" for number in range(10)]
    assert count(*texts) == [("S3 has no customer … in 'eu'", 10)]


def test_a_cause_that_was_merged_elsewhere_is_counted_with_similar_texts() -> None:
    alike = [f"customer x{number}" for number in range(MOST_APART + 1)]
    assert count("customer …", *alike) == [("customer …", MOST_APART + 2)]


def test_causes_beyond_the_limit_are_counted_as_other_causes() -> None:
    assert count("a", "b", "c", "d", "a", most=2) == [("a", 2), ("other causes", 2), ("b", 1)]


@given(st.lists(TEXTS))
def test_the_counts_of_all_causes_add_up(texts: list[str]) -> None:
    counted = count(*texts)
    assert sum(number for _, number in counted) == len(texts)
    alike = Counter(normalise(text) for text in texts)
    again: Counter[str] = Counter()
    for text, number in counted:
        again[normalise(text)] += number
    assert again == alike
