"""Which workers print into the file of their cycle, and when is that file complete?

Nothing is started until a worker's plan asks for it. cycle_log/ does the work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress

from holdfast_wire.private_supervisor import JOB_ID_VARIABLE, LOG_OF_VARIABLE, LOG_PROCESS_NAME
from holdfast_wire.spawner_link import CycleLogClosed, OutputDropped, Report, WorkerPlan

from . import error_file, fork_and_exec, process_attributes
from .child_state import Inherited
from .cycle_end_record import complete
from .cycle_kill import Killing
from .cycle_log import log_process
from .cycle_log.feeds import Feeds
from .cycle_log.worker_pipe import Place
from .dropped_output import DroppedOutput
from .event_loop import Events
from .fork_and_exec import Start

END_WAIT_S = 4.0  # for a slow disk, when the job is over
ALL_RANKS = -1
RECORD_VARIABLE = "NVRX_CURRENT_CYCLE_INFO"
LINK_NAME = "cycle.log"  # to the file of the cycle, in the folder of a rank's logs
RUN_LINK_NAME = "cycle.run"  # beside it: "leads" to when this run began, in ms of Unix time
EPOCH_VARIABLE = "HOLDFAST_FENCING_EPOCH"  # when the leader of the cycle was given the job, in Unix time in ms
_STANDARD_STREAMS = frozenset(range(3))


class CycleLogs:
    """The spawner's part in the logs of cycles."""

    def __init__(self, events: Events, inherited: Inherited, killing: Killing, send: Callable[[Report], None]) -> None:
        self._events = events
        self._inherited = inherited
        self._killing = killing
        self._send = send
        self._feeds: Feeds | None = None
        self._dropped = DroppedOutput(events, "log", send)
        self._record = ("", -1)  # the link to the newest cycle's record, and the cycle's number

    def streams(self, cycle: int, plan: WorkerPlan) -> dict[int, int]:
        """Returns the descriptors of a worker's stdout and stderr, which are one pipe. Raises OSError."""
        if self._feeds is None:
            self._feeds = Feeds(self._events, self._start, self._on_closed, self._on_lost)
        epoch = plan.env.get(EPOCH_VARIABLE, "")
        place = Place(plan.cycle_log, plan.cycle_log_door, int(epoch) if epoch.isdecimal() else 0)
        _link(plan, place.run_began_ms)
        fd = self._feeds.open(cycle, plan.local_rank, place, plan.cycle_log_prefix)
        return {1: fd, 2: os.dup(fd)}

    def note_record(self, cycle: int, env: Mapping[str, str]) -> None:
        """Notes the cycle's record if one of a worker's variables names it."""
        self._record = env.get(RECORD_VARIABLE, ""), cycle

    def drain(self, cycle: int, local_rank: int) -> bytes:
        """Passes on what an ended worker left in its pipe. Returns the end of its output."""
        return self._feeds.drain(cycle, local_rank) if self._feeds is not None else b""

    def over(self, cycle: int) -> None:
        """Closes the file of a cycle that is over, once all is written. Does not wait."""
        if self._feeds is not None:
            self._feeds.over(cycle)

    def end(self, then: Callable[[], None], *, alone: bool) -> None:
        """Calls `then`, at the end of the job, once all files are complete, or time is up.

        `alone`: no supervisor is there to complete the record of the cycle.
        """
        if alone and self._record[0]:
            complete(*self._record)
        if self._feeds is not None:
            self._feeds.close_all(lambda: self._end(then), END_WAIT_S)
        else:
            then()

    def _end(self, then: Callable[[], None]) -> None:
        """Tells what is not written by now."""
        self._dropped.report()
        lates = self._feeds.late if self._feeds is not None else {}
        for cycle, (path, lines, late_bytes, reason) in lates.items():
            if not late_bytes:  # Only the end of the log has no receipt.
                continue
            late = f"{lines} lines were not in {path} yet when the job ended: {reason}; some may still get there"
            self._send(OutputDropped(ALL_RANKS, late_bytes, late, cycle))
        then()

    def _start(self, link_fd: int) -> int:
        # Without the job's claim and what else a worker inherits: a dead disk may hold this process up after the job.
        inherited = self._inherited._replace(fds=_STANDARD_STREAMS)
        start = Start({}, {}, keep=frozenset({link_fd}))
        pid = fork_and_exec.fork_and_call(inherited, start, lambda: _write(link_fd), leave=self._events.close)
        self._killing.spare(pid)
        return pid

    def _on_closed(self, cycle: int, path: str, written: int, lines: int, lost_bytes: int, reason: str) -> None:
        if lost_bytes:
            self._dropped.set_total(cycle, ALL_RANKS, lost_bytes, f"cannot write {path}: {reason}")
        self._dropped.end(cycle)
        self._send(CycleLogClosed(cycle, path, written, lines, lost_bytes, reason))

    def _on_lost(self, cycle: int, local_rank: int, lost_bytes: int, reason: str) -> None:
        """Reports a loss. `lost_bytes`: in total for ALL_RANKS, else since the last report."""
        if local_rank == ALL_RANKS:
            self._dropped.set_total(cycle, local_rank, lost_bytes, reason)
        else:
            self._dropped.add(cycle, local_rank, lost_bytes, reason)


def _link(plan: WorkerPlan, run_began_ms: int) -> None:
    """Links the file beside the rank's other files, so that `holdfast logs` finds its output, and that of this run."""
    folder = os.path.dirname(plan.env.get(error_file.VARIABLE, ""))
    with suppress(OSError):  # It exists, or the disk is full; the output itself is unaffected.
        if folder:
            if run_began_ms:
                os.symlink(str(run_began_ms), f"{folder}/{RUN_LINK_NAME}")
            os.symlink(plan.cycle_log, f"{folder}/{LINK_NAME}")


def _write(link_fd: int) -> None:
    """Runs the log process, a fork that has the spawner's memory but does not need it."""
    process_attributes.die_with_parent(0)  # Unwritten output outlives a killed spawner.
    process_attributes.set_comm(LOG_PROCESS_NAME.encode())
    process_attributes.rename_variable(JOB_ID_VARIABLE, LOG_OF_VARIABLE)
    log_process.serve(link_fd)
