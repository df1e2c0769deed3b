"""How does the workers' output reach the process that writes it, if that process may stall or die?

The kernel moves large pieces from a worker's pipe to that process's (`splice`); only the last bytes are copied, because
they may be the worker's last words. A worker is held back for a moment at most (HOLD_S); then its output is read,
counted and dropped, until the process takes bytes again, or another one is there. One that dies is replaced at once; if
that fails, or it dies soon, after pauses that grow.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable

from worker_client.spawner.event_loop import READ, WRITE, Events
from worker_client.spawner.last_printed_error import TAIL_BYTES

from .worker_pipe import PIPE_BYTES, REST_MIN_S, STALLED, Feed, Place, enlarge, waiting_bytes

MESSAGE_BYTES_MAX = 32 * 1024
FLOOD_BYTES = 64 * 1024  # output that comes in pieces of at least this size is taken in large pieces ...
REST_MAX_S = 0.032  # ... each time the pipe is about half full, after REST_MIN_S to this time
HOLD_S = 0.2
DRAIN_BYTES_MAX = 2 * PIPE_BYTES
ENDED_BYTES_MAX = 4 * PIPE_BYTES  # of ended workers, kept while there is no process
AGAIN_FIRST_S, AGAIN_MOST_S = 0.5, 30.0  # between two starts of the process
STEADY_S = 10.0  # a process that has run so long is replaced at once
DIED = "the process that writes the log has died"

Closed = Callable[[int, str, int, int, int, str], None]  # cycle, path, written bytes, lost lines, lost bytes, reason
Lost = Callable[[int, int, int, str], None]  # cycle, local rank (-1: of any), lost bytes, reason


class Feeds:
    """The pipes of all workers whose output goes to the files of their cycles."""

    def __init__(self, events: Events, start: Callable[[int], int], on_closed: Closed, on_lost: Lost) -> None:
        """`start` starts the process that serves the other end of a socket, and returns its pid."""
        self._events = events
        self._start = start
        self._on_closed = on_closed
        self._on_lost = on_lost
        self._link = -1  # to that process; a number, so a fork never closes it by surprise
        self._feeds: dict[int, Feed] = {}  # by the worker's pipe
        self._tails: dict[tuple[int, int], bytes] = {}  # of pipes that ended before their worker was reaped
        self._ending: list[Feed] = []  # feeds whose pipe has ended but is not passed on completely
        self._open_cycles: dict[int, Place] = {}  # their files are not closed
        self._over: set[int] = set()
        self._told_over: set[int] = set()  # those of them that the process knows of
        self.late: dict[int, tuple[str, int, int, str]] = {}  # by cycle; path, lines, bytes, reason
        self._on_all_closed: Callable[[], None] | None = None
        self.pid = 0  # pid of the writing process
        self._started_at_s = 0.0
        self._again_s = 0.0  # pause before the next start
        self._lacks = ""  # why feeds are not connected, or there is no process; "": all are

    def open(self, cycle: int, local_rank: int, place: Place, prefix: str) -> int:
        """Returns the descriptor for both of the worker's streams; the caller closes it. Raises OSError."""
        if self._link < 0 and not self._lacks:
            self._start_process()
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        enlarge(writer)
        feed = Feed(reader, cycle, local_rank, place, prefix)
        feed.rest_bytes_max = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ) // 2
        try:
            if not self._lacks:
                self._connect(feed)
        except OSError:
            os.close(reader)
            os.close(writer)
            raise
        self._open_cycles[cycle] = place
        self._feeds[reader] = feed
        self._events.watch(reader, READ, lambda: self._on_readable(feed))
        if feed.sink < 0:
            self._hold(feed)
        return writer

    def drain(self, cycle: int, local_rank: int) -> bytes:
        """Passes on what an ended worker left in its pipe. Returns the end of its output."""
        tail = self._tails.pop((cycle, local_rank), b"")
        for feed in [each for each in self._feeds.values() if (each.cycle, each.local_rank) == (cycle, local_rank)]:
            self._read_rest(feed)
            tail = feed.tail or tail
            feed.tail = b""  # Output of the worker's children is not its own last word.
        self._tails.pop((cycle, local_rank), None)
        return tail

    def over(self, cycle: int) -> None:
        """Closes the file of a cycle that is over, once all is written."""
        if cycle not in self._open_cycles or cycle in self._over:
            return
        self._over.add(cycle)
        for feed in [each for each in self._feeds.values() if each.cycle == cycle]:
            self._read_rest(feed)
            if feed.fd >= 0:
                self._end(feed)
        self._tell_over(cycle)

    def close_all(self, then: Callable[[], None], timeout_s: float) -> None:
        """Calls `then`, at the end of the job, once all files are closed, or at the latest after `timeout_s`."""
        for cycle in list(self._open_cycles):
            self.over(cycle)
        self._on_all_closed = then
        self._events.set_timer("cycle logs", timeout_s if self._open_cycles else 0.0, self._give_up)

    # --- the process that writes -----------------------------------------------------------------------------------

    def _start_process(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                self.pid = self._start(theirs.fileno())
        except BaseException:  # the descriptor must not leak, whatever went wrong; raised again
            ours.close()
            raise
        ours.setblocking(False)
        self._started_at_s = time.monotonic()
        self._link = ours.detach()
        self._events.watch(self._link, READ, self._on_link)

    def _connect(self, feed: Feed) -> None:
        """Connects the feed to the writing process, or does so once the link has room. Raises OSError."""
        if self._link < 0:
            raise BrokenPipeError
        reader, sink = os.pipe()
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, self._link)
        try:
            os.set_blocking(sink, False)
            enlarge(sink)
            word = json.dumps(["open", feed.cycle, *feed.place, feed.prefix]).encode()
            socket.send_fds(link, [word], [reader])
            feed.sink = sink
        except OSError as error:
            os.close(sink)
            if not isinstance(error, BlockingIOError):
                raise
            self._wait_for_room()
        finally:
            link.detach()
            os.close(reader)

    def _wait_for_room(self) -> None:
        """Waits until the process has read: the link takes some hundred messages, fewer than a node may have ranks."""
        self._lacks = STALLED
        self._events.watch(self._link, READ | WRITE, self._on_room)

    def _on_room(self) -> None:
        self._events.watch(self._link, READ, self._on_link)
        self._on_link()  # It may have died meanwhile.
        if self._lacks == STALLED:
            self._start_again()

    def _on_link(self) -> None:
        try:
            data = os.read(self._link, MESSAGE_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._replace_process()
            return
        match json.loads(data):
            case ["loss", cycle, path, _, _, lost_bytes, reason]:
                self._on_lost(cycle, -1, lost_bytes, f"cannot write {path}: {reason}")
            case ["late", cycle, path, _, lines, late_bytes, reason]:
                self.late[cycle] = path, lines, late_bytes, reason
            case ["closed", cycle, path, written, lines, lost_bytes, reason]:
                self._forget_cycle(cycle, path, written, lines, lost_bytes, reason)
            case _:
                pass

    def _forget_cycle(self, cycle: int, path: str, written: int, lines: int, lost_bytes: int, reason: str) -> None:
        self._open_cycles.pop(cycle, None)
        self._over.discard(cycle)
        self._told_over.discard(cycle)
        self.late.pop(cycle, None)
        self._on_closed(cycle, path, written, lines, lost_bytes, reason)
        if self._on_all_closed is not None and not self._open_cycles:
            self._give_up()

    def _give_up(self) -> None:
        then, self._on_all_closed = self._on_all_closed, None
        self._events.cancel_timer("cycle logs")
        for feed in self._ending:
            if feed.sink < 0:
                self._lose_pending(feed)
        if then is not None:
            then()

    def _replace_process(self) -> None:
        """Replaces the dead writing process; the next continues the same files. What the dead one held is lost."""
        if self._link >= 0:
            self._events.forget(self._link)
            os.close(self._link)
            self._link = -1
        self._told_over.clear()
        for cycle in self._open_cycles:
            self._on_lost(cycle, -1, 0, DIED)
        for feed in [*self._feeds.values(), *self._ending]:
            self._close_sink(feed)
            self._hold(feed)
        self._lacks = DIED
        if time.monotonic() - self._started_at_s >= STEADY_S:
            self._again_s = 0.0
        self._start_later()

    def _start_later(self) -> None:
        pause_s, self._again_s = self._again_s, min(max(2 * self._again_s, AGAIN_FIRST_S), AGAIN_MOST_S)
        if pause_s:
            self._events.set_timer("log process", pause_s, self._start_again)
        else:
            self._start_again()

    def _start_again(self) -> None:
        """Starts a process if there is none, and connects all feeds to it, or tries again later."""
        try:
            if self._link < 0:
                self._start_process()
            for feed in [*self._feeds.values(), *self._ending]:
                if feed.sink < 0:
                    self._connect(feed)
                    if feed.sink < 0:
                        return
                    self._go_on(feed)
        except OSError as error:  # A limit is reached.
            self._lacks = f"{DIED}, and no other can be started: {error.strerror or error}"
            self._start_later()
            return
        self._lacks = ""
        for cycle in list(self._over):
            self._tell_over(cycle)

    def _tell_over(self, cycle: int) -> None:
        if self._link < 0 or self._lacks or cycle in self._told_over:
            return
        with contextlib.suppress(OSError):  # The end of the link follows.
            try:
                os.write(self._link, json.dumps(["over", cycle, *self._open_cycles[cycle]]).encode())
                self._told_over.add(cycle)
            except BlockingIOError:
                self._wait_for_room()

    # --- one worker's output ---------------------------------------------------------------------------------------

    def _on_readable(self, feed: Feed) -> None:
        taken = self._turn(feed)
        # A pipe that is more than half full would hold its worker up meanwhile.
        if taken > feed.rest_bytes_max:
            feed.rest_s = max(REST_MIN_S, feed.rest_s / 2)
        elif taken >= FLOOD_BYTES and feed.fd >= 0 and not feed.is_held:
            self._events.forget(feed.fd)  # A flood: take it in fewer, larger pieces.
            feed.is_resting = True
            self._events.set_timer(f"rest {feed.fd}", feed.rest_s, lambda: self._wake(feed))
            if taken < feed.rest_bytes_max // 2:
                feed.rest_s = min(REST_MAX_S, feed.rest_s * 2)

    def _wake(self, feed: Feed) -> None:
        if feed.is_resting and feed.fd >= 0:
            feed.is_resting = False
            if not feed.is_held:
                self._events.watch(feed.fd, READ, lambda: self._on_readable(feed))

    def _turn(self, feed: Feed) -> int:
        """Passes output on once; returns the number of bytes taken."""
        waiting = waiting_bytes(feed.fd)
        if waiting < FLOOD_BYTES or feed.is_stuck:
            return self._copy(feed)
        try:
            moved = os.splice(feed.fd, feed.sink, waiting - TAIL_BYTES, flags=os.SPLICE_F_NONBLOCK)
        except BlockingIOError:
            self._hold(feed)
            return 0
        except OSError:
            return self._on_broken_sink(feed)
        if moved < waiting - TAIL_BYTES:
            self._hold(feed)
        return moved  # The rest stays in the pipe for a moment: more may come, and only the end is copied.

    def _copy(self, feed: Feed) -> int:
        try:
            data = os.read(feed.fd, FLOOD_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self._end(feed)
            return 0
        feed.tail = (feed.tail + data)[-TAIL_BYTES:]
        if feed.is_stuck:
            self._lose(feed, len(data))
        else:
            self._push(feed, data)
        return len(data)

    def _lose(self, feed: Feed, lost_bytes: int) -> None:
        feed.lost_bytes += lost_bytes
        feed.loss_reason = self._lacks or STALLED
        self._on_lost(feed.cycle, feed.local_rank, lost_bytes, feed.loss_reason)

    def _lose_pending(self, feed: Feed) -> None:
        if feed.pending:
            self._lose(feed, len(feed.pending))
            feed.pending = b""

    def _push(self, feed: Feed, data: bytes) -> None:
        """Writes to the sink; what it does not take now waits."""
        if feed.pending:
            feed.pending += data
            return
        try:
            sent = os.write(feed.sink, data)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = 0
            self._on_broken_sink(feed)
        if sent < len(data):
            feed.pending = data[sent:]
            self._hold(feed)

    def _on_broken_sink(self, feed: Feed) -> int:
        """Handles a sink without a reader; the end of the link follows and says so, too."""
        self._hold(feed)
        return 0

    def _hold(self, feed: Feed) -> None:
        """Leaves the worker's pipe unread until the sink takes something, for a moment at most."""
        if not feed.is_held:
            feed.is_held = True
            if feed.fd >= 0:
                self._events.forget(feed.fd)
            self._events.set_timer(f"hold {id(feed)}", HOLD_S, lambda: self._give_up_hold(feed))
        if feed.sink >= 0:
            self._events.watch(feed.sink, WRITE, lambda: self._go_on(feed))

    def _give_up_hold(self, feed: Feed) -> None:
        """Drops the worker's output from now on, because the process takes nothing."""
        if not feed.is_held:
            return
        feed.is_stuck = True
        if feed.fd >= 0:
            self._events.watch(feed.fd, READ, lambda: self._on_readable(feed))

    def _go_on(self, feed: Feed) -> None:
        """Resumes the feed, because the sink takes something again."""
        if feed.sink < 0:
            return
        if feed.pending:
            data, feed.pending = feed.pending, b""
            self._push(feed, data)
            if feed.pending:
                return
        if feed.lost_bytes:
            note = f"\n[holdfast: {feed.lost_bytes} bytes were lost here: {feed.loss_reason}]\n"
            feed.lost_bytes = 0
            self._push(feed, note.encode())
            if feed.pending:
                return
        feed.is_held = feed.is_stuck = False
        self._events.cancel_timer(f"hold {id(feed)}")
        self._events.forget(feed.sink)
        if feed.has_ended:
            self._ending.remove(feed)
            self._close_sink(feed)
        elif not feed.is_resting:
            self._events.watch(feed.fd, READ, lambda: self._on_readable(feed))

    def _read_rest(self, feed: Feed) -> None:
        """Reads everything in the pipe of an ended worker, whether or not the sink takes it."""
        taken = 0
        while feed.fd >= 0 and taken < DRAIN_BYTES_MAX:
            got = self._copy(feed)
            taken += got
            if not got:
                break

    def _end(self, feed: Feed) -> None:
        """Ends a feed whose pipe is closed; what waits for the sink is still passed on."""
        self._events.forget(feed.fd)
        self._events.cancel_timer(f"rest {feed.fd}")
        del self._feeds[feed.fd]
        os.close(feed.fd)
        feed.fd = -1
        feed.has_ended = True
        if feed.tail:
            self._tails[feed.cycle, feed.local_rank] = feed.tail
        if feed.sink < 0 and sum(len(each.pending) for each in self._ending) + len(feed.pending) > ENDED_BYTES_MAX:
            self._lose_pending(feed)
        if feed.pending or feed.lost_bytes:
            self._ending.append(feed)
        else:
            self._events.cancel_timer(f"hold {id(feed)}")
            self._close_sink(feed)

    def _close_sink(self, feed: Feed) -> None:
        if feed.sink >= 0:
            self._events.forget(feed.sink)
            os.close(feed.sink)
            feed.sink = -1
