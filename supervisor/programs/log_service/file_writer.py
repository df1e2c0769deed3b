"""How does the root append pieces to files, each once, and what happens while a disk is slow, full or hangs?

A separate thread appends; nothing is dropped here. What leaves may send ahead of receipts bounds the waiting data, so a
hanging disk is noticed at the nodes, which count what they lose.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections import deque
from collections.abc import Callable
from pathlib import Path

import anyio
from anyio import to_thread
from holdfast_wire.log_pieces import SUPERVISORS, Piece, Receipt, cycle_of_file
from holdfast_wire.moved_log_file import GONE, MovedFiles
from holdfast_wire.run_mark import mark_if_of_earlier_run

from supervisor.config.job_logs import cycle_log_path
from supervisor.core.log_funnel.written_positions import KNOWN, Entry, Part, Positions
from supervisor.edges.machine.clock import Clock
from supervisor.programs.log_service.position_file import PositionFile
from supervisor.programs.log_service.wakeup import Wakeup

WRITE_BYTES = 4 * 1024 * 1024  # at once
WRITE_PIECES_MAX = 1000  # IOV_MAX is 1024
RETRY_S = 1.0
LOCK_RETRY_S = 0.2
OPEN_FILES_MAX = 8
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})

_log = logging.getLogger("holdfast.logs")


class Paths:
    """The only files that a root writes. No caller names a path."""

    def __init__(self, cycle_prefix: str, supervisor_log: str) -> None:
        self._cycle_prefix = cycle_prefix
        self._supervisor_log = supervisor_log

    def path_of(self, file: int) -> str:
        """Returns the file's path; "" if the job does not have it."""
        if file == SUPERVISORS:
            return self._supervisor_log
        return cycle_log_path(self._cycle_prefix, cycle_of_file(file)) if self._cycle_prefix else ""


class FileWriter:
    """Writes pieces. `on_receipt` gets the link of the last piece. `on_trouble`: why nothing is written; "": it is."""

    def __init__(
        self,
        paths: Paths,
        positions_at: Path,
        *,
        on_receipt: Callable[[int, Receipt], None],
        on_trouble: Callable[[str], None],
        run_began_ms: int = 0,
    ) -> None:
        """`run_began_ms`: when this run of the job began, in Unix time; 0: unknown."""
        self._run_began_ms = run_began_ms
        self._paths = paths
        self._notes = PositionFile(positions_at, paths.path_of)
        self._on_receipt = on_receipt
        self._on_trouble = on_trouble
        self._positions: Positions | None = None
        self._waiting: deque[Piece] = deque()
        self._before: deque[tuple[int, Piece]] = deque()  # came before the positions were known
        self._before_bytes = 0
        self._links: dict[int, int] = {}  # stream -> link
        self._fds: dict[int, int] = {}
        self._moved_files = MovedFiles()
        self._is_writing = False
        self._begun: tuple[Entry, list[bytes], int] | None = None  # noted, not complete; bytes written
        self._wakeup = Wakeup()
        self._room = Wakeup()
        self.waiting_bytes = 0

    @property
    def is_idle(self) -> bool:
        return not (self._waiting or self._before or self._is_writing) and self._begun is None

    @property
    def held_bytes(self) -> int:
        return self.waiting_bytes + self._before_bytes

    # --- see log_receiving.Taker ------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        return self.waiting_bytes > 2 * WRITE_BYTES or len(self._before) > WRITE_PIECES_MAX

    def take(self, link: int, piece: Piece) -> None:
        if not self._paths.path_of(piece.file):
            _log.warning("a piece for file %d is dropped: this job does not have it", piece.file)
            self._on_receipt(link, Receipt(piece.stream, piece.end, piece.ends))
            return
        if self._positions is None:
            self._before.append((link, piece))
            self._before_bytes += len(piece.lines)
            return
        self._links[piece.stream] = link
        match self._positions.admit(piece):
            case Receipt() as receipt:
                self._on_receipt(link, receipt)
            case Piece() as admitted:
                self._waiting.append(admitted)
                self.waiting_bytes += len(admitted.lines)
                self._wakeup.wake()
            case None:
                pass

    def lose(self, link: int) -> None:
        for stream in [stream for stream, known in self._links.items() if known == link]:
            del self._links[stream]

    async def until_room(self) -> None:
        while self.is_full:
            await self._room.wait()

    # --- the disk ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until cancelled."""
        positions = await self._until_allowed()
        self._positions = positions
        while self._before:
            self.take(*self._before.popleft())
        self._before_bytes = 0
        self._room.wake()
        while True:
            if self._begun is None and not self._waiting:
                await self._wakeup.wait()
                continue
            chosen = self._choose() if self._begun is None else []
            known = self._known_if_long(positions) if self._begun is None else None
            self._is_writing = True
            entry, trouble = await to_thread.run_sync(self._append, chosen, known, abandon_on_cancel=True)
            self._is_writing = False
            if trouble and (lost := self._given_up(chosen)) is not None:
                entry, trouble = lost, ""
            elif self._begun is None and entry is None:
                self._waiting.extendleft(reversed(chosen))
            if entry is not None:
                for receipt in positions.note_written(entry):
                    if (link := self._links.get(receipt.stream)) is not None:
                        self._on_receipt(link, receipt)
                self.waiting_bytes -= sum(part.length for part in entry.parts)
                self._room.wake()
            self._on_trouble(trouble)
            if trouble:
                await self._wakeup.wait_for_s(RETRY_S)

    async def aclose(self) -> None:
        """Closes the files. The job's output is complete: nobody needs positions any more."""
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(self._remove_notes)

    def _remove_notes(self) -> None:
        try:
            self._notes.remove()
        except OSError as error:
            _log.warning("cannot remove the notes of positions: %s", error)

    async def _until_allowed(self) -> Positions:
        last = ""
        while True:
            trouble = "the root before this one still writes"
            try:
                positions = await to_thread.run_sync(self._notes.open, abandon_on_cancel=True)
                if positions is not None:
                    return positions
            except OSError as error:
                trouble = _in_words("note positions beside the logs", error)
            if trouble != last:
                last = trouble
                _log.warning("%s", trouble)
                self._on_trouble(trouble)
            await self._wakeup.wait_for_s(LOCK_RETRY_S)

    def _given_up(self, chosen: list[Piece]) -> Entry | None:
        """Gives up supervisors' words that their file refused: it must not hold up other files."""
        file = self._begun[0].file if self._begun is not None else chosen[0].file
        if file != SUPERVISORS:
            return None
        begun, self._begun = self._begun, None
        parts = [Part(each.stream, each.position, len(each.lines), each.ends) for each in chosen]
        _log.warning("cannot write %s: words of the supervisors are lost", self._paths.path_of(file))
        return begun[0] if begun is not None else Entry(file, KNOWN, parts)

    def _choose(self) -> list[Piece]:
        """Returns the pieces to append next, all for one file."""
        chosen: list[Piece] = []
        size, file = 0, self._waiting[0].file
        while self._waiting and self._waiting[0].file == file:
            size += len(self._waiting[0].lines)
            if chosen and (size > WRITE_BYTES or len(chosen) >= WRITE_PIECES_MAX):
                break
            chosen.append(self._waiting.popleft())
        return chosen

    def _known_if_long(self, positions: Positions) -> list[Entry] | None:
        """Returns all known entries if the notes must be shortened."""
        if not self._notes.is_long:
            return None
        positions.thin_out()
        return positions.entries()

    def _append(self, chosen: list[Piece], known: list[Entry] | None) -> tuple[Entry | None, str]:
        """Appends, in the thread. Returns what was appended, and any obstacle."""
        file = self._begun[0].file if self._begun is not None else chosen[0].file
        try:
            if known is not None:
                self._notes.shorten(known)
            if self._begun is None:
                self._begin(file, chosen)
            return self._go_on(), ""
        except OSError as error:
            self._close(file)
            return None, _in_words(f"write {self._paths.path_of(file)}", error)

    def _begin(self, file: int, pieces: list[Piece]) -> None:
        """Notes the next append. Raises OSError; then nothing has changed."""
        lines = [each.lines for each in pieces if each.lines]
        self._go_on_elsewhere_if_moved(file)
        self._mark_if_of_earlier_run(file, prints=bool(lines))
        at = os.fstat(self._fd_of(file)).st_size if lines else KNOWN
        entry = Entry(file, at, [Part(each.stream, each.position, len(each.lines), each.ends) for each in pieces])
        self._notes.note(entry)
        self._begun = entry, lines, 0

    def _go_on(self) -> Entry:
        """Appends what was begun. Raises OSError; data already in the file is not written again."""
        assert self._begun is not None
        entry, lines, done = self._begun
        try:
            while left := _from(lines, done):
                done += os.writev(self._fd_of(entry.file), left)
        finally:
            self._begun = entry, lines, done
        self._begun = None
        return entry

    def _mark_if_of_earlier_run(self, file: int, *, prints: bool) -> None:
        """Says in a cycle's file of an earlier run where this one begins. Raises OSError if it `prints`."""
        if file == SUPERVISORS or file in self._fds:
            return
        try:
            if prints or os.path.lexists(self._paths.path_of(file)):
                mark_if_of_earlier_run(self._fd_of(file), self._run_began_ms)
        except OSError:
            self._close(file)  # The mark is due still.
            if prints:
                raise

    def _close(self, file: int) -> None:
        if (fd := self._fds.pop(file, -1)) >= 0:
            os.close(fd)

    def _go_on_elsewhere_if_moved(self, file: int) -> None:
        """Begins a new file in the place of one that was removed or moved away. Raises OSError."""
        fd = self._fds.get(file)
        if fd is not None and self._moved_files.leave(fd, self._paths.path_of(file), now_s=Clock().now_s()):
            del self._fds[file]
            os.write(self._fd_of(file), GONE)

    def _fd_of(self, file: int) -> int:
        if file not in self._fds:
            while len(self._fds) >= OPEN_FILES_MAX:
                os.close(self._fds.pop(next(iter(self._fds))))
            self._fds[file] = _open(self._paths.path_of(file))
        return self._fds[file]


def _open(path: str) -> int:
    """Opens a file. Raises OSError, also for what would block: a pipe, a device, or a link that may lead to one."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "a pipe, a device, a link or a folder stands in its place", path)
    os.set_blocking(fd, True)
    return fd


def _from(lines: list[bytes], done: int) -> list[bytes | memoryview]:
    left: list[bytes | memoryview] = []
    for each in lines:
        if done < len(each):
            left.append(memoryview(each)[done:] if done else each)
        done = max(0, done - len(each))
    return left


def _in_words(what: str, error: OSError) -> str:
    return f"cannot {what}: {error.strerror}{'; free space on that disk' if error.errno in NO_SPACE else ''}"
