"""Who shares a run, whose turn is next, and is everything bounded?"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup

from supervisor.edges.machine.health import healthd_queue as module
from supervisor.edges.machine.health.healthd_queue import (
    RUNS_MAX,
    RUNS_OF_ONE_MAX,
    WAITING_OF_ONE_MAX,
    Arguments,
    HealthdQueue,
)
from supervisor.errors import ExhaustedError

ALICE, BOB, CAROL = 1, 2, 3


async def settled() -> None:
    """Lets every task go on until it waits for the test: none of them waits for anything else."""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


class Program:
    """Counts its runs; each result holds its arguments, and waits until the test lets it go."""

    def __init__(self) -> None:
        self.begun: list[Arguments] = []
        self.gates: dict[Arguments, anyio.Event] = {}

    async def check(self, arguments: Sequence[str]) -> str:
        key = tuple(arguments)
        self.begun.append(key)
        number = len(self.begun)
        await self.gates.setdefault(key, anyio.Event()).wait()
        if key == ("broken",):
            raise ValueError("broken")
        return f"{' '.join(key)}, run {number}"

    def end(self, *arguments: str) -> None:
        self.gates.pop(arguments).set()


class Played:
    def __init__(self, tasks: TaskGroup) -> None:
        self.program = Program()
        self.runs = HealthdQueue(self.program.check, tasks)
        self.got: list[tuple[int, str]] = []
        self._tasks = tasks

    async def ask(self, uid: int, *arguments: str) -> anyio.CancelScope:
        """Asks and returns once nothing moves any more; what is answered comes to `got`."""
        scope = anyio.CancelScope()

        async def wait() -> None:
            with scope:
                try:
                    self.got.append((uid, await self.runs.result(uid, arguments)))
                except ExhaustedError as error:
                    self.got.append((uid, str(error)))

        self._tasks.start_soon(wait)
        await settled()
        return scope

    async def end(self, *arguments: str) -> None:
        self.program.end(*arguments)
        await settled()


@asynccontextmanager
async def played() -> AsyncGenerator[Played]:
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            yield Played(tasks)
            tasks.cancel_scope.cancel()


async def test_equal_requests_at_the_same_time_share_one_run_and_others_never() -> None:
    async with played() as game:
        for uid in (ALICE, BOB, CAROL):
            await game.ask(uid, "usual")
        await game.ask(BOB, "usual", "too")
        assert game.program.begun == [("usual",), ("usual", "too")]
        await game.end("usual")
        assert game.got == [(uid, "usual, run 1") for uid in (ALICE, BOB, CAROL)]
        await game.ask(ALICE, "usual")  # It has ended, and there is room: what it found may have changed.
        assert len(game.program.begun) == 3
        await game.end("usual", "too")
        assert game.got[-1] == (BOB, "usual too, run 2")


async def test_a_run_that_began_before_is_not_shared_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async with played() as game:
        await game.ask(ALICE, "usual")
        monkeypatch.setattr(module, "SHARED_S", -1.0)  # as if it had begun long ago
        await game.ask(BOB, "usual")
        assert len(game.program.begun) == 2


async def test_without_room_a_result_counts_within_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with played() as game:
        await game.ask(BOB, "usual")
        await game.end("usual")
        for number in range(RUNS_MAX):
            await game.ask(100 + number, f"slow {number}")
        await game.ask(ALICE, "usual")
        assert game.got == [(BOB, "usual, run 1"), (ALICE, "usual, run 1")]
        await game.ask(ALICE, "slow 3")  # It is under way, and of the same arguments.
        await game.ask(ALICE, "unusual")  # This one waits.
        monkeypatch.setattr(module, "REUSED_S", -1.0)
        await game.ask(CAROL, "usual")  # So does this one: the result is too old.
        assert len(game.got) == 2
        await game.end("slow 3")
        assert game.got[2:] == [(103, "slow 3, run 5"), (ALICE, "slow 3, run 5")]
        assert game.program.begun[-1] == ("unusual",)
        await game.end("slow 4")
        assert game.program.begun[-1] == ("usual",)


async def test_a_user_who_asks_for_much_waits_for_herself_alone() -> None:
    async with played() as game:
        for number in range(RUNS_OF_ONE_MAX + WAITING_OF_ONE_MAX + 3):
            await game.ask(ALICE, f"slow {number}")
        assert len(game.program.begun) == RUNS_OF_ONE_MAX
        refused = "cannot check the node: 16 requests of user 1 wait already; ask again later"
        assert game.got == [(ALICE, refused)] * 3
        await game.ask(BOB, "usual")
        await game.end("usual")
        assert game.got[-1][0] == BOB


async def test_users_take_turns_and_equal_requests_that_wait_share_a_run() -> None:
    async with played() as game:
        for number in range(RUNS_MAX):
            await game.ask(100 + number, f"slow {number}")
        for uid, argument in ((ALICE, "a"), (ALICE, "b"), (ALICE, "c"), (BOB, "b"), (BOB, "d"), (CAROL, "b")):
            await game.ask(uid, argument)
        for number in range(4):
            await game.end(f"slow {number}")
        begun = [each[0] for each in game.program.begun[RUNS_MAX:]]
        assert begun == ["a", "b"]  # Each has one; CAROL has the one of BOB, and ALICE's second request, too.
        await game.end("b")
        assert {uid for uid, said in game.got if said.startswith("b")} == {ALICE, BOB, CAROL}
        assert [each[0] for each in game.program.begun[RUNS_MAX:]] == ["a", "b", "d"]
        await game.end("a")
        assert [each[0] for each in game.program.begun[RUNS_MAX:]] == ["a", "b", "d", "c"]


async def test_a_request_that_goes_leaves_its_turn_and_its_run_goes_on() -> None:
    async with played() as game:
        first = await game.ask(ALICE, "first")
        first.cancel()
        await game.ask(ALICE, "second")
        third = await game.ask(ALICE, "third")
        third.cancel()
        await settled()
        await game.end("second")
        assert game.got == [(ALICE, "second, run 2")]
        await game.end("first")
        assert game.program.begun == [("first",), ("second",)]


async def test_a_check_that_fails_ends_nothing_and_is_no_verdict() -> None:
    async with played() as game:
        await game.ask(ALICE, "broken")
        await game.end("broken")
        assert game.got == [(ALICE, "cannot check the node: the check has failed; see the log of holdfast healthd")]
        await game.ask(ALICE, "usual")
        await game.end("usual")
        assert game.got[-1] == (ALICE, "usual, run 2")


async def test_results_are_kept_in_a_bounded_number() -> None:
    async with played() as game:
        await game.ask(BOB, "usual")
        await game.end("usual")
        for number in range(100):
            await game.ask(ALICE, f"{number}")
            await game.end(f"{number}")
        kept = game.runs._kept  # pyright: ignore[reportPrivateUsage]
        assert [each.arguments for each in kept] == [("usual",), ("98",), ("99",)]
