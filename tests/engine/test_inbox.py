import anyio
import pytest

from supervisor.engine.inbox import EVENTS_MAX, WORKER_EVENTS_MAX, Inbox, InboxFullError


async def test_events_come_out_in_the_order_in_which_they_went_in() -> None:
    inbox: Inbox[int] = Inbox()
    for number in range(5):
        inbox.put(number)
    assert inbox.take_all() == [0, 1, 2, 3, 4]
    assert inbox.take_all() == []


async def test_wait_returns_at_the_first_event_and_not_before() -> None:
    inbox: Inbox[str] = Inbox()
    with anyio.move_on_after(0.01) as early:
        await inbox.wait()
    assert early.cancelled_caught
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(inbox.wait)
        await anyio.lowlevel.checkpoint()
        inbox.put("exit")
    assert inbox.take_all() == ["exit"]


async def test_workers_can_fill_half_and_the_rest_is_for_what_must_not_be_lost() -> None:
    inbox: Inbox[int] = Inbox()
    for number in range(WORKER_EVENTS_MAX + 10):
        inbox.put(number, droppable=True)
    assert inbox.dropped == 10
    inbox.put(-1)
    assert inbox.take_all()[-1] == -1


async def test_a_full_inbox_is_our_bug_and_says_so() -> None:
    inbox: Inbox[int] = Inbox()
    for number in range(EVENTS_MAX):
        inbox.put(number)
    with pytest.raises(InboxFullError, match="cannot take an event"):
        inbox.put(0)
