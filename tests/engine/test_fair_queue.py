"""However much one source sends, events of others are taken soon, and nothing that anybody sends is an error."""

import anyio
import anyio.lowlevel

from supervisor.engine import fair_queue as inboxes
from supervisor.engine.fair_queue import SHARE_MAX, TAKEN_MAX, TURNS_MAX, FairQueue
from tests.settling import settled


def _by_job() -> FairQueue[tuple[str, int]]:
    return FairQueue(lambda event: event[0])


async def test_events_come_out_in_the_order_in_which_they_went_in() -> None:
    inbox: FairQueue[int] = FairQueue()
    for number in range(5):
        inbox.post(number)
    assert inbox.take() == [0, 1, 2, 3, 4]
    assert inbox.take() == []


async def test_wait_returns_at_the_first_event_and_not_before() -> None:
    inbox: FairQueue[str] = FairQueue()
    with anyio.move_on_after(0.01) as early:
        await inbox.wait()
    assert early.cancelled_caught
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(inbox.wait)
        await anyio.lowlevel.checkpoint()
        inbox.post("exit")
    assert inbox.take() == ["exit"]


async def test_an_exit_passes_the_thousands_of_words_of_another_job() -> None:
    inbox = _by_job()
    for number in range(100_000):
        inbox.post(("loud", number))
    inbox.post(("quiet", 0))
    first = inbox.take()
    assert first.index(("quiet", 0)) <= SHARE_MAX
    assert len(first) < TAKEN_MAX + SHARE_MAX
    rest: list[tuple[str, int]] = []
    while taken := inbox.take():
        rest += taken
    numbers = [number for job, number in (*first, *rest) if job == "loud"]
    assert numbers == list(range(100_000))


async def test_a_source_of_any_number_waits_for_its_turn_and_nothing_is_lost() -> None:
    inbox = _by_job()

    async def say(rank: int) -> None:
        for number in range(50):
            await inbox.post_in_turn(("job", 1000 * rank + number))

    heard: list[int] = []
    async with anyio.create_task_group() as tasks:
        for rank in range(100):
            tasks.start_soon(say, rank)
        await settled()
        inbox.post(("job", -1))
        assert len(inbox.take()) == TURNS_MAX + 1  # there was room for the exit though all turns were taken
        with anyio.fail_after(20):
            while len(heard) + TURNS_MAX < 5000:
                await inbox.wait()
                taken = inbox.take()
                assert len(taken) <= TURNS_MAX
                heard += [number for _, number in taken]
    for rank in range(100):
        told = [number for number in heard if number // 1000 == rank]
        assert told == sorted(told)


async def test_turns_are_given_in_the_order_of_asking() -> None:
    inbox = _by_job()
    put: list[int] = []

    async def flood() -> None:
        for number in range(10_000):
            await inbox.post_in_turn(("job", number))
            put.append(number)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(flood)
        await settled()
        tasks.start_soon(inbox.post_in_turn, ("job", -1))
        await settled()
        before = len(put)
        while ("job", -1) not in inbox.take():
            await settled()
        assert len(put) - before <= 2 * TURNS_MAX
        tasks.cancel_scope.cancel()


async def test_one_who_gives_up_waiting_takes_no_turn() -> None:
    inbox = _by_job()
    for number in range(TURNS_MAX):
        await inbox.post_in_turn(("job", number))
    with anyio.move_on_after(0.01) as waited:
        await inbox.post_in_turn(("job", -1))
    assert waited.cancelled_caught
    assert len(inbox.take()) == TURNS_MAX
    for number in range(TURNS_MAX):
        with anyio.fail_after(1):
            await inbox.post_in_turn(("job", number))
    assert ("job", -1) not in inbox.take()


async def test_a_reader_with_a_backlog_lets_others_run() -> None:
    inbox = _by_job()
    ran: list[int] = []

    async def other() -> None:
        ran.append(1)

    for number in range(3 * TAKEN_MAX):
        inbox.post(("job", number))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        inbox.take()
        await inbox.wait()
        assert ran


async def test_lanes_of_jobs_that_are_quiet_take_no_memory() -> None:
    inbox = _by_job()
    for number in range(3 * inboxes.TAKEN_MAX):
        await inbox.post_in_turn((f"job {number}", 0))
        assert inbox.take() == [(f"job {number}", 0)]
    assert inbox.lanes == 0
