"""Which processes get a signal for workers, and in which order?"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence

from holdfast_wire.spawner_link import Signal

from . import tree
from .children import Child


def carry_out(message: Signal, children: Mapping[int, Child]) -> None:
    """Carries out the order. `children` by pid: those that are not reaped yet."""
    chosen: list[int] = []
    for child in children.values():
        wanted = not message.local_ranks or child.local_rank in message.local_ranks
        if child.cycle == message.cycle and child.local_rank >= 0 and wanted:
            child.killed_by_us |= message.signal == signal.SIGKILL
            chosen.append(child.pid)
    numbers = (signal.SIGCONT, message.signal) if message.resume else (message.signal,)
    # A pid that belongs to a live child again no longer means a dead one.
    leaders = [pid for pid in message.sessions if pid not in children]
    send(chosen, numbers, whole_sessions=message.tree, leaders=leaders)


def send(pids: Sequence[int], numbers: Sequence[int], *, whole_sessions: bool, leaders: Sequence[int] = ()) -> None:
    """Signals children first: they are not reaped, so their pids are valid. The rest are looked up just before.

    Members of a child's session are searched for below this process, not below the child, which may have died of the
    signal or before (`leaders`). A session keeps its number as long as it has a member.
    """
    for number in numbers:
        for pid in pids:
            tree.send(pid, number)
    led = (*pids, *leaders)
    if not whole_sessions or not led:
        return
    for pid in tree.descendants([tree.own_pid()], tree.children_reader())[1:]:
        if pid not in pids and tree.session_of(pid) in led:
            for number in numbers:
                tree.send(pid, number)
