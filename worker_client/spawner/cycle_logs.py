"""Which workers print into the file of their cycle, and when is that file complete?

Nothing is loaded and no process is started before a worker is planned that way. The work is done in cycle_log/.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast_wire.spawner_link import CycleLogClosed, OutputDropped, Report, WorkerPlan

from . import children, error_file, identity
from .child_state import Inherited
from .children import Start
from .events import Events
from .killing import Killing

if TYPE_CHECKING:
    from .cycle_log.feeds import Feeds

END_WAIT_S = 4.0  # for a slow disk, when the job is over
TELL_S = 1.0  # between two reports of a loss
ALL_RANKS = -1
RECORD_VARIABLE = "NVRX_CURRENT_CYCLE_INFO"
LINK_NAME = "cycle.log"  # to the file of the cycle, in the folder of a rank's logs


class CycleLogs:
    """The spawner's part in them."""

    def __init__(self, events: Events, inherited: Inherited, killing: Killing, send: Callable[[Report], None]) -> None:
        self._events = events
        self._inherited = inherited
        self._killing = killing
        self._send = send
        self._feeds: Feeds | None = None
        self._lost_bytes: dict[int, int] = {}
        self._record = ("", -1)  # of the newest cycle: the link to it, and its number

    def streams(self, cycle: int, plan: WorkerPlan) -> dict[int, int]:
        """The descriptors of a worker's stdout and stderr, which are one pipe. Raises OSError."""
        if self._feeds is None:
            from .cycle_log.feeds import Feeds

            self._feeds = Feeds(self._events, self._start, self._on_closed, self._on_lost)
        _link(plan)
        fd = self._feeds.open(cycle, plan.local_rank, plan.cycle_log, plan.cycle_log_prefix, plan.cycle_log_door)
        return {1: fd, 2: os.dup(fd)}

    def note_record(self, cycle: int, env: Mapping[str, str]) -> None:
        """A worker of the cycle gets these variables, one of which may lead to its record."""
        self._record = env.get(RECORD_VARIABLE, ""), cycle

    def drain(self, cycle: int, local_rank: int) -> bytes:
        """Pass on what a worker that has ended left in its pipe. Returns the last that it printed."""
        return self._feeds.drain(cycle, local_rank) if self._feeds is not None else b""

    def over(self, cycle: int) -> None:
        """Nothing of the cycle is left: its file is closed once all is written. Nobody waits for that."""
        if self._feeds is not None:
            self._feeds.over(cycle)

    def end(self, then: Callable[[], None], *, alone: bool) -> None:
        """The job is over: calls `then` once all files are complete, or can't be in time.

        `alone`: no supervisor is there that would complete the record of the cycle.
        """
        if alone and self._record[0]:
            from .cycle_end import complete  # Late: it is seldom needed.

            complete(*self._record)
        if self._feeds is not None:
            self._feeds.close_all(lambda: self._end(then), END_WAIT_S)
        else:
            then()

    def _end(self, then: Callable[[], None]) -> None:
        """Tells what is not written by now."""
        for path, lines, late_bytes, reason in self._feeds.late.values() if self._feeds is not None else ():
            late = f"{lines} lines were not in {path} yet when the job ended: {reason}; some may still get there"
            self._send(OutputDropped(ALL_RANKS, late_bytes, late))
        then()

    def _start(self, link_fd: int) -> int:
        start = Start({}, {}, keep=frozenset({link_fd}))
        pid = children.fork_and_call(self._inherited, start, lambda: _write(link_fd), leave=self._events.close)
        self._killing.spare(pid)
        return pid

    def _on_closed(self, cycle: int, path: str, written: int, lines: int, lost_bytes: int, reason: str) -> None:
        if lost_bytes:  # The last word about the loss: what was told of it was the beginning.
            self._events.cancel_timer(_loss_timer(ALL_RANKS))
            if lost_bytes != self._lost_bytes.pop(ALL_RANKS, 0):
                self._send(OutputDropped(ALL_RANKS, lost_bytes, f"cannot write {path}: {reason}"))
        self._send(CycleLogClosed(cycle, path, written, lines, lost_bytes, reason))

    def _on_lost(self, cycle: int, local_rank: int, lost_bytes: int, reason: str) -> None:
        """`lost_bytes`: so far where the rank is ALL_RANKS, else those of this moment."""
        known = self._lost_bytes.get(local_rank)
        self._lost_bytes[local_rank] = lost_bytes + (known or 0 if local_rank != ALL_RANKS else 0)

        def report() -> None:
            self._send(OutputDropped(local_rank, self._lost_bytes[local_rank], reason))

        self._events.set_timer(_loss_timer(local_rank), 0.0 if known is None else TELL_S, report)


def _loss_timer(local_rank: int) -> str:
    return f"log of {local_rank} lost"


def _link(plan: WorkerPlan) -> None:
    """Beside the rank's other files, so that `holdfast logs` finds what it prints."""
    folder = os.path.dirname(plan.env.get(error_file.VARIABLE, ""))
    with suppress(OSError):  # It is there already, or the disk is full: the output itself is not touched by that.
        if folder:
            os.symlink(plan.cycle_log, f"{folder}/{LINK_NAME}")


def _write(link_fd: int) -> None:
    """In the new process, which has the spawner's memory and does nothing that needs it."""
    identity.die_with_parent(0)  # What is not written yet outlives a spawner that is killed.
    identity.set_comm(b"hf-log")
    from .cycle_log import log_process

    log_process.serve(link_fd)
