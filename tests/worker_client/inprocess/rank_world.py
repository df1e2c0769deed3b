"""A job's ranks as threads of this process, each with its own assignment, and the store between them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta

from worker_client import inprocess
from worker_client.inprocess.rank_assignment import (
    RankAssignment,
    RankAssignmentCtx,
    RankDiscarded,
    assign,
)
from worker_client.inprocess.state import Mode, State
from worker_client.inprocess.store import BarrierTimeout

WAIT_MAX_S = 20.0


class Died(BaseException):
    """A rank's process ends while it assigns ranks."""


@dataclass
class Rendezvous:
    """One iteration's exchanges. Complete when every remaining participant has given a value."""

    members: set[int]
    values: dict[str, dict[int, str]] = field(default_factory=dict[str, dict[int, str]])
    given: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    changed: threading.Condition = field(default_factory=threading.Condition)

    def leave(self, member: int) -> None:
        with self.changed:
            self.members.discard(member)
            self.changed.notify_all()

    def exchange(self, member: int, name: str, value: str, rank: int) -> dict[int, str]:
        with self.changed:
            self.values.setdefault(name, {})[rank] = value
            self.given.setdefault(name, set()).add(member)
            self.changed.notify_all()
            if not self.changed.wait_for(lambda: self.members <= self.given[name], WAIT_MAX_S):
                raise BarrierTimeout(f"{name}: only {sorted(self.given[name])} of {sorted(self.members)} came")
            return dict(self.values[name])


@dataclass(frozen=True)
class Store:
    """The store as one rank sees it."""

    rendezvous: Rendezvous
    member: int

    def exchange(
        self, name: str, value: str, *, rank: int, ranks: Collection[int], timeout: timedelta
    ) -> dict[int, str]:
        assert rank in ranks
        assert isinstance(value, str)  # pyright: ignore[reportUnnecessaryIsInstance]  # or no frame takes it
        assert timeout > timedelta(0)
        return self.rendezvous.exchange(self.member, name, value, rank)


@dataclass
class Rank:
    initial: int
    state: State
    assignment: RankAssignment
    outcome: BaseException | None = None  # why it is gone

    def run(self, rendezvous: Rendezvous, terminated: set[int]) -> None:
        ctx = RankAssignmentCtx(self.state, Store(rendezvous, self.initial), set(terminated))
        try:
            assert assign(self.assignment, ctx) is ctx
            assert ctx.terminated_ranks == set()
        except (Exception, Died) as error:  # noqa: BLE001  # told to the test, as the rank's end
            self.outcome = error
        finally:
            rendezvous.leave(self.initial)


class World:
    """All ranks. `make` is called once per rank."""

    def __init__(self, size: int, make: Callable[[int], RankAssignment]) -> None:
        self.everyone = [Rank(i, State(rank=i, world_size=size), make(i)) for i in range(size)]

    @property
    def living(self) -> list[Rank]:
        return [rank for rank in self.everyone if rank.outcome is None]

    def assign(self, die: Iterable[int] = ()) -> World:
        """Calls the assignment on every live rank, after the initial ranks `die` have died."""
        terminated: set[int] = set()
        for initial in die:
            self.everyone[initial].outcome = Died()
            terminated.add(self.everyone[initial].state.rank)
        living = self.living
        rendezvous = Rendezvous({rank.initial for rank in living})
        with ThreadPoolExecutor(max_workers=max(1, len(living))) as pool:
            for done in [pool.submit(rank.run, rendezvous, terminated) for rank in living]:
                done.result()
        return self

    def ranks(self) -> dict[int, int]:
        """Returns initial rank → current rank."""
        return {rank.initial: rank.state.rank for rank in self.living}

    def active(self) -> list[int | None]:
        """Returns active ranks by initial rank; None for inactive and dead ones."""
        return [None if rank.outcome else rank.state.active_rank for rank in self.everyone]

    def sizes(self) -> tuple[int, int]:
        """Returns (active world size, world size), on which all ranks agree; (0, 0) when nobody is left."""
        sizes = {(rank.state.active_world_size, rank.state.world_size) for rank in self.living}
        if not sizes:
            return 0, 0
        assert len(sizes) == 1, sizes
        active, world = sizes.pop()
        assert active is not None
        return active, world

    def outcomes(self) -> list[type[BaseException] | None]:
        return [rank.outcome and type(rank.outcome) for rank in self.everyone]

    def discarded(self) -> list[int]:
        return [rank.initial for rank in self.everyone if isinstance(rank.outcome, RankDiscarded)]

    def check(self) -> None:
        """Checks what holds after every assignment: agreement, and numbers without gaps."""
        active_size, world_size = self.sizes()
        assert world_size == len(self.living)
        assert sorted(self.ranks().values()) == list(range(world_size))
        assert sorted(rank for rank in self.active() if rank is not None) == list(range(active_size))
        for rank in self.living:
            is_active = rank.state.active_rank is not None
            assert rank.state.mode is (Mode.ACTIVE if is_active else Mode.INACTIVE)


Make = Callable[[int], RankAssignment]


def after(size: int, die: set[int], make: Make) -> dict[int, int]:
    """Returns initial rank → rank after one restart."""
    world = World(size, make).assign()
    assert world.ranks() == {rank: rank for rank in range(size)}
    world.assign(die).check()
    return world.ranks()


def no_store() -> inprocess.store.RankStore:
    class NoStore:
        def exchange(self, *_: object, **__: object) -> dict[int, str]:
            raise AssertionError("nothing is exchanged here")

    return NoStore()


def active(world: World) -> list[int]:
    """Returns initial ranks in the order of their active ranks."""
    world.check()
    ranks = {rank.state.active_rank: rank.initial for rank in world.living if rank.state.active_rank is not None}
    return [ranks[number] for number in sorted(ranks)]
