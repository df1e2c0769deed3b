"""Which of a job's spawners hears what, when a better prepared one stands ready to follow the first?

A successor is started once the first spawner's workers taught it what to load. It waits, and takes over with the first
message about a cycle that nobody was told of yet; the first one ends as soon as nothing of its last cycle is left.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup
from holdfast_wire import spawner_link as wire

from supervisor.edges.workers.spawner_link import SpawnerLink
from supervisor.errors import HoldfastError

OnMessage = Callable[[wire.FromSpawner], None]
OnLost = Callable[[str], None]
# Starts a spawner that loads what was learned; None: the first one. Raises HoldfastError.
StartSpawner = Callable[[wire.Learned | None, OnMessage, OnLost], SpawnerLink]
EMPTIED_TIMEOUT_S = 5.0  # what a lost spawner left is killed; what can't be killed by then is given up


class SpawnerSuccession:
    """See ports.Spawner. All methods are for the event loop's thread."""

    def __init__(self, start: StartSpawner, on_message: OnMessage) -> None:
        """Starts the first spawner; `run` must follow. Raises HoldfastError."""
        self._start = start
        self._on_message = on_message
        self._lost: list[str] = []  # why a spawner on which the job relied was lost, and what it left
        self._ending = False
        self._tasks: TaskGroup | None = None
        self._successor: SpawnerLink | None = None
        self._successor_ready: wire.Ready | None = None
        self._owners: dict[int, SpawnerLink] = {}  # cycle of which something is left -> who was told of it
        self._newest_cycle = -1
        self._first_reasons: list[str] = []
        self._current = start(None, self._heard, self._first_reasons.append)
        self._living = [self._current]

    @property
    def pid(self) -> int:
        return self._current.pid

    def send(self, message: wire.ToSpawner) -> None:
        """Never blocks. Raises SpawnerOverflowError."""
        match message:
            case wire.PrepareStore() | wire.Spawn():
                self._owner(message.cycle).send(message)
            case wire.Signal() | wire.KillTree():
                self._owners.get(message.cycle, self._current).send(message)
            case wire.End():
                self._ending = True
                self._dismiss_successor()  # It may load for seconds yet, and has no workers.
                for link in self._living:
                    link.send(message)

    def kill_tree(self) -> None:
        for link in self._living:
            link.kill_tree()

    async def run(self) -> str:
        """Serves all links until none is left; why one was lost on which the job relied, else ""."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._serve, self._current, self._first_reasons)
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
        if self._tasks is None or self._successor is not None:
            return
        reasons: list[str] = []
        try:
            link = self._start(learned, self._heard_successor, reasons.append)
        except HoldfastError as error:
            self._tell_unable(str(error))
            return
        self._successor = link
        self._living.append(link)
        self._tasks.start_soon(self._serve, link, reasons)

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
        successor, self._successor, self._successor_ready = self._successor, None, None
        if successor is not None:
            self._living.remove(successor)
            successor.kill_tree()

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
            self.kill_tree()  # The other one's workers, if it has some, are of the same lost job.
        link.kill_tree()
        stuck_pids = await link.emptied(timeout_s=EMPTIED_TIMEOUT_S)
        if stuck_pids and relied:
            named = ", ".join(map(str, stuck_pids))
            self._lost.append(f"processes {named} of it can't be killed (state D) and were given up")
