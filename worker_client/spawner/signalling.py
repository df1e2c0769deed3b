"""Which processes get a signal for workers, in which order, and when?

A worker's helpers, such as the workers of a DataLoader, get a signal after it: a script that handles the signal still
needs them to leave its loop and to save. They get it as soon as their worker has ended, once little of its grace period
is left, or after a minute: a script may itself wait for children that need the signal. A command that is not Python
gets no such order: a shell may wait for its children before it acts.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence

from holdfast_wire.spawner_link import Signal
from holdfast_wire.spawner_settings import SpawnerSettings

from . import process_tree
from .event_loop import Events
from .fork_and_exec import Child
from .reaping import Ending

HELPERS_AFTER_S = 10.0  # the earliest, and the time if the grace period is not known
HELPERS_GRACE_S = 5.0  # helpers get the signal this long before the grace period ends
HELPERS_BEFORE_S = 60.0  # the latest, however long the grace period is
EXITED_FOR_SIGTERM = (0, 128 + signal.SIGTERM)  # by a handler that has saved, and as in a shell
_TIMER = "signal helpers"


class Signalling:
    """`children` by pid: those that are not reaped yet."""

    def __init__(self, events: Events, children: Mapping[int, Child], settings: SpawnerSettings) -> None:
        self._events = events
        self._children = children
        self._workers_first = settings.entry != "command"
        self._return_timeout_s = None if settings.private else settings.supervisor_return_timeout_s
        self._later: dict[int, tuple[int, ...]] = {}  # worker's pid → what its helpers get
        self._is_unattended = False
        self._ignoring: set[int] = set()  # pids of workers that ignored SIGTERM when `terminate_workers` sent it

    @property
    def has_workers(self) -> bool:
        return bool(self._workers())

    def carry_out(self, message: Signal) -> None:
        chosen: list[int] = []
        for child in self._children.values():
            wanted = not message.local_ranks or child.local_rank in message.local_ranks
            if child.cycle == message.cycle and child.local_rank >= 0 and wanted:
                child.killed_by_us |= message.signal == signal.SIGKILL
                child.unattended_s = None
                chosen.append(child.pid)
        # A pid that belongs to a live child again no longer means a dead one.
        leaders = [pid for pid in message.sessions if pid not in self._children]
        if message.tree and message.signal != signal.SIGKILL:
            self._send_to_trees(chosen, message.numbers, leaders, message.grace_s)
        else:
            _send(chosen, message.numbers, whole_sessions=message.tree, leaders=leaders)

    def terminate_workers(self) -> None:
        """Asks the workers of all cycles to end, even stopped ones: no supervisor came back in time."""
        self._is_unattended = True
        for child in self._children.values():
            child.unattended_s = self._return_timeout_s
        workers = self._workers()
        if self._workers_first:  # A shell that ignores it may have a child that does not.
            self._ignoring = {pid for pid in workers if process_tree.ignores(pid, signal.SIGTERM)}
        self._send_to_trees(workers, (signal.SIGCONT, signal.SIGTERM), ())

    def call_off(self) -> None:
        """Lets workers live on that were told to end by `terminate_workers`, with their helpers."""
        if self._is_unattended:
            self._is_unattended = False
            self._later.clear()
            self._events.cancel_timer(_TIMER)

    def _workers(self) -> list[int]:
        return [child.pid for child in self._children.values() if child.local_rank >= 0]

    def _send_to_trees(
        self, workers: Sequence[int], numbers: Sequence[int], leaders: Sequence[int], grace_s: float = 0.0
    ) -> None:
        if not self._workers_first:
            _send(workers, numbers, whole_sessions=True, leaders=leaders)
            return
        _send(workers, numbers, whole_sessions=False)
        _send_to_helpers(leaders, numbers)
        self._later |= dict.fromkeys(workers, tuple(numbers))
        after_s = min(max(HELPERS_AFTER_S, grace_s - HELPERS_GRACE_S), HELPERS_BEFORE_S)
        self._events.set_timer(_TIMER, after_s, self._send_later)

    def worker_ended(self, child: Child, ending: Ending) -> None:
        """Signals its helpers, which now are below processes that this one has adopted."""
        # It may have saved for minutes; but if it lived on, how it ends has another reason. Nobody can tell a code 0
        # after such a save from that of a finished script, unless the script ignored the signal.
        for_signal = ending.signal == signal.SIGTERM or ending.code in EXITED_FOR_SIGTERM
        has_finished = ending.code == 0 and child.pid in self._ignoring
        if has_finished or not (self._is_unattended or for_signal):
            child.unattended_s = None
        if (numbers := self._later.pop(child.pid, None)) is not None:
            children_of = process_tree.children_reader()
            adopted = [each for each in children_of(process_tree.own_pid()) if each not in self._children]
            _send_to_members(process_tree.descendants(adopted, children_of), [child.pid], numbers)

    def _send_later(self) -> None:
        for pid, numbers in self._later.items():
            _send_to_helpers([pid], numbers)
        self._later.clear()


def _send(pids: Sequence[int], numbers: Sequence[int], *, whole_sessions: bool, leaders: Sequence[int] = ()) -> None:
    """Signals children first: they are not reaped, so their pids are valid. The rest are looked up just before.

    `leaders`: children that have ended.
    """
    for number in numbers:
        for pid in pids:
            process_tree.send(pid, number)
    if whole_sessions:
        _send_to_helpers([*pids, *leaders], numbers)


def _send_to_helpers(leaders: Sequence[int], numbers: Sequence[int]) -> None:
    """Signals the other members of these children's sessions.

    They are searched for below this process, not below the child, which may have died of the signal or before. A
    session keeps its number as long as it has a member.
    """
    if leaders:
        _send_to_members(
            process_tree.descendants([process_tree.own_pid()], process_tree.children_reader())[1:], leaders, numbers
        )


def _send_to_members(pids: Sequence[int], leaders: Sequence[int], numbers: Sequence[int]) -> None:
    for pid in pids:
        if pid not in leaders and process_tree.session_of(pid) in leaders:
            for number in numbers:
                process_tree.send(pid, number)
