"""What is kept for the leader, until it has it or the job is forgotten?"""

from __future__ import annotations

import anyio

from supervisor.engine.unsent_events import UnsentEvents
from tests.queries.shared_job import happened

LIMIT_S = 10.0


def sequences(news: UnsentEvents) -> list[int]:
    return [event.sequence for event in news.of("j").events]


async def test_a_job_with_something_new_is_named_once():
    news = UnsentEvents()
    for event in happened("n1", 1, 2):
        news.note(event)
    news.changed("j")
    with anyio.fail_after(LIMIT_S):
        assert await news.next_changed() == "j"
    with anyio.move_on_after(0.01) as waiting:
        await news.next_changed()
    assert waiting.cancelled_caught
    assert sequences(news) == [1, 2]


def test_the_past_comes_before_what_happened_meanwhile():
    news = UnsentEvents()
    news.note(happened("n1", 4)[0])
    news.recall("j", happened("n1", 2, 3))
    assert sequences(news) == [2, 3, 4]


def test_an_id_that_is_used_again_begins_with_nothing():
    news = UnsentEvents()
    for event in happened("n1", 1, 2, 1):
        news.note(event)
    assert sequences(news) == [1]
    before = news.get("j")
    news.forget("j")
    assert before is not None
    assert (news.get("j"), before.has_unsent) == (None, False)


async def test_the_last_news_wait_until_somebody_says_that_they_are_told():
    news, over = UnsentEvents(), list[str]()

    async def tell_last() -> None:
        await news.tell_last("j")
        over.append("j")

    with anyio.fail_after(LIMIT_S):
        await news.tell_last("unknown")
        news.note(happened("n1", 1)[0])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tell_last)
            await anyio.lowlevel.checkpoint()
            assert await news.next_changed() == "j"
            told = news.of("j").last_told
            assert told is not None
            assert over == []
            told.set()
    assert over == ["j"]
