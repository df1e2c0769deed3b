"""How do the bytes that workers print reach the console and their files?

A worker writes to its own terminal if people watch one, else to a pipe; both are read here in large pieces. No failure
on the way out ever blocks or ends a worker; only a slow console holds back the workers that write to it.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress

from holdfast_wire.console_line import ConsoleLine
from holdfast_wire.spawner_link import StreamPlan

from . import terminals
from .event_loop import READ, WRITE, Events
from .last_printed_error import TAIL_BYTES
from .output_targets import Console, LogFile, open_log

STDERR = 2
PIPE_BYTES = 1024 * 1024
READ_BYTES = 64 * 1024  # more costs more: larger buffers are mapped and cleared again each time
SPLICE_BYTES = PIPE_BYTES
LINE_BYTES_MAX = 64 * 1024  # a longer line is passed on in pieces
_DRAIN_BYTES_MAX = 2 * PIPE_BYTES

DropReport = Callable[[int, int, int, str], None]  # cycle, local rank, dropped bytes, reason
FirstReport = Callable[[int, int], None]  # cycle, local rank


class Pump:
    """One worker's pipe or terminal and where its bytes go. `owner`: cycle, local rank."""

    __slots__ = (
        "after_return", "console", "fd", "file", "keeps_tail", "owner", "partial", "prefix", "size", "tail", "terminal",
    )  # fmt: skip

    def __init__(
        self,
        fd: int,
        owner: tuple[int, int],
        console: Console | None,
        prefix: bytes,
        file: LogFile | None,
        *,
        keeps_tail: bool = False,
    ) -> None:
        self.fd = fd
        self.owner = owner
        self.console = console
        self.prefix = prefix
        self.file = file
        self.keeps_tail = keeps_tail
        self.tail = b""  # the last bytes
        self.partial = b""  # the unfinished last line, where lines are prefixed
        self.after_return = False  # the last byte was a CR, taken for a line's end already
        self.terminal = 0  # the terminal that people watch, which the worker's own resembles
        self.size = b""

    @property
    def moves(self) -> bool:
        """Whether the bytes only go from the pipe to the console as they are."""
        return self.console is not None and not self.prefix and self.file is None

    def turn(self) -> int:
        """Passes on one piece; returns its size, 0 at the end. Raises BlockingIOError if a side is not ready."""
        if self.moves and self.console is not None and self.console.can_splice:
            return self.console.splice_from(self.fd, SPLICE_BYTES)
        data = self._read()
        if self.keeps_tail:
            self.tail = (self.tail + data)[-TAIL_BYTES:] if len(data) < TAIL_BYTES else data[-TAIL_BYTES:]
        if self.file is not None and data:
            self.file.write(data)
        if self.console is not None and data:
            self._print(self.console, data)
        return len(data)

    def _read(self) -> bytes:
        if not self.terminal or self.console is None:
            return os.read(self.fd, READ_BYTES)
        self.size = terminals.follow_size(self.fd, self.console.fd, self.size)
        try:
            return os.read(self.fd, READ_BYTES)
        except OSError as error:
            if error.errno == errno.EIO:  # A terminal's other side is closed.
                return b""
            raise

    def finish(self) -> None:
        """Passes on and ends an unfinished last line of an ended pipe, so that the next output starts a new line."""
        if self.console is not None and self.partial:
            self.console.write(self.prefix, self.partial, b"\n")
            self.partial = b""

    def _with_newlines(self, data: bytes) -> bytes:
        """Returns `data` with each CR and CR LF as LF, though the LF may come in the next piece."""
        if self.after_return and data.startswith(b"\n"):
            data = data[1:]
        self.after_return = data.endswith(b"\r")
        if b"\r" not in data:
            return data
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _print(self, console: Console, data: bytes) -> None:
        """Prints whole lines, each with the prefix; an unfinished last line waits for its end.

        As in torchrun, a carriage return also ends a line, so a progress bar is visible while it moves.
        """
        if not self.prefix:
            console.write(data)
            return
        data = self._with_newlines(data)
        marked = data.replace(b"\n", b"\n" + self.prefix)
        end = marked.rfind(b"\n") + 1
        if end:
            console.write(self.prefix, self.partial, memoryview(marked)[:end])
            self.partial = marked[end + len(self.prefix) :]
        else:
            self.partial += marked
        if len(self.partial) > LINE_BYTES_MAX:
            self.finish()


class Output:
    """All pumps, the two consoles and the open log files."""

    def __init__(self, events: Events, on_drop: DropReport, on_first: FirstReport, console_line_fd: int = -1) -> None:
        """`on_first` is called when a worker's first output has come through here."""
        self._line = ConsoleLine(console_line_fd) if console_line_fd >= 0 else None
        self._events = events
        self._on_drop = on_drop
        self._on_first = on_first
        self._quiet: set[tuple[int, int]] = set()  # workers that have printed nothing so far
        self._pumps: dict[int, Pump] = {}
        self._tails: dict[tuple[int, int], bytes] = {}  # of pipes that ended before their worker was reaped
        self._consoles: dict[int, Console] = {}
        self._files: dict[tuple[str, int], LogFile] = {}
        self._held: set[int] = set()  # pipes that are not read while their console is full

    def open(self, cycle: int, local_rank: int, number: int, plan: StreamPlan, *, file_needed: bool) -> int:
        """Returns the descriptor for stream `number` (1 or 2) of a worker; the caller closes it after the fork.

        Raises OSError. If a log file can't be opened and is not needed, only its bytes are lost and counted.
        """
        if plan.file and plan.direct:
            try:
                return open_log(plan.file, os.O_TRUNC)
            except OSError as error:
                if file_needed:
                    raise
                self._on_drop(cycle, local_rank, 0, f"cannot open {plan.file}: {error.strerror}")
                return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        is_terminal = plan.console and not plan.prefix and os.isatty(number)
        if is_terminal and not plan.file:
            return os.dup(number)
        console = self._console(number) if plan.console else None
        if console is None and not plan.file:
            return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        owner, prefix = (cycle, local_rank), plan.prefix.encode()
        file = self._file(plan.file, owner, plan.file_bytes_max, needed=file_needed) if plan.file else None
        if is_terminal and console is not None:
            return self._open_terminal(owner, number, console, file)
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        with suppress(OSError):  # Above /proc/sys/fs/pipe-max-size or the user's quota: the default of 64 KiB works.
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._pass_on(Pump(reader, owner, console, prefix, file, keeps_tail=number == STDERR))
        return writer

    def _open_terminal(self, owner: tuple[int, int], number: int, console: Console, file: LogFile | None) -> int:
        """Opens one like the terminal that people watch, for both of a worker's streams; if none is free, that one."""
        device = os.fstat(number).st_rdev
        for pump in self._pumps.values():
            if pump.owner == owner and pump.terminal == device and pump.file is file:
                return terminals.worker_side(pump.fd)
        try:
            ours, theirs = terminals.make_like(console.fd)
        except OSError as error:
            reason = f"cannot make a terminal for it: {error.strerror}; it writes to yours directly"
            self._on_drop(*owner, 0, reason)
            return os.dup(number)
        pump = Pump(ours, owner, console, b"", file, keeps_tail=True)
        pump.terminal = device
        self._pass_on(pump)
        return theirs

    def _pass_on(self, pump: Pump) -> None:
        self._pumps[pump.fd] = pump
        self._quiet.add(pump.owner)
        self._events.watch(pump.fd, READ, lambda: self._on_readable(pump))

    def drain(self, cycle: int, local_rank: int) -> bytes:
        """Passes on what an ended worker left in its pipes, as far as the console takes it.

        Returns the end of its stderr, as far as that came through here.
        """
        tail = self._tails.pop((cycle, local_rank), b"")
        self._quiet.discard((cycle, local_rank))  # What comes from now on are the last words of an ended worker.
        for pump in [each for each in self._pumps.values() if each.owner == (cycle, local_rank)]:
            taken = 0
            while taken < _DRAIN_BYTES_MAX and pump.fd in self._pumps and pump.fd not in self._held:
                got = self._turn(pump)
                taken += got
                if not got:
                    break
            tail = pump.tail or tail
            pump.keeps_tail, pump.tail = False, b""  # Output of the worker's children is not its own last word.
        return tail or self._tails.pop((cycle, local_rank), b"")

    def has_waiting(self) -> bool:
        """Returns whether some output has not reached its end yet."""
        return bool(self._pumps) or any(each.has_backlog for each in self._consoles.values())

    def _on_readable(self, pump: Pump) -> None:
        self._turn(pump)

    def _turn(self, pump: Pump) -> int:
        """Passes output on once; returns the number of bytes taken."""
        try:
            taken = pump.turn()
        except BlockingIOError:
            if pump.moves and pump.console is not None and pump.console.can_splice:
                self._hold(pump, pump.console)  # The pipe was readable, so it is the console that is full.
            return 0
        if taken:
            if pump.owner in self._quiet:
                self._quiet.discard(pump.owner)
                self._on_first(*pump.owner)
            self._after_write(pump.console, pump.owner)
        else:
            self._close(pump)
        return taken

    def _close(self, pump: Pump) -> None:
        pump.finish()
        if pump.tail:
            self._tails[pump.owner] = pump.tail
        self._after_write(pump.console, pump.owner)
        self._events.forget(pump.fd)
        self._held.discard(pump.fd)
        del self._pumps[pump.fd]
        os.close(pump.fd)
        file = pump.file
        if file is not None and all(each.file is not file for each in self._pumps.values()):
            file.close()
            self._files = {key: each for key, each in self._files.items() if each is not file}

    def _console(self, number: int) -> Console | None:
        if number not in self._consoles:
            try:
                self._consoles[number] = Console(number, self._line)
            except OSError:  # The spawner was started without this stream.
                return None
        return self._consoles[number]

    def _file(self, path: str, owner: tuple[int, int], bytes_max: int, *, needed: bool) -> LogFile:
        key = (path, owner[1])
        if key not in self._files:

            def dropped(count: int, reason: str) -> None:
                self._on_drop(*owner, count, reason)

            self._files[key] = LogFile(path, bytes_max, dropped, needed=needed)
        return self._files[key]

    def _after_write(self, console: Console | None, owner: tuple[int, int]) -> None:
        if console is not None and console.lost_bytes:
            self._on_drop(*owner, console.lost_bytes, console.trouble)
            console.lost_bytes = 0
        if console is None or not console.has_backlog:
            return
        self._await_console(console)
        if console.is_full:
            for pump in self._pumps.values():
                if pump.console is console:
                    self._hold(pump, console)

    def _hold(self, pump: Pump, console: Console) -> None:
        """Leaves the pipe unread until the console takes something: its worker waits, nothing is lost."""
        if pump.fd not in self._held:
            self._held.add(pump.fd)
            self._events.forget(pump.fd)
        self._await_console(console)

    def _await_console(self, console: Console) -> None:
        self._events.watch(console.fd, WRITE, lambda: self._resume(console))

    def _resume(self, console: Console) -> None:
        console.flush()
        if console.has_backlog:
            return
        self._events.forget(console.fd)
        for pump in [each for each in self._pumps.values() if each.fd in self._held and each.console is console]:
            self._held.discard(pump.fd)
            self._events.watch(pump.fd, READ, lambda pump=pump: self._on_readable(pump))
