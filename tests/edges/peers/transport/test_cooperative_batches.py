"""Much work is done in order, a share at a time, and the rest of the event loop gets its turn in between."""

from __future__ import annotations

import asyncio
import itertools

import anyio

from supervisor.edges.peers.transport.cooperative_batches import SHARE_MAX, BatchedCalls, DelayedCalls

LIMIT_S = 30.0


async def test_calls_are_made_in_order_and_a_share_in_each_turn_of_the_loop():
    turns = BatchedCalls()
    made: list[int] = []
    for number in range(5 * SHARE_MAX):
        turns.soon(lambda number=number: made.append(number))
    seen = [0]
    while len(made) < 5 * SHARE_MAX:
        await asyncio.sleep(0)
        seen.append(len(made))
    assert made == list(range(5 * SHARE_MAX))
    assert max(after - before for before, after in itertools.pairwise(seen)) == SHARE_MAX


async def test_a_call_that_fails_and_one_that_asks_for_more_keep_nobody_waiting():
    turns = BatchedCalls()
    made: list[str] = []
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))

    def fail() -> None:
        raise RuntimeError("a defect")

    def again() -> None:
        made.append("again")
        turns.soon(lambda: made.append("later"))

    turns.soon(fail)
    turns.soon(again)
    with anyio.fail_after(LIMIT_S):
        await turns.until_empty()
    assert made == ["again", "later"]
    assert [str(each) for each in failures] == ["a defect"]
    await turns.until_empty()


async def test_what_is_due_later_comes_in_order_and_not_before_its_time():
    loop = asyncio.get_running_loop()
    later = DelayedCalls(0.05)
    made: list[tuple[int, float]] = []
    done = anyio.Event()
    asked_at_s: list[float] = []

    def ask(number: int) -> None:
        asked_at_s.append(loop.time())
        later.call(lambda: made.append((number, loop.time())))

    for number in range(3 * SHARE_MAX):
        ask(number)
    loop.call_later(0.02, lambda: (ask(3 * SHARE_MAX), later.call(done.set)))
    with anyio.fail_after(LIMIT_S):
        await done.wait()
    assert [number for number, _ in made] == list(range(3 * SHARE_MAX + 1))
    assert all(at_s - asked_s >= 0.05 - 0.001 for (_, at_s), asked_s in zip(made, asked_at_s, strict=True))
