"""Which ended jobs lose their logs, so that the default log directory does not grow for ever?

Several supervisors may share the directory. Each holds a lock in the folder of each of its live jobs; the kernel lets
go of it with its process. A folder that holds anything else than our logs, or was written to of late, is never removed.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from supervisor.config.log_limits import LogLimits
from supervisor.edges.machine.clock import Clock

LOCK_FILE = ".live"
QUIET_S = 3600.0  # what was written to within this time stays: whoever reads a failed job's logs starts the next one
CLAIM_ATTEMPTS_MAX = 100
CLOSE_TIMEOUT_S = 1.0
NS_PER_S = 1_000_000_000
_REMOVING = ".removing-"
_OURS = re.compile(
    r"run_[\dTZ.]+|cycle_\d+|supervisor\.log(\.\d+)?|spawner\.std(out|err)\.log|" + re.escape(LOCK_FILE), flags=re.ASCII
)

_log = logging.getLogger("holdfast.logs")


class JobLogs(msgspec.Struct, frozen=True):
    """What lies in one job's folder."""

    path: Path
    written_at_s: float  # Unix time; infinite while the job lives
    used_bytes: int


class LogRetention:
    """Keeps one log directory within its limits. Never raises for what it finds there; that is a warning."""

    def __init__(self, log_dir: Path, limits: LogLimits, *, quiet_s: float = QUIET_S) -> None:
        """`quiet_s`: not less than jobs may outlive their supervisor."""
        self._log_dir = log_dir
        self._limits = limits
        self._quiet_s = quiet_s
        self._claims: dict[str, int] = {}  # job id -> the locked file
        self._warned: set[str] = set()
        self._wanted = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def claim(self, job_id: str) -> None:
        """The job lives from now on. Blocks for a few system calls."""
        try:
            self._claims[job_id] = _lock(self._log_dir / job_id)
        except OSError as error:
            self._warn(f"cannot mark the logs of job {job_id} as in use: {error}; they are kept while they are written")

    def release(self, job_id: str) -> None:
        """Nothing of the job is left."""
        descriptor = self._claims.pop(job_id, None)
        if descriptor is None:
            return
        with suppress(OSError):  # Of which BlockingIOError: another supervisor has a job of that name.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (self._log_dir / job_id / LOCK_FILE).unlink()
        os.close(descriptor)

    def tidy_soon(self) -> None:
        """Remove what is too much, in a thread of its own: the disk may be slow."""
        self._wanted.set()
        if (self._thread is None or not self._thread.is_alive()) and not self._closed.is_set():
            self._thread = threading.Thread(target=self._tidy_while_wanted, name="log retention", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Gives up what is under way, and all claims."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_S)
        for job_id in list(self._claims):
            self.release(job_id)

    def tidy(self) -> None:
        """Blocks on the disk."""
        if not self._limits.jobs_max and not self._limits.bytes_max:
            return
        found = self._survey()
        for logs in too_much(found, self._limits, before_s=_now_s() - self._quiet_s):
            if self._closed.is_set():
                return
            self._remove(logs.path)

    def _tidy_while_wanted(self) -> None:
        while self._wanted.is_set() and not self._closed.is_set():
            self._wanted.clear()
            self.tidy()

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
                    self._delete(Path(entry.path))  # One that another supervisor did not finish.
                elif not entry.name.startswith("."):
                    found.append(_look_at(Path(entry.path)))
            except FileNotFoundError:
                continue  # Another supervisor was quicker.
            except OSError as error:
                self._warn(f"cannot look at old logs: {error}; remove {entry.path} yourself")
        return found

    def _remove(self, folder: Path) -> None:
        try:
            if all(_OURS.fullmatch(name) for name in os.listdir(folder)):  # Else: whose it is, nobody here knows.
                self._delete(_take_away(folder))
        except (FileNotFoundError, BlockingIOError):
            return  # Another supervisor was quicker, or the job lives again.
        except OSError as error:
            self._warn(f"cannot remove old logs: {error}; remove {folder} yourself")

    def _delete(self, folder: Path) -> None:
        """Raises OSError. Leaves the rest for the next time where this supervisor ends meanwhile."""
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
    """Which of `found` must go, oldest first; what was written to since `before_s` counts, but stays."""
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
    """A descriptor that holds the folder. Raises OSError."""
    for _ in range(CLAIM_ATTEMPTS_MAX):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # The folder was removed in this moment.
            path = folder / LOCK_FILE
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)  # Who removes holds it for one rename.
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
            except BaseException:  # whatever it was, the descriptor must not leak; raised again
                os.close(descriptor)
                raise
            os.close(descriptor)
    raise OSError(f"{folder} is removed again and again")


def _take_away(folder: Path) -> Path:
    """Its new name: a job of the old one that starts now gets a folder of its own. Raises OSError."""
    with _alone(folder, create=True):
        return folder.rename(folder.with_name(f"{_REMOVING}{os.getpid()}-{folder.name}"))


@contextmanager
def _alone(folder: Path, *, create: bool) -> Generator[None]:
    """Nobody can claim the folder meanwhile. Raises BlockingIOError where somebody has, and other kinds of OSError."""
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


def _look_at(folder: Path) -> JobLogs:
    """Raises OSError. Blocks on the disk."""
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
    return JobLogs(folder, _written_at_s(folder, written_at_s), used_bytes)


def _written_at_s(folder: Path, newest_s: float) -> float:
    """Never, for a live job; now, where its supervisor was killed, whose workers may live a little longer."""
    try:
        with _alone(folder, create=False):
            (folder / LOCK_FILE).unlink()  # So that this is seen once; it changes the folder's own time.
    except FileNotFoundError:
        return newest_s
    except BlockingIOError:
        return math.inf
    return _now_s()


def _now_s() -> float:
    return Clock().unix_ns() / NS_PER_S
