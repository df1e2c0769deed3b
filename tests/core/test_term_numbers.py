"""Terms only grow, and no two leads have the same, even if a backend has lost its data."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.term_numbers import ERA, PARTS, added_to, is_of_earlier_era

PART = st.integers(0, PARTS - 1)


def test_what_is_added_grows_with_each_lead() -> None:
    assert added_to(9, added=0, newest_term=0, part=0) == 1
    assert added_to(20, added=7, newest_term=16, part=4) == 12
    assert added_to(9, added=ERA + 7, newest_term=0, part=PARTS - 1) == ERA + 7 + PARTS


def test_a_term_that_the_backend_has_not_given_begins_another_era() -> None:
    assert added_to(8, added=1, newest_term=9, part=0) == 2
    assert added_to(8, added=1, newest_term=10, part=0) == ERA + 1
    assert added_to(8, added=1, newest_term=ERA + 9, part=5) == 2 * ERA + 6
    assert is_of_earlier_era(10, now=ERA + 8)
    assert not is_of_earlier_era(9, now=10)


def test_two_nodes_that_know_different_terms_never_lead_in_the_same_one() -> None:
    """Seed 501307 of the simulator: what each added to the backend's count, the other had counted more."""
    first = 890 + added_to(890, added=0, newest_term=1781, part=3)
    second = 894 + added_to(894, added=0, newest_term=1777, part=8)
    assert first < second


def test_leads_of_the_same_count_differ_though_neither_node_knows_of_the_other() -> None:
    """Seed 70063475: a backend went back to the moment before a lead was made, and the next one was made then."""
    first, second = (4 + added_to(4, added=1, newest_term=2, part=part) for part in (7, 3))
    assert first != second


@given(
    count=st.integers(0, 10**9), added=st.integers(0, 10**9), more=st.integers(1, 1000),
    one=st.integers(0, 3 * ERA), part=PART, other=PART,
)  # fmt: skip
def test_the_later_of_two_leads_has_a_greater_term(
    count: int, added: int, more: int, one: int, part: int, other: int
) -> None:
    added = added_to(count, added=added, newest_term=one, part=part)
    first = count + 1 + added
    assert first > one
    later = count + more
    for known in (0, first):
        assert later + 1 + added_to(later, added=added, newest_term=known, part=other) > first


@given(lost=st.integers(0, 10**9), count=st.integers(0, 10**9), known=st.integers(1, 3 * ERA), part=PART)
def test_a_loss_that_the_node_knows_of_is_seen_by_the_term(lost: int, count: int, known: int, part: int) -> None:
    term = count + 1 + added_to(count, added=lost, newest_term=count + lost + known, part=part)
    assert is_of_earlier_era(count + lost + known, now=term)
