"""Events of another node: each once and in its order, whatever is told again, and what never came is counted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.config import JobSpec
from supervisor.engine.event_deduplication import take_events, take_leaders_events
from supervisor.ports.questions import NodeEvents
from supervisor.ports.reports import RecordedEvent
from tests.engine.world import World

Take = Callable[[NodeEvents], int]


def news(*sequences: int, gone_through: int = 0, submitted_at_ns: int = 7, after: int = 0) -> NodeEvents:
    events = tuple(RecordedEvent("j", each, 1000 + each, "something", f"n1 {each}", node="n1") for each in sequences)
    return NodeEvents("n1", submitted_at_ns, events, gone_through, after)


@asynccontextmanager
async def taking(log_dir: Path) -> AsyncGenerator[tuple[World, Take]]:
    async with World.opened(log_dir) as world:
        await world.submit(JobSpec("j", ("t.py",)))
        yield world, partial(take_events, world.publisher, world.jobs["j"])


def of_n1(world: World) -> list[str]:
    return [event.reason for event in world.journal.events if event.node == "n1"]


async def test_events_of_a_node_are_recorded_once_and_in_its_order_whatever_is_told_again(tmp_path: Path) -> None:
    async with taking(tmp_path) as (world, take):
        assert take(news(1, 2)) == 2
        assert take(news(1, 2, 3)) == 3
        assert take(news(5)) == 3  # the node must send event 4 first
        assert take(news(4, 5)) == 5
        assert of_n1(world) == [f"n1 {number}" for number in (1, 2, 3, 4, 5)]
        assert take(news(1, submitted_at_ns=8)) == 1  # another process of that name counts from 1 again
        sequences = [event.sequence for event in world.journal.events]
        assert sequences == list(range(1, len(sequences) + 1))


async def test_a_node_that_has_led_for_a_while_has_events_of_others_between_its_own(tmp_path: Path) -> None:
    async with taking(tmp_path) as (world, take):
        assert take(news(9, after=7)) == 0  # It has told another leader of those before.
        assert take(news(1, 2, 5, 7)) == 7
        assert take(news(9, 12, after=7)) == 12
        assert take(news(20, after=14)) == 12  # The node is to tell event 14 first.
        assert of_n1(world) == [f"n1 {number}" for number in (1, 2, 5, 7, 9, 12)]
        assert "events_missing" not in world.journal.kinds()


async def test_what_a_node_had_to_give_up_is_counted_and_told(tmp_path: Path) -> None:
    async with taking(tmp_path) as (world, take):
        assert take(news(4, 5, gone_through=3)) == 5
        missing = [event.reason for event in world.journal.events if event.kind == "events_missing"]
        assert missing == ["3 events of node n1 did not arrive in time; see its own journal"]


async def test_a_leader_that_tells_only_its_later_events_leaves_nothing_missing(tmp_path: Path) -> None:
    """It has returned: its journal has the earlier ones, which nobody here missed."""
    async with taking(tmp_path) as (world, _):
        take_leaders_events(world.publisher, world.jobs["j"], news(9, 10, gone_through=8))
        assert of_n1(world) == ["n1 9", "n1 10"]
        assert "events_missing" not in world.journal.kinds()


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 5)), max_size=12))
def test_any_order_of_messages_records_no_event_twice_and_leaves_no_gap(told: list[tuple[int, int]]) -> None:
    async def check() -> None:
        async with taking(Path("/nowhere")) as (world, take):
            for first, count in told:
                take(news(*range(first, first + count)))
            recorded = [int(reason.split()[1]) for reason in of_n1(world)]
            assert recorded == list(range(1, len(recorded) + 1))

    anyio.run(check)
