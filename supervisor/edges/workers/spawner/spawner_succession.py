"""Which of a job's spawners hears what, when a better prepared one stands ready to follow the first?

A successor is started once the first spawner's workers taught it what to load. It waits, and takes over with the first
message about a cycle that nobody was told of yet; the first one ends as soon as nothing of its last cycle is left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import anyio
from anyio.abc import TaskGroup
from holdfast_wire import spawner_link as wire

from supervisor.edges.workers.spawner.spawner_link import SpawnerLink
from supervisor.errors import HoldfastError
from supervisor.ports import Spawner

OnMessage = Callable[[wire.FromSpawner], None]


class Hearing(NamedTuple):
    """Who hears what a spawner says, and why it was lost."""

    on_message: OnMessage
    on_lost: Callable[[str], None]


# Starts a spawner that loads what was learned; None: the first one. Raises HoldfastError.
StartSpawner = Callable[[wire.Learned | None, Hearing], Awaitable[SpawnerLink]]
EMPTIED_TIMEOUT_S = 5.0  # what a lost spawner left is killed; what can't be killed by then is given up


class SpawnerSuccession:
    """See ports.Spawner. All methods are for the event loop's thread."""

    _current: SpawnerLink  # from `run` on, before anybody can ask

    def __init__(self, start: StartSpawner, on_message: OnMessage) -> None:
        """`run` must follow."""
        self._start = start
        self._on_message = on_message
        self._lost: list[str] = []  # why a spawner on which the job relied was lost, and what it left
        self._ending = False
        self._tasks: TaskGroup | None = None
        self._starting = anyio.CancelScope()  # of the successor
        self._is_starting = False
        self._successor: SpawnerLink | None = None
        self._successor_ready: wire.Ready | None = None
        self._owners: dict[int, SpawnerLink] = {}  # cycle of which something is left -> who was told of it
        self._newest_cycle = -1
        self._living: list[SpawnerLink] = []

    @property
    def pid(self) -> int:
        return self._current.pid

    def send(self, message: wire.ToSpawner) -> None:
        """Never blocks, never raises."""
        match message:
            case wire.PrepareStore() | wire.ForkAhead() | wire.Spawn():
                self._owner(message.cycle).send(message)
            case wire.Signal() | wire.KillTree():
                self._owners.get(message.cycle, self._current).send(message)
            case wire.End():
                self._ending = True
                self._dismiss_successor()  # It may load for seconds yet, and has no workers.
                for link in list(self._living):
                    link.send(message)

    def kill(self, reason: str) -> None:
        for link in list(self._living):
            link.kill(reason)

    def whereabouts(self) -> str:
        return "; ".join(f"the spawner (pid {link.pid}) {link.whereabouts()}" for link in self._living)

    async def run(self, on_started: Callable[[Spawner], None]) -> str:
        """Starts the first spawner, then serves all links until none is left; why one was lost on which the job relied.

        "" where none was. Raises HoldfastError where the first can't be started.
        """
        reasons: list[str] = []
        self._current = await self._start(None, Hearing(self._heard, reasons.append))
        self._living = [self._current]
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._serve, self._current, reasons)
            on_started(self)
        return "; ".join(self._lost)

    # --- who hears what --------------------------------------------------------------------------------------------

    def _owner(self, cycle: int) -> SpawnerLink:
        if cycle > self._newest_cycle:
            self._newest_cycle = cycle
            if self._successor is not None and self._successor_ready is not None:
                self._hand_over(self._successor, self._successor_ready)
            self._owners[cycle] = self._current
        return self._owners.get(cycle, self._current)

    def _hand_over(self, successor: SpawnerLink, ready: wire.Ready) -> None:
        before = self._current
        self._current, self._successor, self._successor_ready = successor, None, None
        self._on_message(ready)
        self._end_if_done(before)

    def _end_if_done(self, link: SpawnerLink) -> None:
        if link is not self._current and link not in self._owners.values():
            link.send(wire.End())

    def _heard(self, message: wire.FromSpawner) -> None:
        """From the first spawner, and from each that has taken over."""
        match message:
            case wire.Learned(modules=modules) if modules and not self._ending:
                self._on_message(message)
                self._start_successor(message)
            case wire.Emptied(cycle=cycle):
                self._on_message(message)
                owner = self._owners.pop(cycle, None)
                if owner is not None:
                    self._end_if_done(owner)
            case _:
                self._on_message(message)

    # --- the successor ---------------------------------------------------------------------------------------------

    def _start_successor(self, learned: wire.Learned) -> None:
        if self._tasks is None or self._successor is not None or self._is_starting:
            return
        self._is_starting = True
        self._tasks.start_soon(self._keep_successor, learned)

    async def _keep_successor(self, learned: wire.Learned) -> None:
        reasons: list[str] = []
        link: SpawnerLink | None = None
        with self._starting:
            try:
                link = await self._start(learned, Hearing(self._heard_successor, reasons.append))
            except HoldfastError as error:
                self._tell_unable(str(error))
        self._is_starting = False
        if link is None:
            return
        self._successor = link
        self._living.append(link)
        await self._serve(link, reasons)

    def _heard_successor(self, message: wire.FromSpawner) -> None:
        if self._successor is None:
            self._heard(message)  # It has taken over.
        elif isinstance(message, wire.Ready):
            if message.method == "fork" and message.preloaded:
                self._successor_ready = message
            else:
                self._tell_unable(message.method_reason)
                self._dismiss_successor()

    def _dismiss_successor(self) -> None:
        self._starting.cancel()
        successor, self._successor, self._successor_ready = self._successor, None, None
        if successor is not None:
            self._living.remove(successor)
            successor.kill("nothing needs it any more")

    def _tell_unable(self, reason: str) -> None:
        self._on_message(wire.Learned((), (), f"nothing is loaded ahead: {reason}"))

    # --- the processes ---------------------------------------------------------------------------------------------

    async def _serve(self, link: SpawnerLink, reasons: list[str]) -> None:
        await link.run()
        relied = link is self._current or link in self._owners.values()
        if link in self._living:
            self._living.remove(link)
        if link is self._successor:
            self._successor = self._successor_ready = None
        if not reasons:
            return
        if relied and not self._lost:
            self._lost += reasons
            self._dismiss_successor()
            self.kill("the other spawner of its job was lost")  # Its workers, if it has some, are of a lost job.
        stuck_pids = await link.emptied(timeout_s=EMPTIED_TIMEOUT_S)
        if stuck_pids and relied:
            named = ", ".join(map(str, stuck_pids))
            self._lost.append(f"processes {named} of it can't be killed (state D) and were given up")
