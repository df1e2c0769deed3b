"""Which states and counters of network ports make a node unhealthy, and which do not?"""

from __future__ import annotations

from supervisor.core.nic_verdict import FLAPS_MAX, WINDOW_S, Known, Port, judge
from supervisor.core.node_check_facts import Health, HealthFinding


class Node:
    def __init__(self, *, states: bool = True, counters: bool = True) -> None:
        self.known = Known()
        self.states, self.counters = states, counters

    def look(self, *ports: Port, at: float = 0.0) -> list[HealthFinding]:
        found, self.known = judge(
            ports, self.known, now_s=at, states=self.states, counters=self.counters, took_s=0.0
        )  # fmt: skip
        return list(found)


def port(state: str = "ACTIVE", downs: int | None = 0, name: str = "mlx5_0 port 1") -> Port:
    return Port(name, state, downs)


def test_a_port_that_was_active_and_is_down_is_unhealthy() -> None:
    node = Node()
    assert [each.health for each in node.look(port())] == [Health.HEALTHY]
    [found] = node.look(port("DOWN"))
    assert (found.name, found.health) == ("nic mlx5_0 port 1", Health.UNHEALTHY)
    assert found.reason == "mlx5_0 port 1 was ACTIVE and is DOWN; check cable and switch port"
    assert [each.health for each in node.look(port("INIT"))] == [Health.UNHEALTHY]
    assert [each.health for each in node.look(port())] == [Health.HEALTHY]


def test_a_port_that_was_down_from_the_start_is_not_reported_until_it_was_active() -> None:
    node = Node()
    assert [each.health for each in node.look(port("DOWN"))] == [Health.HEALTHY]
    assert [each.health for each in node.look(port("DOWN"))] == [Health.HEALTHY]
    node.look(port())
    assert [each.health for each in node.look(port("DOWN"))] == [Health.UNHEALTHY]


def test_a_port_that_is_gone_is_unhealthy_and_one_that_can_not_be_read_is_not() -> None:
    node = Node()
    node.look(port(), port(name="mlx5_1 port 1"))
    found = node.look(port(""))
    assert [(each.subject, each.health) for each in found] == [
        ("mlx5_0 port 1", Health.HEALTHY), ("mlx5_1 port 1", Health.UNHEALTHY),
    ]  # fmt: skip
    assert "is no longer there" in found[1].reason


def test_a_link_that_goes_down_now_and_then_is_noted_and_one_that_flaps_is_unhealthy() -> None:
    node = Node()
    node.look(port(downs=7), at=0.0)
    for count in range(1, FLAPS_MAX + 1):
        [found] = node.look(port(downs=7 + count), at=10.0 * count)
        assert found.health is Health.HEALTHY
        assert found.reason == f"mlx5_0 port 1 went down {count} times within 10 minutes"
    [found] = node.look(port(downs=7 + FLAPS_MAX + 1), at=60.0)
    assert found.health is Health.UNHEALTHY
    [found] = node.look(port(downs=7 + FLAPS_MAX + 1), at=60.0 + WINDOW_S + 1)
    assert (found.health, found.reason) == (Health.HEALTHY, "")


def test_what_is_not_asked_for_is_not_judged() -> None:
    node = Node(states=False, counters=False)
    node.look(port())
    assert [each.health for each in node.look(port("DOWN", downs=99))] == [Health.HEALTHY]


def test_without_a_card_the_check_is_skipped_and_a_counter_may_be_unknown_or_start_again() -> None:
    assert [each.health for each in Node().look()] == [Health.SKIPPED]
    node = Node()
    for downs in (None, 5, 0, None):
        assert [each.health for each in node.look(port(downs=downs))] == [Health.HEALTHY]
