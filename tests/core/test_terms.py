"""Terms only grow, and no two leads have the same, even if a backend has lost its data."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.terms import ERA, added_to, is_of_earlier_era


def test_a_backend_that_has_lost_nothing_counts_for_itself() -> None:
    assert added_to(9, newest_term=0) == 0
    assert added_to(9, newest_term=9) == 0
    assert added_to(9, newest_term=ERA + 9) == ERA


def test_a_count_below_a_known_term_begins_another_era() -> None:
    assert added_to(8, newest_term=9) == ERA
    assert added_to(8, newest_term=ERA + 9) == 2 * ERA
    assert is_of_earlier_era(9, now=ERA + 8)
    assert not is_of_earlier_era(9, now=10)


def test_two_nodes_that_know_different_terms_never_lead_in_the_same_one() -> None:
    """Seed 501307 of the simulator: what each added to the backend's count, the other had counted more."""
    first = 890 + added_to(890, newest_term=1781)
    second = 894 + added_to(894, newest_term=1777)
    assert first < second


@given(
    count=st.integers(0, 10**12), more=st.integers(1, 1000), one=st.integers(0, 3 * ERA), other=st.integers(0, 3 * ERA)
)
def test_the_later_of_two_leads_has_another_term(count: int, more: int, one: int, other: int) -> None:
    first = count + added_to(count, newest_term=one)
    later = count + more
    second = later + added_to(later, newest_term=max(first, other))
    assert second > first
    assert later + added_to(later, newest_term=other) != first
