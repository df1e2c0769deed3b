"""No address takes all places, members have their own, and too many that wait cost the address with the most."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.cluster.handshake_admission import Admission

A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"


def admission(*, waiting_max: int = 100, places: int = 8) -> Admission:
    return Admission(waiting_max=waiting_max, places=places)


def arrive(to: Admission, source: str, *keys: int, says: bool | None = None) -> None:
    """`says`: whether it is a member; None: it says nothing."""
    for key in keys:
        to.arrive(key, source)
        if says is not None:
            to.speak(key, is_member=says)


def admitted(by: Admission) -> list[int]:
    keys: list[int] = []
    while (key := by.admit()) is not None:
        keys.append(key)
    return keys


def test_who_says_nothing_gets_no_place():
    gate = admission()
    arrive(gate, A, 1, 2)
    assert admitted(gate) == []
    gate.speak(2, is_member=True)
    assert admitted(gate) == [2]


def test_one_address_has_half_of_the_places_and_the_next_ones_still_find_some():
    gate = admission()
    arrive(gate, A, *range(100, 120), says=False)
    assert admitted(gate) == [100, 101, 102, 103]
    arrive(gate, B, *range(200, 220), says=False)
    assert admitted(gate) == [200, 201]
    arrive(gate, C, 300, says=False)
    assert admitted(gate) == [300]


def test_members_have_places_of_their_own_and_share_them_in_the_same_way():
    gate = admission()
    for number in range(20):
        arrive(gate, f"10.0.1.{number}", number, says=False)
    assert len(admitted(gate)) == 8
    arrive(gate, A, *range(100, 120), says=True)
    arrive(gate, B, 200, says=True)
    assert admitted(gate) == [100, 200, 101, 102, 103]


def test_addresses_that_wait_have_their_turns():
    gate = admission(places=2)
    arrive(gate, A, 1, 2, 3, says=False)
    assert admitted(gate) == [1]
    arrive(gate, B, 4, 5, says=False)
    assert admitted(gate) == [4]
    turns: list[int] = []
    for done in (1, 4):
        gate.leave(done)
        turns += admitted(gate)
    assert turns == [2, 5]


def test_a_place_is_free_again_once_its_handshake_has_ended():
    gate = admission(places=2)
    arrive(gate, A, 1, 2, says=True)
    assert admitted(gate) == [1]
    gate.leave(1)
    assert admitted(gate) == [2]


def test_too_many_that_wait_cost_the_address_with_the_most_of_them_its_longest_silent_one():
    gate = admission(waiting_max=4)
    arrive(gate, A, 1, 2, 3)
    arrive(gate, B, 4)
    assert gate.surplus() is None
    arrive(gate, C, 5)
    assert gate.has_room
    assert gate.surplus() == 1
    gate.leave(1)
    assert gate.surplus() is None
    assert gate.least() == 2


def test_without_silent_ones_the_last_to_come_is_closed():
    gate = admission(waiting_max=2, places=0)
    arrive(gate, A, 1, 2, 3, says=False)
    assert gate.surplus() == 3


def test_members_that_wait_are_never_closed_and_no_more_are_accepted_meanwhile():
    gate = admission(waiting_max=2, places=2)
    arrive(gate, A, 1, 2, 3, says=True)
    assert gate.surplus() is None
    assert not gate.has_room
    assert admitted(gate) == [1]
    assert not gate.has_room
    gate.leave(1)
    assert admitted(gate) == [2]
    assert gate.has_room


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.sampled_from([A, B, C])),
        st.tuples(st.just("member"), st.integers(0, 30)),
        st.tuples(st.just("stranger"), st.integers(0, 30)),
        st.tuples(st.just("leave"), st.integers(0, 30)),
    ),
    max_size=120,
)


@given(STEPS)
def test_whatever_comes_the_bounds_hold_and_nothing_is_forgotten(steps: list[tuple[str, str | int]]):
    """Compares it with plain lists of who is silent, who waits and who has a place."""
    gate = admission(waiting_max=6, places=4)
    silent: dict[int, str] = {}
    waiting: dict[int, bool] = {}
    placed: dict[int, bool] = {}
    for number, (what, of) in enumerate(steps):
        keys = [*silent] if what in ("member", "stranger") else [*silent, *waiting, *placed]
        if what == "arrive" and gate.has_room:
            gate.arrive(number, str(of))
            silent[number] = str(of)
            if (gone := gate.surplus()) is not None:
                assert not waiting.get(gone, False)  # No member that waits is closed.
                gate.leave(gone)
                silent.pop(gone, None)
                waiting.pop(gone, None)
        elif what != "arrive" and keys:
            key = keys[int(of) % len(keys)]
            if what == "leave":
                gate.leave(key)
                for each in (silent, waiting, placed):
                    each.pop(key, None)
            else:
                gate.speak(key, is_member=what == "member")
                del silent[key]
                waiting[key] = what == "member"
        for key in admitted(gate):
            placed[key] = waiting.pop(key)
        assert len(silent) + sum(not each for each in waiting.values()) <= 6
        assert sum(placed.values()) <= 4
        assert sum(not each for each in placed.values()) <= 4
        for is_member in (True, False):
            assert is_member not in waiting.values() or is_member in placed.values()
    for key in [*silent, *waiting, *placed]:
        gate.leave(key)
    assert gate.has_room
    assert admitted(gate) == []
