"""Which of a job's spawners gets which message when a better prepared one is ready to replace the first?

A successor is started once a spawner's workers taught it what to load. It waits, and takes over with the first message
about a new cycle; its predecessor ends as soon as nothing of its last cycle is left, and the successor keeps that: the
next supervisor must not miss it. If a new cycle comes while a successor still loads, the cycle waits for that one load:
otherwise each worker would load the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import anyio
from anyio.abc import TaskGroup
from holdfast_wire import spawner_link as wire

from supervisor.edges.workers.spawner.kept_succession import SUCCESSION, SUCCESSOR, Succession, succession
from supervisor.edges.workers.spawner.spawner_discovery import FoundSpawner, SpawnerFiles
from supervisor.edges.workers.spawner.spawner_link import SpawnerLink
from supervisor.errors import HoldfastError
from supervisor.ports.edges import Spawner

OnMessage = Callable[[wire.FromSpawner], None]


class Hearing(NamedTuple):
    """Receives a spawner's messages, and why it was lost."""

    on_message: OnMessage
    on_lost: Callable[[str], None]


# Starts a spawner that loads what was learned; None: the first one. Raises HoldfastError.
StartSpawner = Callable[[wire.Learned | None, Hearing], Awaitable[SpawnerLink]]
# Returns the link to a spawner that a previous supervisor started.
TakeOver = Callable[[FoundSpawner, Hearing], SpawnerLink]
# How long a new cycle waits for a load: less than the core allows a spawner for serving a store.
LOAD_TIMEOUT_S = 20.0
_NOT_LOADED_YET = "begins before that is loaded: each of its workers loads it itself"
_NOT_NEEDED = "nothing needs it any more"
EMPTIED_TIMEOUT_S = 5.0  # a lost spawner's processes that can't be killed by then are abandoned


class _Successor:
    """A successor. `link` None: its process is being started; `ready` None: it loads."""

    def __init__(self) -> None:
        self.starting = anyio.CancelScope()
        self.link: SpawnerLink | None = None
        self.ready: wire.Ready | None = None

    def has_loaded(self, learned: wire.Learned | None) -> bool:
        """Returns whether it has loaded all of that, or has told what it left out."""
        modules = {step for step in (learned.steps if learned is not None else ()) if "=" not in step}
        return self.ready is not None and (bool(self.ready.lost) or modules.issubset(self.ready.preloaded))


class SpawnerSuccession:
    """Routes messages to a job's spawners; see ports.Spawner. Use it only from the event loop's thread."""

    _current: SpawnerLink  # set by `run`, before anybody can ask

    def __init__(
        self, start: StartSpawner, on_message: OnMessage, on_kept: Callable[[SpawnerFiles | None], None]
    ) -> None:
        """The caller must call `run`. `on_kept` gets the current spawner's files each time data has left to it."""
        self._start = start
        self._on_message = on_message
        self._on_kept = on_kept
        self._lost: list[str] = []  # why a needed spawner was lost, and what it left
        self._ending = False
        self._tasks: TaskGroup | None = None
        self._successors: list[_Successor] = []  # oldest first; a later one has learned more
        self._owners: dict[int, SpawnerLink] = {}  # cycle with something left -> the spawner that got it
        self._ahead: set[int] = set()  # of them: those that are prepared, while no worker of them was ordered
        self._newest_cycle = -1
        self._held: list[wire.Order] = []  # orders for the newest cycle while it waits for a successor
        self._load_ended = anyio.Event()
        self._is_bare = False  # whether the workers of the current spawner load everything themselves
        self._is_unable = False  # whether the last attempt to load what was learned last has failed
        self._living: list[SpawnerLink] = []
        # Of the living, and whether they were told to end: they are once the current one keeps that.
        self._replaced: dict[SpawnerLink, bool] = {}
        self._fence: wire.Fence | None = None  # the last one
        self._collected: dict[SpawnerLink, list[wire.Order]] | None = None  # orders that are sent with the data to keep
        self._turns = 0  # turns in which something was kept
        self._texts: dict[str, str] = {}  # that are kept, for a spawner that has none of them yet
        self._complete: set[SpawnerLink] = set()  # those that had all of them
        self._hearings: dict[SpawnerLink, list[str]] = {}  # of spawners that were taken over
        self._learned: wire.Learned | None = None  # before that; no successor was found that has loaded it

    @property
    def pid(self) -> int:
        return self._current.pid

    def keep(self, texts: Mapping[str, str], orders: Sequence[wire.Order], on_kept: Callable[[], None]) -> None:
        """Sends orders with the data to keep; see ports.Spawner. The current spawner decides when they are kept."""
        collected = self._collected = {link: list[wire.Order]() for link in self._living}
        try:
            for order in orders:
                self.send(order)
        finally:
            self._collected = None
        self._turns += 1
        changed = {**texts, SUCCESSION: self._as_text()}
        self._texts = {name: text for name, text in (self._texts | changed).items() if text}
        replaced = {link: link.confirmation() for link in self._replaced}

        def kept(files: SpawnerFiles | None) -> None:
            self._on_kept(files)
            on_kept()
            for confirm in replaced.values():
                confirm()
            self._end_replaced(tuple(replaced))

        # The next supervisor goes on with the newest texts that one of them has: no order may be part of them that has
        # not left. Replaced spawners keep the older texts, which show that they had a cycle, not what they reported.
        for link in sorted(self._living, key=lambda each: not collected.get(each)):
            if link in replaced:
                continue
            is_new = link not in self._complete
            self._complete.add(link)
            link.keep(
                self._texts if is_new else changed,
                tuple(collected.get(link, ())),
                partial(kept, link.files) if link is self._current else lambda: None,
                are_all=is_new,
            )

    def send(self, message: wire.Order) -> None:
        """Routes a message. Never blocks, never raises."""
        match message:
            case wire.PrepareStore() | wire.ForkAhead() | wire.Spawn():
                self._order(message)
            case wire.Signal() | wire.KillTree():
                if self._held and message.cycle == self._newest_cycle:
                    self._release()  # the cycle is abandoned already
                self._say(self._owners.get(message.cycle, self._current), message)
            case wire.Fence():
                self._fence = message
                for link in list(self._living):
                    self._say(link, message)
            case wire.End():
                self._ending = True
                self._held.clear()
                self._replaced = {link: True for link, is_told in self._replaced.items() if is_told}  # this ends all
                for successor in list(self._successors):
                    self._dismiss(successor)  # it has no workers, and might load for seconds
                for link in list(self._living):
                    self._say(link, message)

    def _say(self, link: SpawnerLink, message: wire.Order) -> None:
        if isinstance(message, wire.Spawn | wire.KillTree):
            self._ahead.discard(message.cycle)
        if isinstance(message, wire.Signal | wire.KillTree | wire.End):
            link.let_go_on()
        if self._collected is not None and link in self._collected:
            self._collected[link].append(message)
        else:
            link.send(message)

    def kill(self, reason: str) -> None:
        for successor in list(self._successors):
            self._dismiss(successor)
        for link in list(self._living):
            link.kill(reason)

    def process_state(self) -> str:
        return "; ".join(f"the spawner (pid {link.pid}) {link.process_state()}" for link in self._living)

    async def run(self, on_started: Callable[[Spawner], None]) -> str:
        """Starts the first spawner and serves all links until none is left. Returns why a needed one was lost.

        Returns "" if none was. Raises HoldfastError if the first can't be started.
        """
        if not self._living:
            reasons: list[str] = []
            self._current = await self._start(None, Hearing(self._heard, reasons.append))
            self._living = [self._current]
            self._hearings[self._current] = reasons
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            for link in self._living:
                tasks.start_soon(self._serve, link, self._hearings.pop(link))
            on_started(self)
            if self._ending:
                self._end_replaced(tuple(self._replaced))
            self._release()  # the process that loaded for them ended with the previous supervisor
            if self._learned is not None:
                self._heard(self._learned)
        return "; ".join(self._lost)

    # --- from one supervisor to the next ---------------------------------------------------------------------------

    def take_back(self, found: Sequence[FoundSpawner], link_to: TakeOver) -> None:
        """Makes `run` continue with these spawners, as the texts of the first say, instead of starting one."""
        stood = succession(found[0].texts)
        assert stood is not None, "who calls has looked at it"
        links: dict[int, SpawnerLink] = {}
        for each in found:
            reasons: list[str] = []
            successor = _Successor()
            if each.pid in stood.needed:
                links[each.pid] = link_to(each, Hearing(self._heard, reasons.append))
            elif (own := succession(each.texts)) is not None and each.pid in own.needed:
                # It was replaced, and the previous supervisor ended before it could end it.
                links[each.pid] = link_to(each, Hearing(self._heard_replaced, reasons.append))
                self._replaced[links[each.pid]] = False
            else:
                successor.ready = each.welcome.ready
                heard = partial(self._heard_successor, successor)
                links[each.pid] = successor.link = link_to(each, Hearing(heard, reasons.append))
                self._successors.append(successor)
            self._hearings[links[each.pid]] = reasons
            if each.pid == stood.current:
                self._learned = each.welcome.learned
        if stood.is_unable or any(each.has_loaded(self._learned) for each in self._successors):
            self._learned = None
        self._living = list(links.values())
        self._current = links[stood.current]
        self._owners = {cycle: links[pid] for cycle, pid in stood.owners.items()}
        self._newest_cycle, self._is_bare, self._turns = stood.newest_cycle, stood.is_bare, stood.turns
        self._ending, self._is_unable = stood.is_ending, stood.is_unable
        self._held, self._ahead = stood.held_orders(), set(stood.ahead)

    def _as_text(self) -> str:
        return Succession(
            current=self._current.pid,
            owners={cycle: link.pid for cycle, link in self._owners.items()},
            newest_cycle=self._newest_cycle,
            is_bare=self._is_bare,
            is_ending=self._ending,
            held=tuple(wire.encode(message).decode() for message in self._held),
            turns=self._turns,
            is_unable=self._is_unable,
            ahead=tuple(sorted(self._ahead)),
        ).as_text()

    # --- who hears what --------------------------------------------------------------------------------------------

    def _order(self, message: wire.PrepareStore | wire.ForkAhead | wire.Spawn) -> None:
        if message.cycle > self._newest_cycle:
            self._release()
            self._newest_cycle = message.cycle
            if self._is_bare and self._is_loading() and self._ready_successor() is None and self._tasks is not None:
                self._held.append(message)
                if self._load_ended.is_set():
                    self._load_ended = anyio.Event()
                self._tasks.start_soon(self._wait_for_load, message.cycle, self._load_ended)
            else:
                self._begin_cycle()
                self._say(self._current, message)
        elif self._held and message.cycle == self._newest_cycle:
            self._held.append(message)
        else:
            self._say(self._owners.get(message.cycle, self._current), message)

    def _begin_cycle(self) -> None:
        """Gives the newest cycle to the best spawner that is ready."""
        if (successor := self._ready_successor()) is not None:
            self._hand_over(successor)
        elif self._is_loading():
            self._on_message(wire.Learned((), (), f"cycle {self._newest_cycle} {_NOT_LOADED_YET}"))
        self._owners[self._newest_cycle] = self._current
        self._ahead.add(self._newest_cycle)

    def _hand_over(self, successor: _Successor) -> None:
        assert successor.link is not None
        assert successor.ready is not None
        if self._turns:  # before the successor gets an order: it has workers before it can answer, or save anything
            self._current.keep_between({SUCCESSOR: str(successor.link.pid)}, ())
        before, self._current, self._is_bare = self._current, successor.link, False
        self._successors.remove(successor)
        self._on_message(successor.ready)
        self._end_if_done(before)

    async def _wait_for_load(self, cycle: int, ended: anyio.Event) -> None:
        with anyio.move_on_after(LOAD_TIMEOUT_S):
            await ended.wait()
        if cycle == self._newest_cycle:
            self._release()

    def _release(self) -> None:
        """Sends the held orders to the spawner that is ready now."""
        held, self._held = self._held, []
        if not held:
            return
        self._begin_cycle()
        self._ahead -= {message.cycle for message in held if isinstance(message, wire.Spawn)}
        if self._collected is not None or not self._turns:
            for message in held:
                self._say(self._current, message)
            return
        self._turns += 1
        changed = {SUCCESSION: self._as_text()}
        # They keep, too, that no orders are held any more; first the one that has them now.
        for link in sorted(self._living, key=lambda each: each is not self._current):
            if link not in self._replaced:
                texts = changed if link in self._complete else self._texts | changed
                link.keep_between(texts, tuple(held) if link is self._current else ())

    def _end_if_done(self, link: SpawnerLink) -> None:
        left = [cycle for cycle, owner in self._owners.items() if owner is link]
        if link is self._current or not self._ahead.issuperset(left):
            return
        for cycle in left:  # A newer one was ordered: this node does not run these any more.
            self._say(link, wire.KillTree(cycle))
        if left:
            return
        self._replaced[link] = False
        if not self._turns or self._ending:  # nothing is kept of this job, or nothing more of an end
            self._end_replaced((link,))

    def _end_replaced(self, links: Sequence[SpawnerLink]) -> None:
        for link in links:
            if self._replaced.get(link) is False:
                self._replaced[link] = True
                link.let_go_on()
                link.send(wire.End())  # not with data to keep: it gets none any more

    def _heard(self, message: wire.FromSpawner) -> None:
        """Handles a message of the first spawner or of a successor that has taken over."""
        self._on_message(message)
        match message:
            case wire.Learned(steps=steps) if not self._ending:
                if steps and self._tasks is not None:
                    self._is_unable = False
                    successor = _Successor()
                    self._successors.append(successor)
                    self._tasks.start_soon(self._keep_successor, successor, message)
            case wire.Ready():
                self._is_bare = not message.preloaded
            case wire.Emptied(cycle=cycle):
                if (owner := self._owners.pop(cycle, None)) is not None:
                    self._end_if_done(owner)
            case _:
                pass

    def _heard_replaced(self, message: wire.FromSpawner) -> None:
        """Passes on what becomes of output: that may come late. All else is known from before the return."""
        if isinstance(message, wire.CycleLogClosed | wire.OutputDropped):
            self._on_message(message)

    # --- successors ------------------------------------------------------------------------------------------------

    def _ready_successor(self) -> _Successor | None:
        return next((each for each in reversed(self._successors) if each.ready is not None), None)

    def _is_loading(self) -> bool:
        return any(each.ready is None for each in self._successors)

    async def _keep_successor(self, successor: _Successor, learned: wire.Learned) -> None:
        reasons: list[str] = []
        link: SpawnerLink | None = None
        hearing = Hearing(partial(self._heard_successor, successor), reasons.append)
        with successor.starting:
            try:
                link = await self._start(learned, hearing)
            except HoldfastError as error:
                self._tell_unable(successor, str(error))
        if link is None:
            self._forget(successor)
            return
        if successor.starting.cancel_called:  # It was dismissed just as its start completed.
            link.kill(_NOT_NEEDED)
        else:
            successor.link = link
            self._living.append(link)
            if self._fence is not None:
                self._say(link, self._fence)
        await self._serve(link, reasons)

    def _heard_successor(self, successor: _Successor, message: wire.FromSpawner) -> None:
        if successor not in self._successors:
            self._heard(message)  # it has taken over
        elif isinstance(message, wire.Ready):
            if message.method == "fork" and message.preloaded:
                successor.ready = message
                for other in self._successors[: self._successors.index(successor)]:
                    self._dismiss(other)  # it has learned less
                self._load_ended.set()
            else:
                self._tell_unable(successor, message.method_reason, message.lost)
                self._dismiss(successor)

    def _dismiss(self, successor: _Successor) -> None:
        successor.starting.cancel()
        self._forget(successor)
        if successor.link is not None and successor.link in self._living:
            self._living.remove(successor.link)
            successor.link.kill(_NOT_NEEDED)

    def _forget(self, successor: _Successor) -> None:
        if successor in self._successors:
            self._successors.remove(successor)
        if not self._is_loading():
            self._load_ended.set()

    def _tell_unable(self, successor: _Successor, reason: str, lost: str = "") -> None:
        self._is_unable |= self._successors[-1:] == [successor]  # what a later one loads may be possible
        self._on_message(wire.Learned((), (), f"nothing is loaded ahead: {reason}", lost))

    # --- the processes ---------------------------------------------------------------------------------------------

    async def _serve(self, link: SpawnerLink, reasons: list[str]) -> None:
        await link.run()
        relied = link is self._current or link in self._owners.values()
        self._living = [each for each in self._living if each is not link]
        self._complete.discard(link)
        self._replaced.pop(link, None)
        for successor in [each for each in self._successors if each.link is link]:
            if reasons and successor.ready is None:
                self._tell_unable(successor, f"what loads it was lost: {reasons[0]}")
            self._forget(successor)
        if not reasons:
            return
        if relied and not self._lost:
            self._lost += reasons
            self._held.clear()
            self.kill("the other spawner of its job was lost")  # workers of other spawners belong to a lost job
        stuck_pids = await link.emptied(timeout_s=EMPTIED_TIMEOUT_S)
        if stuck_pids and relied:
            named = ", ".join(map(str, stuck_pids))
            self._lost.append(f"processes {named} of it can't be killed (state D) and are left behind")
