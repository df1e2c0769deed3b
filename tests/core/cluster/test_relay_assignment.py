"""A leader of many takes some itself, and redirects the others to relays with room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.cluster.relay_assignment import ASKED_S, LATER, UNDER_WAY_S, Relay, Relays


def test_as_many_relays_are_asked_for_as_the_job_may_need_and_one_that_does_not_come_is_replaced():
    relays = Relays(fan_out=4, nodes=13)
    assert [relays.is_needed(f"n{number}", 0.0) for number in range(5)] == [True, True, True, False, False]
    relays.opened("n0", "10.0.0.1", 1)
    assert not relays.is_needed("n0", 1.0)
    assert not relays.is_needed("n5", ASKED_S - 0.1)
    assert [relays.is_needed(name, ASKED_S) for name in ("n5", "n6", "n7")] == [True, True, False]
    relays.closed("n0")
    assert relays.is_needed("n8", ASKED_S)


def test_a_small_job_has_none():
    relays = Relays(fan_out=4, nodes=4)
    assert not relays.is_needed("n0", 0.0)
    relays.direct = 9
    assert relays.choose(0.0) is None


def test_newcomers_are_sent_to_relays_in_turn_while_they_have_room():
    relays = Relays(fan_out=2, nodes=8)
    relays.opened("a", "10.0.0.1", 1)
    relays.opened("b", "10.0.0.2", 2)
    relays.direct = 1
    assert relays.choose(0.0) is None
    relays.direct = 2
    relays.entered()
    chosen = [relays.choose(0.0) for _ in range(5)]
    assert [each.port if each is not None else None for each in chosen] == [1, 2, 1, 2, None]
    relays.joined("a")
    assert relays.choose(1.0) is None
    again = relays.choose(UNDER_WAY_S)  # nodes that have not come by now have gone elsewhere
    assert again is not None
    relays.left("a")
    relays.closed("b")
    relays.joined("b")
    relays.left("b")
    last = relays.choose(UNDER_WAY_S)
    assert last is not None
    assert last.port == 1


def test_while_relays_are_to_come_newcomers_wait_and_not_for_ever():
    relays = Relays(fan_out=2, nodes=8)
    assert [relays.choose(0.0), relays.choose(0.0)] == [None, None]
    assert relays.choose(0.0) is LATER  # those two may be asked
    relays.direct = 1
    relays.entered()
    assert relays.is_needed("a", 1.0)
    assert relays.choose(1.0) is LATER
    relays.opened("a", "10.0.0.1", 1)
    assert relays.choose(1.0) == Relay("10.0.0.1", 1, under_way=[1.0])
    relays.direct = 2
    relays.entered()
    assert relays.is_needed("b", 2.0)
    assert relays.choose(2.0) == Relay("10.0.0.1", 1, under_way=[1.0, 2.0])
    assert relays.choose(2.0) is LATER
    relays.joined("a")
    relays.joined("a")
    assert relays.choose(2.0 + ASKED_S) is None


@given(st.lists(st.sampled_from(["choose", "join", "leave", "wait"]), max_size=80))
def test_no_relay_gets_more_than_it_can_carry(script: list[str]):
    relays = Relays(fan_out=3, nodes=12, direct=3)
    relays.opened("a", "10.0.0.1", 1)
    under_way = children = 0
    now_s = 0.0
    for word in script:
        match word:
            case "choose":
                if relays.choose(now_s) not in (None, LATER):
                    under_way += 1
            case "join" if under_way:
                relays.joined("a")
                under_way, children = under_way - 1, children + 1
            case "leave" if children:
                relays.left("a")
                children -= 1
            case "wait":
                now_s += UNDER_WAY_S
                under_way = 0
            case _:
                continue
        assert children + under_way <= 3


def test_once_the_job_has_ended_the_leader_takes_every_node_itself():
    """Its relays leave, too, so a node that was sent to one of them would come back without the verdict."""
    relays = Relays(fan_out=2, nodes=8)
    relays.direct = 2
    relays.opened("a", "10.0.0.1", 1)
    assert relays.choose(0.0) is not None
    relays.end()
    assert relays.choose(0.0) is None
    assert not relays.is_needed("b", 0.0)
