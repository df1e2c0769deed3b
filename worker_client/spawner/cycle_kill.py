"""How is everything of a cycle killed and reaped, including escaped processes, and when is it given up?

Each death wakes the spawner (a child's by SIGCHLD, an escaped process's after its adoption), which then checks what is
left. There is no polling; one timer limits the wait.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from . import process_tree
from .cgroup import CycleCgroups
from .event_loop import Events
from .fork_and_exec import Child

# A process that survives SIGKILL this long is in state D (a dead file server, a broken driver) and is given up.
KILL_WAIT_S = 10.0
# From this round on, processes are stopped before they are killed, because they multiply faster than they are found.
_STOP_FIRST_FROM_ROUND = 4

Emptied = Callable[[int, tuple[int, ...]], None]


class _Kill:
    __slots__ = ("cycle", "emptied", "killed", "rounds")

    def __init__(self, cycle: int | None, emptied: Emptied) -> None:
        self.cycle = cycle  # None: all cycles
        self.emptied = emptied
        self.killed: set[int] = set()
        self.rounds = 0


class Killing:
    """The kills under way."""

    def __init__(
        self,
        events: Events,
        cgroups: CycleCgroups,
        children: dict[int, Child],
        cycle_ticks: dict[int, int],
        reap_all: Callable[[], None],
    ) -> None:
        self._events = events
        self._cgroups = cgroups
        self._children = children
        self._cycle_ticks = cycle_ticks
        self._reap_all = reap_all
        self._kills: list[_Kill] = []
        self._given_up: set[int] = set()
        self._busy = False

    def start(self, cycle: int | None, emptied: Emptied, *, wait_s: float = KILL_WAIT_S) -> None:
        """Kills all of `cycle` (None: of all cycles); calls `emptied` once, with what was killed and what was stuck."""
        kill = _Kill(cycle, emptied)
        self._kills.append(kill)
        for each in {child.cycle for child in self._children.values()} if cycle is None else {cycle}:
            self._cgroups.kill(each)
        for child in self._children.values():
            if cycle is None or child.cycle == cycle:
                child.killed_by_us = True
                if child.lingers:
                    process_tree.send(child.pid, signal.SIGKILL)
        self._events.set_sliced_timer(f"kill {id(kill)}", wait_s, lambda: self._give_up(kill))
        self.go_on()

    def spare(self, pid: int) -> None:
        """Spares a child that belongs to no cycle and ends by itself."""
        self._given_up.add(pid)

    def go_on(self) -> None:
        """Checks, after a death, what is left of the cycles that are being killed."""
        if self._busy or not self._kills:
            return
        self._busy = True  # Reaping reports deaths, which leads back here.
        try:
            for kill in list(self._kills):
                self._round(kill)
        finally:
            self._busy = False

    def _round(self, kill: _Kill) -> None:
        while True:
            self._reap_all()
            left = self._members(kill.cycle)
            if not left:
                self._finish(kill, ())
                return
            kill.rounds += 1
            if kill.rounds >= _STOP_FIRST_FROM_ROUND:
                for pid in left:
                    process_tree.send(pid, signal.SIGSTOP)
            for pid in left:
                process_tree.send(pid, signal.SIGKILL)
            fresh = set(left) - kill.killed
            kill.killed.update(left)
            if not fresh:
                return  # All were signalled; the next death calls this again.

    def _members(self, cycle: int | None) -> list[int]:
        """Returns what is left of `cycle`, with zombies: its children, their descendants, and adopted processes.

        Leaves out what may linger: a killed store does no harm, and a process with torch takes 30 ms to end.
        """
        children_of = process_tree.children_reader()
        others = {
            child.pid
            for child in self._children.values()
            if cycle is not None and (child.cycle != cycle or child.lingers)
        }
        newer = [ticks for each, ticks in self._cycle_ticks.items() if cycle is not None and each > cycle]
        roots: list[int] = []
        for pid in children_of(process_tree.own_pid()):
            if pid in others or pid in self._given_up:
                continue
            started = process_tree.start_ticks(pid)
            if pid not in self._children and newer and started is not None and started > min(newer):
                continue  # An orphan of a later cycle.
            roots.append(pid)
        return process_tree.descendants(roots, children_of)

    def _finish(self, kill: _Kill, stuck_pids: tuple[int, ...]) -> None:
        self._kills.remove(kill)
        self._events.cancel_timer(f"kill {id(kill)}")
        kill.emptied(len(kill.killed), stuck_pids)

    def _give_up(self, kill: _Kill) -> None:
        stuck_pids = tuple(pid for pid in self._members(kill.cycle) if not process_tree.is_zombie(pid))
        self._given_up.update(stuck_pids)
        self._finish(kill, stuck_pids)
