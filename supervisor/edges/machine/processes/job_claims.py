"""Which processes own a job id on this node? One group per job id and user, under any supervisor.

A claim is a lock on an open file. The supervisor opens the file, the spawner and its children inherit it, and the
kernel releases the lock with the last of them: a killed supervisor's job keeps its id until its last process ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import struct
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec
from holdfast_wire import private_files

from supervisor.edges.machine import records
from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.processes import home_folder, process_table
from supervisor.edges.machine.processes.unresponsive_process import process_state
from supervisor.errors import AlreadyExistsError
from supervisor.local_time import local_time

CLAIM_DIR_VARIABLE = "HOLDFAST_CLAIM_DIR"
FOLDER = "claims"
SUFFIX = ".claim"
NODE = "node-"  # and a number: the folder of further nodes of jobs on this machine
# Unlike TMPDIR and XDG_RUNTIME_DIR, these are the same for all shells, services and Slurm steps of a user.
# The first usable one is taken.
SHARED_PLACES = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
HOLDER_BYTES_MAX = 4096
SWEPT_MAX = 32  # how many old claims are removed in one pass
STUCK_NAMED_MAX = 8
ATTEMPTS_MAX = 100  # its last holder may remove the file while we open it

_FLOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, pid; on 64-bit Linux
# A holder locks all bytes. Removing the file of a dead holder takes the later ones: nobody else gets the claim
# meanwhile, but those who ask about the first byte are not told that somebody holds it.
_ALL_BYTES = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_FIRST_BYTE = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
_LATER_BYTES = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 1, 0, 0)
_log = logging.getLogger("holdfast.claims")


class Holder(msgspec.Struct, frozen=True):
    """The data that a supervisor writes into its claim."""

    pid: records.Pid
    started_ticks: records.Ticks
    since_ns: records.UnixNs
    node: str = ""  # the name of this node of a job of several
    meets_at: str = ""  # where its nodes meet

    @property
    def is_alive(self) -> bool:
        process = process_table.look_up(self.pid)
        return process is not None and process.started_ticks == self.started_ticks and process.state not in "ZX"


class JobClaims:
    """The claims of one supervisor. No method waits for another process."""

    def __init__(self, folders: Sequence[Path] | None = None) -> None:
        """`folders` replaces this user's folders; if it is empty, nothing is claimed."""
        self._folders = claim_folders() if folders is None else tuple(folders)
        self._held: dict[str, tuple[int, int, Path | None]] = {}  # job id -> descriptor or -1, since, file
        self._marks: dict[Path, int] = {}  # claim folder -> a lock that keeps systemd-tmpfiles away

    def take(self, job_id: str, *, node: str = "", meets_at: str = "") -> int:
        """Takes the claim; returns since when we hold it (Unix ns). Idempotent. Raises AlreadyExistsError.

        `node`, `meets_at`: of a job of several nodes, for others that ask who holds it.
        If no claim can be written at all, the job runs without one.
        """
        if job_id in self._held:
            return self._held[job_id][1]
        if any(is_held(job_id, folder) for folder in self._folders):
            raise refusal(job_id, self._folders)
        since_ns = Clock().unix_ns()
        faults: list[str] = []
        for folder in self._folders:
            try:
                self._mark(folder)
                descriptor = _lock(_path(job_id, folder), (since_ns, node, meets_at))
            except BlockingIOError:  # taken since the check
                raise refusal(job_id, self._folders) from None
            except OSError as error:
                faults.append(f"{error.filename or folder}: {error.strerror or error}")
                continue
            self._held[job_id] = (descriptor, since_ns, _path(job_id, folder))
            _sweep(folder)
            return since_ns
        if faults:
            _log.warning("cannot claim the id of job %s, so a second job may take it: %s", job_id, "; ".join(faults))
        self._held[job_id] = (-1, since_ns, None)
        return since_ns

    def take_back(self, job_id: str, since_ns: int, descriptors: Sequence[int]) -> None:
        """Adopts the claim of a job that another supervisor started: its `descriptors` now belong to us."""
        if not descriptors:
            self._held[job_id] = (-1, since_ns, None)
            return
        for other in descriptors[1:]:
            os.close(other)
        path = Path(_target(f"/proc/self/fd/{descriptors[0]}"))
        before = _read_holder(path)
        _write_holder(descriptors[0], (since_ns, before.node, before.meets_at) if before else (since_ns, "", ""))
        with contextlib.suppress(OSError):
            self._mark(path.parent)
        self._held[job_id] = (descriptors[0], since_ns, path)

    def descriptors(self, job_id: str) -> tuple[int, ...]:
        """Returns the descriptors that a process of the job must inherit to hold the claim, too."""
        descriptor = self._held.get(job_id, (-1, 0, None))[0]
        return (descriptor,) if descriptor >= 0 else ()

    def since_ns(self, job_id: str) -> int | None:
        """Returns since when we hold the claim; None if we do not."""
        held = self._held.get(job_id)
        return held[1] if held is not None else None

    def is_of_another_run(self, job_id: str, since_ns: int | None, *, left: Collection[int] = ()) -> bool:
        """Returns whether this node's claim is held by another run than the one that began then.

        A claim whose record can't be read counts as another run's, unless only processes in `left`, which this run has
        left, hold it. `since_ns`: None if it is not known; then a claim counts whose supervisor lives.
        """
        for folder in self._folders:
            if is_held(job_id, folder):
                found = _read_holder(_path(job_id, folder))
                if found is None:
                    is_ours = bool(left) and {*left}.issuperset(_holders(job_id, [folder]))
                else:
                    is_ours = not found.is_alive if since_ns is None else found.since_ns == since_ns
                if not is_ours:
                    return True
        return False

    def release(self, job_id: str) -> None:
        """Releases the claim of this supervisor; remaining processes of the job still hold it."""
        descriptor, _, path = self._held.pop(job_id, (-1, 0, None))
        if descriptor >= 0:
            os.close(descriptor)
        if path is not None:
            _remove_if_free(path)

    def close(self) -> None:
        """Releases all claims."""
        for job_id in list(self._held):
            self.release(job_id)
        for descriptor in self._marks.values():
            os.close(descriptor)
        self._marks.clear()

    def _mark(self, folder: Path) -> None:
        """Makes or checks the folder, and locks it: systemd-tmpfiles ignores a locked folder, however old."""
        if folder in self._marks:
            return
        _make(folder)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # a folder that can't be locked still holds claims
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        self._marks[folder] = descriptor


def claim_folders(environment: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Returns where this user's claims may be, in order. Creates nothing."""
    environment = os.environ if environment is None else environment
    chosen = environment.get(CLAIM_DIR_VARIABLE, "")
    return (Path(chosen),) if os.path.isabs(chosen) else _default_folders(environment)


def _default_folders(environment: Mapping[str, str]) -> tuple[Path, ...]:
    shared = tuple(place / f"holdfast-{os.geteuid()}" / FOLDER for place in SHARED_PLACES)
    home = home_folder.home_dir(environment)
    return shared if home is None else (*shared, home / FOLDER)


def numbered(folders: Sequence[Path], number: int) -> tuple[Path, ...]:
    """Returns where the claims of a job's further node on this machine may be; of the first one (0), the same."""
    return tuple(folder / f"{NODE}{number}" for folder in folders) if number else tuple(folders)


def is_live(job_id: str) -> bool:
    """Returns whether a process of this user's job is left on this machine: supervisor, spawner or worker."""
    return any(is_held(job_id, folder) for folder in _all_folders())


def _all_folders() -> list[Path]:
    """Returns the folders of all nodes of jobs on this machine."""
    found = list(claim_folders())
    for folder in claim_folders():
        with contextlib.suppress(OSError):
            found += (folder / name for name in sorted(os.listdir(folder)) if name.startswith(NODE))
    return found


def is_held(job_id: str, folder: Path) -> bool:
    """Returns whether the claim is held. Only asks the kernel, so a claim being taken now does not fail."""
    if "/" in job_id or _fault_of(folder):
        return False
    try:
        descriptor = os.open(_path(job_id, folder), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return _is_locked(descriptor)
    except OSError:
        return False  # a file system without locks: nothing there is held
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    """Returns whether a holder has locked the file. Raises OSError."""
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _FIRST_BYTE)
    return _FLOCK.unpack(answer)[0] != fcntl.F_UNLCK


def folder_of_run(job_id: str, since_ns: int) -> Path | None:
    """Returns where the claim of this run, which began then, is still held; None if it is not."""
    for folder in _all_folders():
        found = holder(job_id, [folder])
        if found is not None and found.since_ns == since_ns:
            return folder
    return None


def holder(job_id: str, folders: Sequence[Path]) -> Holder | None:
    """Returns who took the claim that is held now; None if nobody did or it is unreadable."""
    for folder in folders:
        if is_held(job_id, folder):
            found = _read_holder(_path(job_id, folder))
            if found is not None:
                return found
    return None


def refusal(job_id: str, folders: Sequence[Path]) -> AlreadyExistsError:
    """Returns the error for a claim that one of these folders shows as held."""
    held_by = holder(job_id, folders)
    if held_by is None:
        return AlreadyExistsError(
            f"cannot start job {job_id}: a job of that id is live on this node; choose another --job-id, or holdfast "
            f"stop {job_id}"
        )
    if held_by.is_alive:
        where = f", whose nodes meet at {held_by.meets_at}," if held_by.meets_at else ""
        return AlreadyExistsError.of_live_job(job_id, since_ns=held_by.since_ns, pid=held_by.pid, where=where)
    since = local_time(held_by.since_ns)
    return AlreadyExistsError(
        f"cannot start job {job_id}: processes of a job of that id, started {since}, are left; their supervisor (pid "
        f"{held_by.pid}) is gone, and {how_they_end(job_id, folders)}; try again then, or choose another --job-id"
    )


def how_they_end(job_id: str, folders: Sequence[Path]) -> str:
    """Returns how processes that hold a claim without a supervisor end, as the rest of a sentence.

    Their spawner ends them, except stopped ones and those stuck in the kernel.
    """
    left = _holders(job_id, folders)
    stuck = [pid for pid in left if _is_stuck(pid)]
    if stuck:
        pids = " ".join(map(str, stuck[:STUCK_NAMED_MAX]))
        return f"process {stuck[0]} of it {process_state(stuck[0])}, so end it with kill -KILL {pids}"
    if left and not any(map(_may_be_spawner, left)):
        pids = " ".join(map(str, left[:STUCK_NAMED_MAX]))
        return f"nobody ends them, since their spawner is gone, too: kill -KILL {pids} does"
    return "they end within its --supervisor-return-timeout, unless a supervisor takes them over before"


def _may_be_spawner(pid: int) -> bool:
    """Returns whether it leads its session, as a spawner does, which has its name only once it has loaded."""
    entry = process_table.look_up(pid)
    return entry is not None and entry.session == pid


def _is_stuck(pid: int) -> bool:
    entry = process_table.look_up(pid)
    return entry is not None and entry.state in "TtD"


def _holders(job_id: str, folders: Sequence[Path]) -> list[int]:
    """Returns the processes with the claim open, by the names that the kernel keeps. Opens none of their files."""
    names = {str(_path(job_id, folder)) for folder in folders}
    found: list[int] = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # gone, or owned by another user
            if any(_target(f"/proc/{pid}/fd/{number}") in names for number in os.listdir(f"/proc/{pid}/fd")):
                found.append(int(pid))
    return sorted(found)


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""  # closed meanwhile


def _path(job_id: str, folder: Path) -> Path:
    return folder / f"{job_id}{SUFFIX}"


def _make(folder: Path) -> None:
    """Makes the folder. Raises OSError.

    The folder that contains it must be private, too, unless the user has chosen where claims are.
    """
    above = folder.parent if folder.name.startswith(NODE) else folder  # of the first node
    for path in dict.fromkeys((*((above.parent,) if above.name == FOLDER else ()), above, folder)):
        private_files.make_folder(path)
        fault = _fault_of(path)
        if fault and (path != above.parent or above in _default_folders(os.environ)):
            raise OSError(errno.EACCES, fault, str(path))


def _fault_of(folder: Path) -> str:
    """Returns why the folder can't be trusted; "" if it is ours alone, or missing."""
    fault = private_files.folder_fault(folder)
    return fault if fault and os.path.lexists(folder) else ""


def _lock(path: Path, data: tuple[int, str, str]) -> int:
    """Locks the file and returns its descriptor. Raises OSError; BlockingIOError if another process holds it."""
    for attempt in range(ATTEMPTS_MAX):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _ALL_BYTES)
            if _is_at(descriptor, path):
                _write_holder(descriptor, data)
                return descriptor
        except BlockingIOError:  # perhaps locked only to remove a file that nobody claims
            if _is_locked(descriptor) or attempt == ATTEMPTS_MAX - 1:
                os.close(descriptor)
                raise
        except BaseException:  # whatever it was, the descriptor must not leak; raised again
            os.close(descriptor)
            raise
        os.close(descriptor)
        os.sched_yield()
    raise OSError(f"{path} is removed again and again")


def _read_holder(path: Path) -> Holder | None:
    with contextlib.suppress(OSError):
        return records.read(path, Holder, bytes_max=HOLDER_BYTES_MAX)
    return None


def _write_holder(descriptor: int, data: tuple[int, str, str]) -> None:
    """Writes since when we hold it, as which node, and where the nodes meet."""
    own = process_table.look_up(os.getpid())
    body = msgspec.json.encode(Holder(os.getpid(), own.started_ticks if own else 0, *data))
    with contextlib.suppress(OSError):  # On a full disk, the lock alone must do, or the record before.
        os.pwrite(descriptor, body.ljust(os.fstat(descriptor).st_size), 0)
        os.ftruncate(descriptor, len(body))


def _remove_if_free(path: Path) -> None:
    """Removes the file under its lock, so that nobody loses a claim taken meanwhile."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LATER_BYTES)
            if _is_at(descriptor, path):
                path.unlink()
        finally:
            os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Removes what killed supervisors left behind."""
    with contextlib.suppress(OSError):
        stale = [name for name in os.listdir(folder) if name.endswith(SUFFIX)]
        for name in stale[:SWEPT_MAX]:
            if not is_held(name.removesuffix(SUFFIX), folder):
                _remove_if_free(folder / name)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False
