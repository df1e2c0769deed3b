"""Which events wait to be handled? This is the only way between the edges and the engine.

Events wait in one lane per job, and the lanes are emptied in turn: however many events one job has, another job's exit
waits for only a few of them. A source that may send any number of events, such as a worker, waits for its turn, so its
own socket fills up instead of the inbox. Rare events, such as exits and stops, are taken at once. `post` never raises.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

import anyio
import anyio.lowlevel

TURNS_MAX = 256  # waiting events of one lane that were posted in turn
SHARE_MAX = 64  # events that one lane yields before the next lane does
TAKEN_MAX = 512  # events of all lanes taken at once, before deadlines are checked again

Item = TypeVar("Item")


class _Lane(Generic[Item]):
    """One job's waiting events: created with the first, gone with the last, so it must be cheap."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: deque[tuple[Item, bool]] = deque()  # and whether it was posted in turn
        self._turns = TURNS_MAX  # free turns
        self._asking: deque[anyio.Event] = deque()  # in the order of requests; each is set when it gets a turn

    @property
    def is_idle(self) -> bool:
        return not self.events and self._turns == TURNS_MAX

    async def ask_for_turn(self) -> None:
        if self._turns:
            self._turns -= 1
            return
        given = anyio.Event()
        self._asking.append(given)
        try:
            await given.wait()
        except BaseException:  # cancelled: the turn passes to the next; raised again
            if given.is_set():
                self.give_turn()
            else:
                self._asking.remove(given)
            raise

    def give_turn(self) -> None:
        if self._asking:
            self._asking.popleft().set()
        else:
            self._turns += 1


class FairQueue(Generic[Item]):
    """A queue with one reader on one event loop. Each lane is first in, first out."""

    def __init__(self, lane_of: Callable[[Item], str] = lambda _: "") -> None:
        self._lane_of = lane_of
        self._lanes: dict[str, _Lane[Item]] = {}
        self._waiting: OrderedDict[str, _Lane[Item]] = OrderedDict()  # lanes with events; the first has the next turn
        self._arrived = anyio.Event()

    def post(self, event: Item) -> None:
        """Adds an event from a source that has few. Never blocks."""
        self._add(self._lane(event), event, in_turn=False)

    async def post_in_turn(self, event: Item) -> None:
        """Adds an event once its lane has room. Waits as long as that takes; keeps the order of requests."""
        lane = self._lane(event)
        await lane.ask_for_turn()
        self._add(lane, event, in_turn=True)

    def take(self) -> list[Item]:
        """Returns a fair share of the waiting events, at most TAKEN_MAX; empty if none wait."""
        taken: list[Item] = []
        while self._waiting and len(taken) < TAKEN_MAX:
            name, lane = self._waiting.popitem(last=False)
            for _ in range(min(SHARE_MAX, len(lane.events))):
                event, in_turn = lane.events.popleft()
                taken.append(event)
                if in_turn:
                    lane.give_turn()
            if lane.events:
                self._waiting[name] = lane
            elif lane.is_idle:
                self._lanes.pop(name, None)
        if self._arrived.is_set():
            self._arrived = anyio.Event()
        return taken

    def waiting(self, lane: str) -> list[Item]:
        """Returns the waiting events of this lane, in order, without removing them."""
        found = self._lanes.get(lane)
        return [event for event, _ in found.events] if found is not None else []

    async def wait(self) -> None:
        """Returns once there is an event to take. If one waits already, lets every other task run once."""
        if self._waiting:
            await anyio.lowlevel.checkpoint()
        else:
            await self._arrived.wait()

    @property
    def lanes(self) -> int:
        """Returns the number of lanes in use."""
        return len(self._lanes)

    def _lane(self, event: Item) -> _Lane[Item]:
        name = self._lane_of(event)
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _Lane(name)
        return lane

    def _add(self, lane: _Lane[Item], event: Item, *, in_turn: bool) -> None:
        lane.events.append((event, in_turn))
        if not self._waiting:
            self._arrived.set()
        self._waiting.setdefault(lane.name, lane)
