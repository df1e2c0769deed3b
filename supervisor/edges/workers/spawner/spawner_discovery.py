"""Where does a supervisor that comes back find its predecessor's spawners, and are they still the same?

Each spawner of a node's supervisor has files in the socket directory: a socket on which it listens, a record of the
process, and a file with the data that it keeps. The record is trusted only for a process of the same boot, pid
namespace, pid and start time, if the kernel confirms that it listens there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path

import anyio
import msgspec
from holdfast_wire import private_files
from holdfast_wire import spawner_link as wire
from holdfast_wire.framing import SPAWNER_FRAME_BYTES_MAX, Decoder, FrameTooLongError, encode
from holdfast_wire.private_supervisor import JOB_ID_VARIABLE, SPAWNER_VARIABLE

from supervisor.edges.machine import records
from supervisor.edges.machine.own_process import kernel_error_remedies
from supervisor.edges.machine.processes import process_table
from supervisor.edges.machine.processes.peer_credentials import Peer
from supervisor.edges.workers.auto_heartbeat_pages import AutoHeartbeatPages
from supervisor.edges.workers.page_hand_over import ReturnedPage, note_from
from supervisor.ports.timed_waits import pause

ASK_AGAIN_S = 0.02
ASK_AGAIN_MAX_S = 0.5
RECEIVE_BYTES = 256 * 1024
DESCRIPTORS_MAX = 253  # the kernel passes no more at once (SCM_MAX_FD)
NAME_BYTES = 6
RECORD_BYTES_MAX = 64 * 1024


class SpawnerIdentity(msgspec.Struct, frozen=True):
    """The spawner named in a record."""

    job_id: records.JobId
    boot: str
    pid_namespace: int
    pid: records.Pid
    started_ticks: records.Ticks

    @property
    def is_of_here(self) -> bool:
        """Returns whether pids of the record mean processes here: those of this boot and pid namespace."""
        return self.boot == process_table.boot_id() and self.pid_namespace == _own_namespace()

    @property
    def is_alive(self) -> bool:
        if not self.is_of_here:
            return False
        found = process_table.look_up(self.pid)
        return found is not None and found.started_ticks == self.started_ticks and found.state not in "ZX"

    @property
    def may_be_alive(self) -> bool:
        """Returns whether it lives, or is in another pid namespace of this boot, where that is not visible."""
        return self.is_alive or (not self.is_of_here and self.boot == process_table.boot_id())


class SpawnerFiles(msgspec.Struct, frozen=True):
    """The files of one spawner."""

    folder: Path
    name: str

    @property
    def record_path(self) -> Path:
        return self.folder / f"{self.name}.json"

    @property
    def keep_path(self) -> Path:
        return self.folder / f"{self.name}.kept"

    def note(self, job_id: str, pid: int) -> None:
        """Records that the spawner was started. Raises OSError."""
        process = process_table.look_up(pid)
        ticks = process.started_ticks if process is not None else 0
        identity = SpawnerIdentity(job_id, process_table.boot_id(), _own_namespace(), pid, ticks)
        fresh = self.record_path.with_suffix(".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.encode(identity))
        fresh.rename(self.record_path)

    def noted_at_ns(self) -> int | None:
        """Returns when the spawner was recorded, in Unix time; None if no record is there."""
        try:
            return self.record_path.stat().st_mtime_ns
        except OSError:
            return None

    def identity(self) -> SpawnerIdentity | None:
        """Returns the spawner; None if its supervisor ended before it was recorded. Raises OSError: see records."""
        try:
            return records.read(self.record_path, SpawnerIdentity, bytes_max=RECORD_BYTES_MAX)
        except FileNotFoundError:
            return None

    def listener(self) -> SpawnerIdentity | None:
        """Returns the spawner without its record, as the kernel knows it: the process that listens here, by its mark.

        Returns None if nobody listens.
        """
        with contextlib.suppress(OSError), _short(self.folder) as short, socket.socket(socket.AF_UNIX) as link:
            link.setblocking(False)
            link.connect(f"{short}/{self.name}.sock")
            peer = Peer.of(link)
            process = process_table.look_up(peer.pid)
            job_id = process_table.initial_variable(peer.pid, JOB_ID_VARIABLE)
            if process is not None and job_id is not None and peer.is_this_user:
                boot, namespace = process_table.boot_id(), _own_namespace()
                return SpawnerIdentity(job_id, boot, namespace, peer.pid, process.started_ticks)
        return None

    def survivor(self) -> SpawnerIdentity | None:
        """Returns the spawner as a live process of it, or of a rank, shows it. Unlike `listener`, connects nowhere."""
        for process in process_table.all_processes():
            job_id, spawner = process_table.initial_variables(process.pid, JOB_ID_VARIABLE, SPAWNER_VARIABLE)
            if job_id is not None and spawner == self.name:
                return msgspec.structs.replace(nobody(job_id), pid=process.pid, started_ticks=process.started_ticks)
        return None

    def remove(self) -> None:
        """Removes the files. Idempotent; never raises."""
        for suffix in ("sock", "json", "kept", "new", "kept.new"):
            with contextlib.suppress(OSError):
                (self.folder / f"{self.name}.{suffix}").unlink()


class FoundSpawner(msgspec.Struct):
    """A spawner that a previous supervisor started, and the link to it."""

    files: SpawnerFiles
    socket: socket.socket
    pidfd: int
    welcome: wire.WelcomeBack
    texts: dict[str, str]
    claims: tuple[int, ...]
    decoder: Decoder
    reports: list[wire.Message]  # received with the texts
    pages: dict[tuple[int, int], ReturnedPage] = msgspec.field(default_factory=dict[tuple[int, int], ReturnedPage])
    main_threads: AutoHeartbeatPages | None = None  # of its workers; None: they are not watched

    @property
    def pid(self) -> int:
        return self.welcome.pid

    @property
    def name(self) -> str:
        return self.files.name

    def kill(self) -> None:
        """Kills the spawner and closes the link."""
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Leaves the spawner alone. It waits for another supervisor."""
        self.socket.close()
        os.close(self.pidfd)
        self.drop_claims()
        self.drop_pages()
        if self.main_threads is not None:
            self.main_threads.close()

    def drop_pages(self) -> None:
        while self.pages:
            self.pages.popitem()[1].drop()

    def drop_claims(self) -> None:
        while self.claims:
            os.close(self.claims[0])
            self.claims = self.claims[1:]


def create_files(folder: Path) -> tuple[SpawnerFiles, socket.socket]:
    """Returns the files of a new spawner and its socket, on which nobody listens yet. Raises OSError."""
    private_files.make_folder(folder)
    fault = private_files.folder_fault(folder)
    if fault:
        raise OSError(errno.EPERM, fault, str(folder))
    files = SpawnerFiles(folder, os.urandom(NAME_BYTES).hex())
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with _short(folder) as short:
            listener.bind(f"{short}/{files.name}.sock")
    except BaseException:  # whatever stopped it, the descriptor must not leak; raised again
        listener.close()
        raise
    return files, listener


def find_files(folder: Path) -> list[SpawnerFiles]:
    """Returns the files of all spawners, live and dead."""
    if private_files.folder_fault(folder):
        return []
    try:
        names = {name.partition(".")[0] for name in os.listdir(folder)}
    except OSError:
        return []
    return [SpawnerFiles(folder, name) for name in sorted(names)]


async def _held(identity: SpawnerIdentity) -> int:
    """Returns a descriptor of the process; -1: it has ended. Waits for one: its job must not end for want of it."""
    while True:
        try:
            return os.pidfd_open(identity.pid)
        except OSError as error:
            if error.errno not in kernel_error_remedies.OF_DESCRIPTORS:
                return -1
        await pause(ASK_AGAIN_MAX_S, why="the kernel does not tell when a descriptor is free again")


async def reach(files: SpawnerFiles, identity: SpawnerIdentity) -> FoundSpawner | None:
    """Returns the link to a live spawner with everything left there; None once it is clearly unreachable.

    Waits while the spawner still loads.
    """
    pidfd = await _held(identity)
    if pidfd < 0:
        return None
    link: socket.socket | None = None
    descriptors: list[int] = []
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, pidfd)
        may_answer = identity.is_alive and not process_table.is_being_killed(identity.pid)
        link = await _connect(files, identity) if may_answer else None
        if link is None:
            return None
        undo.callback(link.close)
        undo.callback(lambda: [os.close(each) for each in descriptors])
        found = await _greet(files, identity, link, pidfd, descriptors)
        if found is not None:
            undo.pop_all()
        return found


async def _connect(files: SpawnerFiles, identity: SpawnerIdentity) -> socket.socket | None:
    """Returns None if it has ended. It may need long until it listens: it starts its interpreter first."""
    pause_s = ASK_AGAIN_S
    while True:
        try:
            with contextlib.ExitStack() as undo:
                link = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
                with _short(files.folder) as short:
                    link.connect(f"{short}/{files.name}.sock")
                undo.pop_all()
                return link
        except OSError as error:
            is_short = error.errno in kernel_error_remedies.OF_DESCRIPTORS
            if not is_short and (error.errno not in (errno.ECONNREFUSED, errno.EAGAIN) or not identity.is_alive):
                return None
        await pause(pause_s, why="nothing tells when a process begins to listen at a socket")
        pause_s = min(1.2 * pause_s, ASK_AGAIN_MAX_S)


async def _greet(
    files: SpawnerFiles, identity: SpawnerIdentity, link: socket.socket, pidfd: int, descriptors: list[int]
) -> FoundSpawner | None:
    """Returns None if it has ended or is another process; then the caller closes `descriptors`."""
    decoder = Decoder(frame_bytes_max=SPAWNER_FRAME_BYTES_MAX)
    welcome: wire.WelcomeBack | None = None
    claims = -1  # how many of the descriptors: they come with the first byte
    texts: dict[str, str] = {}
    reports: list[wire.Message] = []
    held: list[wire.HeldPages] = []
    while welcome is None or len(texts) < welcome.texts or _awaits_pages(welcome, held):
        if not await _receivable(link, pidfd):
            return None
        try:
            data, arrived, _, _ = socket.recv_fds(link, RECEIVE_BYTES, DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC)
            descriptors += arrived
            messages = [wire.decode(payload) for payload in decoder.feed(data)] if data else None
        except BlockingIOError:
            continue
        except (OSError, wire.SpawnerProtocolError, FrameTooLongError):
            return None
        if messages is None:
            return None
        claims = len(arrived) if claims < 0 else claims
        for message in messages:
            match message:
                case wire.WelcomeBack() if welcome is None:
                    welcome = message
                    if not _is_meant(welcome, identity, link):
                        return None
                    _ask_for_pages(welcome, link)
                case wire.Kept(name, text):
                    texts[name] = text
                case wire.HeldPages():
                    held.append(message)
                case _:
                    reports.append(message)
    pages = _matched(held, descriptors[claims:])
    main_threads = None
    if welcome.watched and claims > 0:
        claims -= 1
        main_threads = _main_threads(descriptors[claims])
    return FoundSpawner(
        files, link, pidfd, welcome, texts, tuple(descriptors[:claims]), decoder, reports, pages, main_threads
    )


def _main_threads(descriptor: int) -> AutoHeartbeatPages | None:
    """Takes over the memory file of main threads. Without it, those ranks are not judged by it."""
    try:
        return AutoHeartbeatPages(descriptor=descriptor)
    except (OSError, ValueError):
        return None


def _awaits_pages(welcome: wire.WelcomeBack, held: Sequence[wire.HeldPages]) -> bool:
    return welcome.ready.holds_pages and (not held or held[-1].more)


def _ask_for_pages(welcome: wire.WelcomeBack, link: socket.socket) -> None:
    """Asks for the pages that a spawner of this version holds: an older supervisor takes no descriptors of pages."""
    if welcome.ready.holds_pages:
        with contextlib.suppress(OSError):  # it has ended, which `_receivable` says
            link.send(encode(wire.encode(wire.HandOverPages()), frame_bytes_max=SPAWNER_FRAME_BYTES_MAX))


def _matched(held: Sequence[wire.HeldPages], descriptors: Sequence[int]) -> dict[tuple[int, int], ReturnedPage]:
    """Returns the pages whose descriptor has arrived, whatever the order; closes what is not a page."""
    by_inode = {os.fstat(descriptor).st_ino: descriptor for descriptor in descriptors}
    found: dict[tuple[int, int], ReturnedPage] = {}
    for message in held:
        for cycle, local_rank, inode, text in message.pages:
            note = note_from(text)
            if note is not None and inode in by_inode and (cycle, local_rank) not in found:
                found[cycle, local_rank] = ReturnedPage(by_inode.pop(inode), note, message.absences)
    taken = {page.fd for page in found.values()}
    for descriptor in descriptors:
        if descriptor not in taken:
            os.close(descriptor)
    return found


def _is_meant(welcome: wire.WelcomeBack, identity: SpawnerIdentity, link: socket.socket) -> bool:
    """Compares its own claim, the record, and the process that listens according to the kernel."""
    peer = Peer.of(link)
    said, recorded = (welcome.pid, welcome.job_id), (identity.pid, identity.job_id)
    return said == recorded and peer.pid == identity.pid and peer.is_this_user


async def _receivable(link: socket.socket, pidfd: int) -> bool:
    """Waits until data can be read, or returns False once the spawner has ended."""
    ended = False
    async with anyio.create_task_group() as tasks:

        async def wait_for_end() -> None:
            nonlocal ended
            await anyio.wait_readable(pidfd)
            ended = True
            tasks.cancel_scope.cancel()

        tasks.start_soon(wait_for_end)
        await anyio.wait_readable(link)
        tasks.cancel_scope.cancel()
    return not ended


def protocol_fault(ready: wire.Ready) -> str:
    """Returns why a spawner, found or started, can't be used by this version; "": it can."""
    if ready.protocol == wire.PROTOCOL:
        return ""
    versions = f"version {ready.protocol} of the spawner link, this supervisor version {wire.PROTOCOL}"
    return f"it speaks {versions}; install one version of Holdfast on this node, and start the supervisor again"


def last_noted_ns(files: Iterable[SpawnerFiles]) -> int | None:
    """Returns when the last of these spawners was recorded; None if that is not known."""
    return max(filter(None, (each.noted_at_ns() for each in files)), default=None)


def nobody(job_id: str) -> SpawnerIdentity:
    """Returns a spawner of the job that has ended, and of which nothing else is known."""
    return SpawnerIdentity(job_id, process_table.boot_id(), _own_namespace(), pid=0, started_ticks=0)


def _own_namespace() -> int:
    return process_table.namespace(os.getpid(), "pid") or 0


@contextlib.contextmanager
def _short(folder: Path) -> Generator[str]:
    """Yields a path of the folder that leaves room for a socket's name, even if its own path is long."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
