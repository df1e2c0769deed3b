"""What has happened and has not been handled yet: the one door between the edges and the engine.

Events wait in lanes, one for each job, and the lanes are emptied in turn: however many events one job has, another
job's exit waits for a few of them only. A source that may send any number of events, such as a worker, waits for its
turn, so its own socket fills up instead of the inbox. Events that are few by their nature, such as exits and stops,
are taken at once. Nothing that anybody sends makes `put` raise.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

import anyio
import anyio.lowlevel

TURNS_MAX = 256  # events of one lane that wait and were put in turn
SHARE_MAX = 64  # events that one lane gives before the next lane does
TAKEN_MAX = 512  # events of all lanes that are taken at once: then deadlines are looked at again

Item = TypeVar("Item")


class _Lane(Generic[Item]):
    """Made for a job's first event that waits and gone with its last: so it has to cost little."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: deque[tuple[Item, bool]] = deque()  # and whether it was put in turn
        self._turns = TURNS_MAX  # that nobody has
        self._asking: deque[anyio.Event] = deque()  # in the order of asking; each is set when it is given a turn

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
        except BaseException:  # cancelled: the turn goes to the next one; raised again
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


class Inbox(Generic[Item]):
    """A queue with one reader, for use on one event loop. Within a lane, the first to come is the first to be taken."""

    def __init__(self, lane_of: Callable[[Item], str] = lambda _: "") -> None:
        self._lane_of = lane_of
        self._lanes: dict[str, _Lane[Item]] = {}
        self._waiting: OrderedDict[str, _Lane[Item]] = OrderedDict()  # lanes with events; the first has the next turn
        self._arrived = anyio.Event()

    def put(self, event: Item) -> None:
        """Adds an event of a source that has few. Never blocks."""
        self._add(self._lane(event), event, in_turn=False)

    async def put_in_turn(self, event: Item) -> None:
        """Adds an event once its lane has room for it. Waits as long as that takes; the order of asking is kept."""
        lane = self._lane(event)
        await lane.ask_for_turn()
        self._add(lane, event, in_turn=True)

    def take(self) -> list[Item]:
        """A fair share of what waits, at most TAKEN_MAX events; empty if nothing waits."""
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
        """What waits in this lane, in order; it stays there."""
        found = self._lanes.get(lane)
        return [event for event, _ in found.events] if found is not None else []

    async def wait(self) -> None:
        """Returns once there is something to take. Where something waits already, everybody else runs once."""
        if self._waiting:
            await anyio.lowlevel.checkpoint()
        else:
            await self._arrived.wait()

    @property
    def lanes(self) -> int:
        """Lanes in use."""
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
