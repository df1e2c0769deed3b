"""What have a job's workers written so far, and what do they write from now on?

Reads the files that the spawner writes in a run's folder: cycle_<c>/rank_<r>/{stdout,stderr}.log and one rotation,
`.log.1`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

import anyio
import msgspec

from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.folders.inotify import DirectoryWatch
from supervisor.edges.machine.own_process.own_descriptors import OwnThread
from supervisor.edges.operators.rotated_log_reader import RotatedLogReader
from supervisor.edges.operators.shared_log_reader import SharedLogReader, folder_of_log, why_unread
from supervisor.errors import NotFoundError

STREAMS = (("stdout.log", False), ("stderr.log", True))
TAIL_LINES_MAX = 100_000
PIECES_AT_ONCE = 16  # read in one go: at most 1 MiB
TURN_S = 1.0  # of reading, after which what was found is passed on, even if it is nothing
GATHER_S = (
    0.02  # between two checks: one check covers many ranks that start or write at once, and nobody sees the delay
)


class _Reader(Protocol):
    """Reads some output of one rank forwards."""

    file: int
    read_bytes: int

    def read(self) -> Iterator[bytes]: ...  # b"" says that it reads on.

    def skip_to_tail(self, lines: int) -> None: ...

    def close(self) -> None: ...


class LogPiece(msgspec.Struct, frozen=True):
    """Some bytes of one rank's output; it may begin or end within a line."""

    rank: int
    cycle: int
    is_stderr: bool
    data: bytes
    file: int = 0  # inode of the file that they are in, which a rotation keeps; 0: not told
    offset: int = 0  # of the rank's bytes in that file


class LogChoice(msgspec.Struct, frozen=True):
    """Selects output; None means all. `tail_lines` counts per rank and stream; without a cycle it means the newest."""

    rank: int | None = None
    cycle: int | None = None
    tail_lines: int = 0
    first_cycle: int = 0  # the reader has all output of earlier cycles

    def has_cycle(self, number: int) -> bool:
        """Returns whether output of this cycle is chosen."""
        return number >= self.first_cycle and self.cycle in (None, number)


class _RankDirectory(msgspec.Struct, frozen=True):
    path: Path
    cycle: int
    rank: int


class _Source:
    """The pieces of some output of one rank."""

    def __init__(self, directory: _RankDirectory, reader: _Reader, *, is_stderr: bool = False) -> None:
        self._directory = directory
        self._is_stderr = is_stderr
        self._reader = reader
        self.close = reader.close

    def skip_to_tail(self, lines: int) -> None:
        self._reader.skip_to_tail(min(lines, TAIL_LINES_MAX))

    def read(self) -> Iterator[LogPiece]:
        """Yields what was not read yet; a piece without data says that it reads on."""
        rank, cycle = self._directory.rank, self._directory.cycle
        for data in self._reader.read():
            offset = self._reader.read_bytes - len(data)
            yield LogPiece(rank, cycle, self._is_stderr, data, self._reader.file, offset)


def read(log_dir: Path, job_id: str, choice: LogChoice) -> Generator[LogPiece]:
    """Yields all output in a run's folder, by cycle, rank and stream. Blocks on the disk. Raises NotFoundError."""
    check_any(log_dir, job_id, choice)
    for directory in _rank_directories(log_dir, choice):
        for file in _files(directory, choice.tail_lines):
            with contextlib.closing(file):
                yield from (piece for piece in file.read() if piece.data)


def why_shared_file_unread(log_dir: Path, choice: LogChoice) -> str:
    """Returns why the file that the newest of the selected workers share is not read; "" if it is. Blocks."""
    directories = _rank_directories(log_dir, choice)
    return why_unread(directories[-1].path) if directories else ""


def check_any(log_dir: Path, job_id: str, choice: LogChoice) -> None:
    """Raises NotFoundError if the selected workers have no files. Blocks on the disk."""
    if not _rank_directories(log_dir, choice):
        chosen = (("cycle", choice.cycle), ("rank", choice.rank))
        which = "".join(f" of {word} {value}" for word, value in chosen if value is not None)
        begun = [number for number, _ in _numbered(log_dir, "cycle")]
        if choice.cycle is not None and begun and choice.cycle > begun[-1]:
            raise NotFoundError(
                f"cannot show output of cycle {choice.cycle} of job {job_id}: "
                f"the newest in {log_dir} is cycle {begun[-1]}; choose an earlier one"
            )
        raise NotFoundError(
            f"cannot show output of job {job_id}: {log_dir} holds nothing{which}; "
            "the workers have not started yet, or old logs were removed (--log-jobs-max, --log-gib-max)"
        )


async def follow(
    log_dir: Path, choice: LogChoice, ended: anyio.Event, *, shows_progress: bool = False
) -> AsyncGenerator[LogPiece]:
    """Yields the same, then new output until `ended` is set. Raises OSError if the kernel can't watch.

    `shows_progress`: yields an empty piece each time that the disk was read for TURN_S without finding any output.

    A thread reads the disks, since a log directory may be on a file server that does not answer. Its descriptors are
    its own, since they would hold up the start of every process.
    """
    follower = _Follower(log_dir, choice)
    thread: OwnThread | None = None
    pieces: Generator[LogPiece] | None = None
    try:
        thread = OwnThread(follower.watch.fileno())
        while True:
            last_round = ended.is_set()  # read once more after the end, so that nothing is missed
            pieces = follower.read_changed(everything=last_round)
            is_more = True
            while is_more:
                batch, is_more = await thread.call(partial(_take, pieces))
                for piece in batch:
                    yield piece
                if shows_progress and is_more and not batch:
                    yield LogPiece(0, 0, is_stderr=False, data=b"")
            if last_round:
                return
            with anyio.move_on_after(GATHER_S):
                await ended.wait()
            if not ended.is_set():
                await _wait(follower.watch, ended)
    finally:
        if thread is not None:
            thread.end(partial(follower.close, pieces))
        follower.watch.close()


def _take(pieces: Iterator[LogPiece]) -> tuple[list[LogPiece], bool]:
    """Returns the next pieces that have output, and whether there may be more."""
    batch: list[LogPiece] = []
    until_s = Clock().now_s() + TURN_S
    for piece in pieces:
        if piece.data:
            batch.append(piece)
        if len(batch) == PIECES_AT_ONCE or Clock().now_s() >= until_s:
            return batch, True
    return batch, False


class _Follower:
    """The open files of a live job: those of its newest cycle, since only they can still grow."""

    def __init__(self, root: Path, choice: LogChoice) -> None:
        self.watch = DirectoryWatch()
        self._root = root
        self._choice = choice
        self._tail_lines = choice.tail_lines  # for the first read
        self._place: Path = root  # the nearest existing folder above, watched for the root's creation
        self._newest = -1
        self._newest_path = root
        self._files: dict[Path, list[_Source]] = {}  # by the rank's directory, for the newest cycle
        self._shared: dict[Path, set[Path]] = {}  # folder of a cycle's file -> directories of the ranks that share it

    def read_changed(self, *, everything: bool) -> Generator[LogPiece]:
        """Yields output since the last call. Blocks on the disk. The cost depends on changes, not on what exists."""
        changes = self.watch.take()
        if everything or changes is None or self._root not in self.watch or self._has_new(changes.subdirectories):
            self._watch_root()
            self._watch_newest()
            cycles = _numbered(self._root, "cycle")
            ranks, changed = _numbered(self._newest_path, "rank") if self._newest >= 0 else [], None
        else:
            cycles = _numbers_of(changes.subdirectories, "cycle", self._root)
            ranks = _numbers_of(changes.subdirectories, "rank", self._newest_path)
            changed = changes.directories
        cycles = [each for each in cycles if each[0] > self._newest]
        yield from self._read_newest(ranks, changed)
        for number, path in cycles:
            yield from self._read_next(number, path, is_last=number == cycles[-1][0])
        self._tail_lines = 0

    def _read_newest(self, ranks: list[tuple[int, Path]], changed: frozenset[Path] | None) -> Iterator[LogPiece]:
        """Reads the newest cycle. `changed` None: all of it may have changed."""
        added = [path for rank, path in ranks if self._add(rank, path)]
        if changed is not None:
            changed |= {path for folder in changed for path in self._shared.get(folder, ())}
        known = self._files if changed is None else sorted({*changed, *added} & self._files.keys(), key=_rank_of)
        for path in known:
            for file in self._files[path]:
                yield from file.read()

    def _read_next(self, number: int, path: Path, *, is_last: bool) -> Iterator[LogPiece]:
        self.close_files()
        self.watch.remove(self._newest_path if self._newest >= 0 else path)
        self._newest, self._newest_path = number, path
        if not self._choice.has_cycle(number):
            return
        if self._tail_lines and self._choice.cycle is None and not is_last:
            return
        if is_last:
            self._watch(path)  # before looking, so that no change is missed
        yield from self._read_newest(_numbered(path, "rank"), None)

    def _add(self, rank: int, path: Path) -> bool:
        if path in self._files or self._choice.rank not in (None, rank) or not self._choice.has_cycle(self._newest):
            return False
        if self._newest_path in self.watch:
            self._watch_rank(path)
        self._files[path] = _files(_RankDirectory(path, self._newest, rank), self._tail_lines)
        return True

    def close(self, pieces: Generator[LogPiece] | None) -> None:
        """Closes all files, in the thread that has opened them: elsewhere, their numbers stand for other files."""
        if pieces is not None:
            pieces.close()
        self.close_files()

    def close_files(self) -> None:
        for path, files in self._files.items():
            self.watch.remove(path)
            for file in files:
                file.close()
        for folder in self._shared:
            self.watch.remove(folder)
        self._files, self._shared = {}, {}

    def _has_new(self, created: Iterable[Path]) -> bool:
        """Returns whether the run's folder, or one of its newest cycle, was removed and made again.

        The watch of a removed folder reports nothing as long as somebody has a file open in it.
        """
        known = [path for path in created if path in (self._root, self._newest_path) or path in self._files]
        return any(self._watch(path) for path in known if path == self._root or self._is_watched)

    @property
    def _is_watched(self) -> bool:
        return self._newest >= 0 and self._choice.has_cycle(self._newest)

    def _watch_root(self) -> None:
        """Watches the root and the nearest existing folder above: the root's creation is an event, too."""
        place: Path | None = None
        while (nearest := _nearest(self._root.parent)) != place:
            if nearest != self._place:
                self.watch.remove(self._place)
            self._place = nearest
            place = nearest
            try:
                self._watch(nearest)
            except PermissionError:
                if not os.path.isdir(self._root):
                    raise
        self._watch(self._root)

    def _watch_newest(self) -> None:
        """Watches the newest cycle again if its folder is another one now."""
        if self._is_watched:
            self._watch(self._newest_path)
            for path in self._files:
                self._watch_rank(path)

    def _watch_rank(self, path: Path) -> None:
        self._watch(path)
        if (folder := folder_of_log(path)) is not None:
            self._watch(folder)
            self._shared.setdefault(folder, set()).add(path)

    def _watch(self, path: Path) -> bool:
        """Returns whether it is watched only from now on."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return self.watch.add(path)
        return False


async def _wait(watch: DirectoryWatch, ended: anyio.Event) -> None:
    """Waits until a directory changes or the job ends."""
    async with anyio.create_task_group() as tasks:

        async def wait_for_end() -> None:
            await ended.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(wait_for_end)
        await anyio.wait_readable(watch.fileno())
        tasks.cancel_scope.cancel()


def _files(directory: _RankDirectory, tail_lines: int) -> list[_Source]:
    path = directory.path
    files = [_Source(directory, RotatedLogReader(path, name), is_stderr=is_stderr) for name, is_stderr in STREAMS]
    files.append(_Source(directory, SharedLogReader(path, directory.rank)))
    if tail_lines:
        for file in files:
            file.skip_to_tail(tail_lines)
    return files


def _rank_directories(root: Path, choice: LogChoice) -> list[_RankDirectory]:
    cycles = [each for each in _numbered(root, "cycle") if choice.has_cycle(each[0])]
    if choice.tail_lines and choice.cycle is None:
        cycles = cycles[-1:]
    return [
        _RankDirectory(path, cycle, rank)
        for cycle, cycle_path in cycles
        for rank, path in _numbered(cycle_path, "rank")
        if choice.rank in (None, rank)
    ]


def _numbered(parent: Path, word: str) -> list[tuple[int, Path]]:
    found: list[tuple[int, Path]] = []
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            match = re.fullmatch(rf"{word}_(\d{{1,9}})", entry.name)
            if match and entry.is_dir(follow_symlinks=False):
                found.append((int(match[1]), Path(entry.path)))
    return sorted(found)


def _numbers_of(paths: Iterable[Path], word: str, parent: Path) -> list[tuple[int, Path]]:
    """Returns those of `paths` in `parent` whose name is the word and a number, in order."""
    return sorted(
        (int(match[1]), path)
        for path in paths
        if path.parent == parent and (match := re.fullmatch(rf"{word}_(\d{{1,9}})", path.name))
    )


def _rank_of(path: Path) -> int:
    return int(path.name.removeprefix("rank_"))


def _nearest(path: Path) -> Path:
    """Returns the path itself, or the nearest existing folder above it."""
    while not os.path.isdir(path) and path != path.parent:  # unlike Path.is_dir, no error below a closed folder
        path = path.parent
    return path
