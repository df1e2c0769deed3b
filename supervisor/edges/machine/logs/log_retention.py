"""Which runs, and which cycles of live runs, lose their logs to keep the default log directory within its caps?

Several supervisors may share the directory. Each holds a lock in the folder of each of its live runs; the kernel
releases it when the process ends. A folder that holds anything but our logs, or was written recently, is never removed.
One thread does all of it, so a disk that is full or hangs delays nothing else.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import queue
import re
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from supervisor.config.log_limits import LogLimits
from supervisor.config.run_folder import RUN_PREFIX
from supervisor.core.printable import one_line
from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.own_process import threads

LOCK_FILE = ".live"
QUIET_S = 3600.0  # files written within this time stay: people read a failed job's logs and start the next one
CYCLES_KEPT = 3  # of a live run, whatever the caps: the first, the last failed and the running one
LOOK_AGAIN_S = 60.0  # how often live runs, which may have many cycles, are checked for new ones
SLACK_S = 1.0  # after the moment at which logs may go
CLAIM_ATTEMPTS_MAX = 100
NAMED_MAX = 3  # foreign files of a folder, in a warning
CLOSE_TIMEOUT_S = 1.0
NS_PER_S = 1_000_000_000
_REMOVING = ".removing-"
_CYCLE = "cycle_"
_OURS = re.compile(
    r"cycle_\d+|supervisor\.log(\.\d+)?|spawner\.std(out|err)\.log|log_sender\.log|[\w.-]+\.exits\.jsonl|"
    + re.escape(LOCK_FILE),
    flags=re.ASCII,
)

_log = logging.getLogger("holdfast.logs")


class JobLogs(msgspec.Struct, frozen=True):
    """The logs in one run's folder."""

    path: Path
    written_at_s: float  # Unix time; infinite while the job lives
    used_bytes: int


class LogRetention:
    """Keeps one log directory within its limits. What it finds there causes warnings, never exceptions."""

    def __init__(self, log_dir: Path, limits: LogLimits, *, quiet_s: float = QUIET_S) -> None:
        """`quiet_s`: at least the time that jobs may outlive their supervisor."""
        self._log_dir = log_dir
        self._limits = limits
        self._quiet_s = quiet_s
        self._claims: dict[str, int] = {}  # run -> the locked file
        self._cycles_seen: dict[str, int] = {}  # of each claimed run, at the last check
        self._tidy_at_s = math.inf  # Unix time at which more may be removed, though no job comes or goes
        self._warned: set[str] = set()
        self._kept: set[Path] = set()  # at the last check, because of what is not ours in them
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    # --- for the event loop: never blocks --------------------------------------------------------------------------

    def claim_soon(self, run: str) -> None:
        """Marks the run as live from now on. `run`: JOB/run_…, its folder below the log directory."""
        self._do_soon(lambda: self.claim(run))

    def release_soon(self, run: str) -> None:
        """Marks the run as ended: nothing of it is left."""
        self._do_soon(lambda: self.release(run))

    def tidy_soon(self) -> None:
        """Removes what exceeds the limits."""
        self._do_soon(self.tidy)

    def close(self) -> None:
        """Cancels all work and releases all claims. Waits at most CLOSE_TIMEOUT_S for a disk that hangs."""
        self._closed.set()
        self._do_soon(None)
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_S)

    def _do_soon(self, work: Callable[[], None] | None) -> None:
        self._work.put(work)
        if self._thread is None:
            thread = threading.Thread(target=self._work_until_closed, name="log retention", daemon=True)
            try:
                threads.start(thread)
            except OSError as error:
                self._warn(f"cannot mark logs as in use or remove old ones: {error}")
            else:
                self._thread = thread

    # --- in the thread: blocks on the disk -------------------------------------------------------------------------

    def claim(self, run: str) -> None:
        try:
            self._claims[run] = _lock(self._log_dir / run)
        except OSError as error:
            self._warn(f"cannot mark the logs of {run} as in use: {error}; they are kept while they are written")

    def release(self, run: str) -> None:
        self._cycles_seen.pop(run, None)
        descriptor = self._claims.pop(run, None)
        if descriptor is None:
            return
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (self._log_dir / run / LOCK_FILE).unlink()
        os.close(descriptor)

    def tidy(self) -> None:
        """Removes ended runs first, then old cycles of our own live ones."""
        if self._closed.is_set() or not (self._limits.jobs_max or self._limits.bytes_max):
            return
        found = self._survey()
        doomed = too_much(found, self._limits, before_s=_now_s() - self._quiet_s)
        recent = {*too_much(found, self._limits, before_s=math.inf)} - {*doomed}  # These go later.
        self._tidy_at_s = min((logs.written_at_s for logs in recent), default=math.inf) + self._quiet_s + SLACK_S
        kept: dict[Path, list[str]] = {}  # folder -> what in it is not ours
        for logs in doomed:
            if self._closed.is_set():
                return
            if foreign := self._remove(logs.path):
                kept[logs.path] = foreign
        excess_bytes = sum(logs.used_bytes for logs in found) - sum(logs.used_bytes for logs in doomed)
        excess_bytes -= self._limits.bytes_max
        if self._limits.bytes_max and excess_bytes > 0:
            self._remove_cycles(excess_bytes)
        self._tell_kept(kept, excess_bytes + sum(logs.used_bytes for logs in doomed if logs.path in kept))
        self._cycles_seen = {run: len(_cycles(self._log_dir / run)) for run in self._claims}

    def _work_until_closed(self) -> None:
        while not self._closed.is_set():
            try:
                work = self._work.get(timeout=self._wait_s())
            except queue.Empty:
                if _now_s() >= self._tidy_at_s or self._has_new_cycles():
                    self.tidy()
                continue
            if work is not None:
                work()
        for run in list(self._claims):
            self.release(run)

    def _wait_s(self) -> float | None:
        """Returns when to look again, whatever happens; None: only if something happens."""
        wait_s = LOOK_AGAIN_S if self._claims else math.inf
        if self._tidy_at_s < math.inf:
            wait_s = min(wait_s, max(self._tidy_at_s - _now_s(), SLACK_S))
        return min(wait_s, threading.TIMEOUT_MAX) if wait_s < math.inf else None

    def _has_new_cycles(self) -> bool:
        """Returns whether live runs have new cycles. Cheap, unlike a full survey."""
        return any(len(_cycles(self._log_dir / run)) > self._cycles_seen.get(run, CYCLES_KEPT) for run in self._claims)

    def _remove_cycles(self, excess_bytes: int) -> None:
        """Removes cycles of our own live runs, oldest first; keeps the first one and the newest two."""
        waiting: list[JobLogs] = []
        for run in self._claims:
            for cycle in _cycles(self._log_dir / run)[1 : 1 - CYCLES_KEPT]:
                with suppress(OSError):  # It went meanwhile.
                    waiting.append(_measured(cycle))
        for logs in sorted(waiting, key=lambda each: each.written_at_s):
            if excess_bytes <= 0 or self._closed.is_set():
                return
            try:
                self._delete(logs.path)
                excess_bytes -= logs.used_bytes
            except OSError as error:
                self._warn(f"cannot remove logs of an old cycle: {error}; remove {logs.path} yourself")

    def _survey(self) -> list[JobLogs]:
        found: list[JobLogs] = []
        try:
            with os.scandir(self._log_dir) as entries:
                folders = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        except OSError as error:
            self._warn(f"cannot look for old logs: {error}; check {self._log_dir}")
            return []
        for entry in folders:
            if self._closed.is_set():
                return []
            try:
                if entry.name.startswith(_REMOVING):
                    self._delete(Path(entry.path))  # Another supervisor began to remove it.
                elif not entry.name.startswith("."):
                    found += [_look_at(run) for run in self._runs_in(Path(entry.path))]
            except FileNotFoundError:
                continue  # Another supervisor was faster.
            except OSError as error:
                self._warn(f"cannot look at old logs: {error}; remove {entry.path} yourself")
        return found

    def _runs_in(self, job: Path) -> list[Path]:
        """Returns the folders of a job's runs; the job's own if it has none, as an earlier version left it."""
        names = os.listdir(job)
        for name in names:
            if name.startswith(_REMOVING):
                self._delete(job / name)
        return [job / name for name in names if name.startswith(RUN_PREFIX)] or [job]

    def _remove(self, folder: Path) -> list[str]:
        """Removes a run's folder unless it has names that are not ours, whose owner is unknown; returns these."""
        try:
            if foreign := sorted(name for name in os.listdir(folder) if not _OURS.fullmatch(name)):
                return foreign
            self._delete(_take_away(folder))
            if folder.name.startswith(RUN_PREFIX):
                with suppress(OSError):  # The job has other runs.
                    folder.parent.rmdir()
        except (FileNotFoundError, BlockingIOError):
            pass  # Another supervisor was faster, or the job lives again.
        except OSError as error:
            self._warn(f"cannot remove old logs: {error}; remove {folder} yourself")
        return []

    def _tell_kept(self, kept: dict[Path, list[str]], excess_bytes: int) -> None:
        """Warns once of each folder that stays because of what is not ours in it, of many in one sentence."""
        untold = [folder for folder in kept if folder not in self._kept]
        self._kept = {*kept}
        if not untold:
            return
        runs, more = self._limits.jobs_max, len(untold) - 1
        limit = f"of {runs} ended run{'s' * (runs != 1)} at most"
        if self._limits.bytes_max and excess_bytes > 0:
            limit = f"below {self._limits.gib_max:g} GiB"
        others = f", and {more:,} more folder{'s have' if more > 1 else ' has'} such files" if more else ""
        named = ", ".join(one_line(name) for name in kept[untold[0]][:NAMED_MAX])
        self._warn(
            f"cannot keep logs {limit}: {untold[0]} contains {named}, which Holdfast did not write{others}; "
            "move such files, or remove the folders yourself"
        )

    def _delete(self, folder: Path) -> None:
        """Deletes a folder. Raises OSError. If this supervisor ends meanwhile, the rest stays for the next time."""
        from shutil import rmtree  # Late: most supervisors remove nothing.

        for path in [*folder.iterdir()]:
            if self._closed.is_set():
                return
            if path.is_dir() and not path.is_symlink():
                rmtree(path)
            else:
                path.unlink()
        folder.rmdir()
        _log.debug("removed %s", folder)

    def _warn(self, sentence: str) -> None:
        if sentence not in self._warned:
            self._warned.add(sentence)
            _log.warning("%s", sentence)


def too_much(found: list[JobLogs], limits: LogLimits, *, before_s: float) -> list[JobLogs]:
    """Returns which of `found` must go, oldest first. Logs written since `before_s` count, but stay."""
    kept_bytes, ended = 0, 0
    doomed: list[JobLogs] = []
    for logs in sorted(found, key=lambda each: each.written_at_s, reverse=True):
        ended += logs.written_at_s != math.inf
        is_over = (0 < limits.jobs_max < ended) or (0 < limits.bytes_max < kept_bytes + logs.used_bytes)
        if is_over and logs.written_at_s < before_s:
            doomed.append(logs)
        else:
            kept_bytes += logs.used_bytes
    return doomed[::-1]


def _lock(folder: Path) -> int:
    """Returns a descriptor that locks the folder. Raises OSError."""
    for _ in range(CLAIM_ATTEMPTS_MAX):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError:
            if folder.exists():
                raise  # something else is there
            continue  # pathlib looks again at what was there, and it has gone
        with suppress(FileNotFoundError):  # The folder was removed in this moment.
            path = folder / LOCK_FILE
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)  # A remover holds it for one rename.
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
            except BaseException:  # whatever it was, the descriptor must not leak; raised again
                os.close(descriptor)
                raise
            os.close(descriptor)
    raise OSError(f"{folder} is removed again and again")


def _take_away(folder: Path) -> Path:
    """Renames the folder and returns its new name: a job that starts now gets its own folder. Raises OSError."""
    with _alone(folder, create=True):
        return folder.rename(folder.with_name(f"{_REMOVING}{os.getpid()}-{folder.name}"))


@contextmanager
def _alone(folder: Path, *, create: bool) -> Generator[None]:
    """Keeps others from claiming the folder. Raises BlockingIOError if somebody holds it, or another OSError."""
    path = folder / LOCK_FILE
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), path.stat()):
            raise BlockingIOError(f"{path} was replaced in this moment")
        yield
    finally:
        os.close(descriptor)


def _cycles(run: Path) -> list[Path]:
    """Returns the folders of its cycles, in order."""
    found: list[tuple[int, Path]] = []
    with suppress(OSError), os.scandir(run) as entries:
        found = [
            (int(entry.name.removeprefix(_CYCLE)), Path(entry.path))
            for entry in entries
            if re.fullmatch(rf"{_CYCLE}\d{{1,9}}", entry.name, re.ASCII) and entry.is_dir(follow_symlinks=False)
        ]
    return [path for _, path in sorted(found)]


def _look_at(folder: Path) -> JobLogs:
    """Measures a run's folder. Raises OSError."""
    logs = _measured(folder)
    return JobLogs(folder, _written_at_s(folder, logs.written_at_s), logs.used_bytes)


def _measured(folder: Path) -> JobLogs:
    """Returns the folder's content and the time of its last write. Raises OSError."""
    written_at_s, used_bytes = 0.0, 0
    waiting = [folder]
    while waiting:
        current = waiting.pop()
        written_at_s = max(written_at_s, current.stat().st_mtime)
        with os.scandir(current) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                    continue
                found = entry.stat(follow_symlinks=False)
                used_bytes += found.st_blocks * 512
                written_at_s = max(written_at_s, found.st_mtime)
    return JobLogs(folder, written_at_s, used_bytes)


def _written_at_s(folder: Path, newest_s: float) -> float:
    """Returns infinity for a live job; now if its supervisor was killed, because workers may live a little longer."""
    try:
        with _alone(folder, create=False):
            (folder / LOCK_FILE).unlink()  # So this counts once; it changes the folder's own time.
    except FileNotFoundError:
        return newest_s
    except BlockingIOError:
        return math.inf
    return _now_s()


def _now_s() -> float:
    return Clock().unix_ns() / NS_PER_S
