"""How does the supervisor talk to a spawner, watch it, and kill it if it is lost, hangs or leaves too much unread?"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Mapping
from typing import ClassVar

import anyio
from anyio.abc import TaskStatus
from holdfast_wire import spawner_link as wire
from holdfast_wire.framing import SPAWNER_FRAME_BYTES_MAX, Decoder, FrameTooLongError, encode

from supervisor.edges.machine.own_process.side_threads import SideThreads
from supervisor.edges.machine.processes import process_table
from supervisor.edges.machine.processes.unresponsive_process import process_state
from supervisor.edges.workers.auto_heartbeat_pages import MainThreads
from supervisor.edges.workers.page_hand_over import PageOffers
from supervisor.edges.workers.spawner.lost_spawner_processes import Orphans, kill_cgroup, wait_for_end
from supervisor.edges.workers.spawner.page_sending import PageSending
from supervisor.edges.workers.spawner.spawner_discovery import FoundSpawner, SpawnerFiles, protocol_fault
from supervisor.edges.workers.spawner.spawner_kept_state import SpawnerKeptState
from supervisor.edges.workers.spawner.spawner_process import SpawnerProcess
from supervisor.edges.workers.spawner.worker_ends import OnEndSeen, WorkerEnds
from supervisor.errors import ConfigurationError
from supervisor.ports.edges import nobody_asks

_log = logging.getLogger("holdfast.jobs")

UNSENT_BYTES_MAX = 8 * SPAWNER_FRAME_BYTES_MAX
RECEIVE_BYTES = 256 * 1024
LAST_WORDS_TIMEOUT_S = 1.0  # a spawner that closed its link may take this long to exit before it is killed
LEAVE_TIMEOUT_S = 5.0  # one that sent Ended may take longer: it may still write output
GONE_TIMEOUT_S = 5.0  # a killed spawner that is not gone by then is in state D, or held by a debugger
SWEEP_TIMEOUT_S = 5.0  # for one check of all processes, which may be many
STUCK_SWEEPS_MAX = 4


class SpawnerLink:
    """One spawner process and the socket to it. Use it only from the event loop's thread."""

    _living: ClassVar[set[int]] = set()  # pids of all spawners of this supervisor that were not reaped yet

    def __init__(
        self,
        started: SpawnerProcess | FoundSpawner,
        job_id: str,
        *,
        on_message: Callable[[wire.FromSpawner], None],
        on_lost: Callable[[str], None],
        on_end_seen: OnEndSeen = nobody_asks,
        let_go: Callable[[SpawnerFiles], None] = SpawnerFiles.remove,
        pages: PageOffers | None = None,
        main_threads: MainThreads | None = None,
        interpreter: str = "",
    ) -> None:
        """Adopts a process from `start_process` or from a previous supervisor; the caller must call `run`.

        `main_threads`: where it notes the pages of its workers' main threads. `interpreter`: the job can't be run if
        this program exits by itself instead of being a spawner; "": that is a loss like any other.
        """
        self.pid = started.pid
        self._process = started.process if isinstance(started, SpawnerProcess) else None
        self.files = started.files
        self._let_go = let_go
        self._pages = PageSending(pages, job_id)
        self._job_id = job_id
        self._main_threads = main_threads if main_threads is not None else MainThreads()
        self._main_thread_pages = started.main_threads
        self._pidfd = started.pidfd
        self._socket = started.socket
        self._on_message = on_message
        self._on_lost = on_lost
        self._keeping = SpawnerKeptState()
        self._decoder = Decoder(frame_bytes_max=SPAWNER_FRAME_BYTES_MAX)
        self._unsent = bytearray()
        self._unsent_came = anyio.Event()
        self._on_kept: Callable[[], None] | None = None  # of the newest `keep`
        self._link_ended = anyio.Event()
        self._fault = ""  # why the link was abandoned, if it was
        self._killed = ""  # why we killed the spawner, if we did
        self._kill_asked = anyio.Event()
        self._waiting = anyio.CancelScope()  # waits until the process is gone; has a deadline once that should happen
        self._interpreter = interpreter
        self._ended = False
        self._exited = False
        self._cgroup = ""
        self._threads = SideThreads(stuck_max=STUCK_SWEEPS_MAX)
        self._orphans = Orphans(job_id, self.pid, started.name, found=isinstance(started, FoundSpawner))
        self._worker_ends = WorkerEnds(on_end_seen)
        self._living.add(self.pid)
        self._first: list[wire.Message] = []  # received before there was a reader
        if isinstance(started, FoundSpawner):
            self._take_over(started)

    def _take_over(self, found: FoundSpawner) -> None:
        self._decoder, self._first = found.decoder, found.reports
        self._cgroup = found.welcome.ready.cgroup
        self._pages.note_ready(found.welcome.ready)
        self._keeping = SpawnerKeptState.of(found.texts, taken=found.welcome.taken)
        for cycle, local_rank, pid in self._keeping.workers():
            self._orphans.note_session(pid, cycle)
            self._worker_ends.note(cycle, local_rank, pid)
            self._note_main_thread(cycle, local_rank)
        found.drop_claims()

    def send(self, message: wire.ToSpawner) -> None:
        """Sends a message. Never blocks, never raises: a spawner that can't get it is killed. No effect once lost."""
        if self._exited or self._fault:
            return
        try:
            frames = _frames(message)
        except (ValueError, TypeError) as error:
            self.kill(f"{type(message).__name__} can't be sent to it: {error}")
            return
        if len(self._unsent) + len(frames) > UNSENT_BYTES_MAX:
            self.kill(f"it takes no orders: {len(self._unsent)} bytes wait already, and it {process_state(self.pid)}")
            return
        self._unsent += frames
        self._flush()
        if self._unsent:
            self._unsent_came.set()

    def keep(
        self, texts: Mapping[str, str], orders: tuple[wire.Order, ...], on_kept: Callable[[], None], *, are_all: bool
    ) -> None:
        """Sends orders together with the data that the spawner keeps for the next supervisor.

        `are_all`: all other texts are removed. `on_kept` is called once the kernel has both: this process may end then.
        """
        self._keeping.turn(texts, are_all=are_all)
        self._on_kept = on_kept
        self._keep(orders)
        self._tell_kept()

    def keep_between(self, texts: Mapping[str, str], orders: tuple[wire.Order, ...]) -> None:
        """Does the same for a change that no report caused."""
        self._keeping.change(texts)
        self._keep(orders)

    def confirmation(self) -> Callable[[], None]:
        """Returns the function that confirms the reports so far, to a spawner that gets no data to keep any more."""
        return self._keeping.confirmation(self.send)

    def _keep(self, orders: tuple[wire.Order, ...]) -> None:
        if self._unsent and not orders:
            return  # the spawner takes nothing at the moment; the newest data counts later
        if not self._unsent and not self._exited and not self._fault:
            # With the state in which these ranks are known: the spawner does not wake up for pages alone.
            self._unsent += self._pages.frame(self._keeping.has_worker)
        message, plain = self._keeping.message(orders)
        if message is not None:
            self.send(message)
        for order in plain:
            self.send(order)
        if self._unsent:
            self._unsent_came.set()

    def _tell_kept(self) -> None:
        if self._on_kept is not None and not self._unsent and not self._fault:
            on_kept, self._on_kept = self._on_kept, None
            on_kept()

    def kill(self, reason: str) -> None:
        """Kills the spawner at once; `run` kills its descendants and returns within GONE_TIMEOUT_S in any case."""
        if self._exited or self._killed:
            return
        self._killed = reason
        self._give_up(reason)
        self._kill_spawner()
        self._kill_asked.set()
        self._waiting.deadline = min(self._waiting.deadline, anyio.current_time() + GONE_TIMEOUT_S)

    def let_go_on(self) -> None:
        """Continues the spawner if it is stopped: it has something to end."""
        entry = process_table.look_up(self.pid)
        if entry is None or entry.state != "T" or self._exited:
            return
        _log.warning("the spawner (pid %s) was stopped (state T) and is continued: it has to end processes", self.pid)
        with contextlib.suppress(OSError):  # it has ended
            signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)

    def process_state(self) -> str:
        """Returns what the spawner does, as the rest of a sentence. Never blocks."""
        return process_state(self.pid)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Reads until the spawner has exited and was reaped, then calls `on_lost` unless it had sent Ended."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write)
                tasks.start_soon(self._read)
                tasks.start_soon(self._end_if_silent)
                tasks.start_soon(self._kill_when_asked)
                tasks.start_soon(self._worker_ends.run)
                task_status.started()
                self._take_first()
                with self._waiting:
                    await anyio.wait_readable(self._pidfd)
                tasks.cancel_scope.cancel()
            self._receive_rest()
            reason = await self._reap()
        finally:
            self._worker_ends.close()
            self._pages.drop()
            self._drop_main_threads()
            self._socket.close()
            os.close(self._pidfd)
            if self.files is not None:
                self._let_go(self.files)
        code = self._process.returncode if self._process is not None else None
        if self._interpreter and code is not None and code >= 0:
            self._on_message(_refusal(self.pid, self._interpreter, code))
        if not self._ended:
            self._on_lost(reason)

    async def emptied(self, *, timeout_s: float) -> tuple[int, ...]:
        """Kills and reaps until nothing is left; returns the pids that can't be killed (state D) in time."""
        left: tuple[int, ...] = ()
        with anyio.move_on_after(timeout_s):
            while left := await self._sweep():
                if not await wait_for_end(left):
                    break
        return left and await self._sweep()

    async def _sweep(self) -> tuple[int, ...]:
        """Kills live processes and reaps ended ones; returns the live ones. In a thread: it reads all of /proc."""
        cgroup, others = self._cgroup, frozenset(self._living - {self.pid})

        def sweep() -> tuple[int, ...]:
            kill_cgroup(cgroup)
            return self._orphans.sweep(others=others)

        try:
            return await self._threads.call(sweep, timeout_s=SWEEP_TIMEOUT_S, discard=bool)
        except OSError as error:  # no thread available, or it is stuck
            _log.warning("what the spawner (pid %s) left could not be ended: %s", self.pid, error)
            return ()

    # --- the link --------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        while not self._fault:
            await self._unsent_came.wait()
            self._unsent_came = anyio.Event()
            while self._unsent and not self._fault:
                await anyio.wait_writable(self._socket)
                self._flush()
            self._tell_kept()

    def _flush(self) -> None:
        try:
            while self._unsent:
                sent = self._pages.send(self._socket, self._unsent)
                del self._unsent[:sent]
                if not self._unsent and (late := self._keeping.message(())[0]) is not None:
                    self._unsent += _frames(late)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._give_up(f"its link is broken: {error.strerror or error}")

    async def _read(self) -> None:
        while not self._fault:
            await anyio.wait_readable(self._socket)
            self._receive()

    def _receive(self) -> bool:
        """Handles the available data; returns False if there is none."""
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._give_up(f"its link is broken: {error.strerror or error}")
            return False
        if not data:
            self._give_up("it closed its link")
            return False
        try:
            for payload in self._decoder.feed(data):
                self._take(wire.decode(payload))
        except (wire.SpawnerProtocolError, FrameTooLongError) as error:
            self._give_up(str(error))
            return False
        return True

    def _take_first(self) -> None:
        first, self._first = self._first, []
        try:
            for message in first:
                self._take(message)
        except wire.SpawnerProtocolError as error:
            self._give_up(str(error))

    def _receive_rest(self) -> None:
        """Reads what it sent before it exited. Not up to the stream's end: a child may hold the other end open."""
        while not self._fault and self._receive():
            continue

    def _take(self, message: wire.Message) -> None:
        self._interpreter = ""  # It works.
        match message:
            case wire.Ready():
                if fault := protocol_fault(message):
                    raise wire.SpawnerProtocolError(fault)
                self._cgroup = message.cgroup
                self._pages.note_ready(message)
            case wire.Spawned():
                self._orphans.note_session(message.pid, message.cycle)
                self._worker_ends.note(message.cycle, message.local_rank, message.pid)
                self._note_main_thread(message.cycle, message.local_rank)
            case wire.Exited():
                self._worker_ends.forget(message.cycle, message.local_rank)
                self._main_threads.forget(self._job_id, message.cycle, message.local_rank)
            case wire.Emptied(cycle=cycle, stuck_pids=()):
                self._orphans.forget_sessions(cycle)
            case wire.Ended():
                self._ended = True
                self._give_up("it said that it had ended")
            case (
                wire.PrepareStore() | wire.ForkAhead() | wire.Spawn() | wire.Signal() | wire.KillTree() | wire.Fence()
                | wire.End() | wire.Keep() | wire.Kept() | wire.WelcomeBack() | wire.HoldPages() | wire.HandOverPages()
                | wire.HeldPages()
            ):  # fmt: skip
                raise wire.SpawnerProtocolError(f"cannot take {type(message).__name__} from a spawner")
            case _:
                pass
        self._keeping.note(message)
        self._on_message(message)

    def _note_main_thread(self, cycle: int, local_rank: int) -> None:
        if self._main_thread_pages is not None:
            self._main_threads.note(self._job_id, cycle, local_rank, self._main_thread_pages)

    def _drop_main_threads(self) -> None:
        if self._main_thread_pages is not None:
            self._main_threads.forget_all(self._main_thread_pages)
            self._main_thread_pages.close()

    def _give_up(self, fault: str) -> None:
        if not self._fault:
            self._fault = fault
            self._unsent.clear()
            self._pages.drop()
            self._link_ended.set()

    async def _end_if_silent(self) -> None:
        """Ends a spawner that can't be reached any more; it has a moment to exit by itself."""
        await self._link_ended.wait()
        with anyio.move_on_after(LEAVE_TIMEOUT_S if self._ended else LAST_WORDS_TIMEOUT_S):
            await self._kill_asked.wait()  # cancelled when the spawner exits
        self.kill(self._fault)

    async def _kill_when_asked(self) -> None:
        """Kills its workers, too: they outlive a spawner stuck in the kernel. `emptied` ends any that escape."""
        await self._kill_asked.wait()
        await self._sweep()

    # --- the process -----------------------------------------------------------------------------------------------

    def _kill_spawner(self) -> None:
        with contextlib.suppress(OSError):  # it has exited already
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def _reap(self) -> str:
        """Returns how it ended, or what it does if it is still there."""
        if self._process is None:
            return self._end_of_found()
        status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG)  # noqa: ASYNC222 - WNOHANG
        if status is None:
            status = await self._reap_later()
        why = self._killed or self._fault
        self._process.returncode = -signal.SIGKILL  # so that Popen neither waits nor warns
        if status is None:
            told = f"the spawner (pid {self.pid}) was killed and is not gone: it {self.process_state()}"
            return f"{told}; it was killed because {why}" if why else told
        self._exited = True
        self._living.discard(self.pid)
        code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        self._process.returncode = code
        how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        if self._killed and code == -signal.SIGKILL:
            return f"the spawner (pid {self.pid}) was killed: {why}"
        return f"the spawner (pid {self.pid}) {how}" + (f" after {why}" if why else "")

    def _end_of_found(self) -> str:
        """Returns that its end is unknown: another process is its parent and reaps it."""
        why = self._killed or self._fault
        if self._waiting.cancelled_caught:
            return f"the spawner (pid {self.pid}) was killed and is not gone: it {self.process_state()}; {why}"
        self._exited = True
        self._living.discard(self.pid)
        return f"the spawner (pid {self.pid}) has ended" + (f" after {why}" if why else "")

    async def _reap_later(self) -> os.waitid_result | None:
        """Reaps it late, in a thread, if it is stuck or a debugger sees its end first.

        Returns None if that takes too long.
        """
        timeout_s = 0.0 if self._waiting.cancelled_caught else GONE_TIMEOUT_S
        living, pid = self._living, self.pid

        def reap() -> os.waitid_result | None:
            return os.waitid(os.P_PID, pid, os.WEXITED)

        try:
            return await self._threads.call(reap, timeout_s=timeout_s, discard=lambda _: living.discard(pid))
        except OSError:  # too late, or no thread available
            return None


def _refusal(pid: int, interpreter: str, code: int) -> wire.Ready:
    """Returns what a spawner says that can't run the job's command."""
    why = f"it exited with code {code} instead of starting workers; run it by hand"
    return wire.Ready(
        pid, 1, "", "exec", "", (), "",
        refusal=f"cannot run with {interpreter}: {why}, or name another with --python",
        refusal_code=ConfigurationError.exit_code,
    )  # fmt: skip


def _frames(message: wire.Message) -> bytes:
    """Returns the message as it crosses the link. Raises ValueError or TypeError if it can't."""
    payloads = wire.payloads(message, bytes_max=SPAWNER_FRAME_BYTES_MAX)
    return b"".join([encode(payload, frame_bytes_max=SPAWNER_FRAME_BYTES_MAX) for payload in payloads])
