"""How is a job's spawner started, spoken to, watched and, when it is lost, cleaned up after?"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Self

import anyio
from anyio.abc import TaskStatus
from holdfast_wire import spawner_link as wire
from holdfast_wire.framing import SPAWNER_FRAME_BYTES_MAX, Decoder, FrameTooLongError, encode

from supervisor.config.job_spec import JobSpec
from supervisor.edges.workers.orphans import Orphans, kill_cgroup
from supervisor.edges.workers.spawner_process import MakeCommand, start_process

UNSENT_BYTES_MAX = 2 * SPAWNER_FRAME_BYTES_MAX
RECEIVE_BYTES = 256 * 1024
LAST_WORDS_TIMEOUT_S = 1.0  # a spawner that closed its link has this long to exit before it is killed


class SpawnerOverflowError(AssertionError):
    """Raised when more waits for the spawner than it could ever be told: the engine says too much, which is our bug."""


class SpawnerLink:
    """One spawner process and the socket to it. All methods are for the event loop's thread."""

    _living: ClassVar[set[int]] = set()  # pids of all spawners of this supervisor that were not reaped yet

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        sock: socket.socket,
        job_id: str,
        *,
        on_message: Callable[[wire.FromSpawner], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """`start` makes the process, too."""
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)
        self._socket = sock
        self._on_message = on_message
        self._on_lost = on_lost
        self._decoder = Decoder(frame_bytes_max=SPAWNER_FRAME_BYTES_MAX)
        self._unsent = bytearray()
        self._unsent_came = anyio.Event()
        self._link_ended = anyio.Event()
        self._fault = ""  # why the link was given up, if it was
        self._ended = False
        self._exited = False
        self._cgroup = ""
        self._orphans = Orphans(job_id, process.pid)
        self._living.add(process.pid)

    @classmethod
    async def start(
        cls,
        spec: JobSpec,
        *,
        env: Mapping[str, str],
        private: bool,
        on_message: Callable[[wire.FromSpawner], None],
        on_lost: Callable[[str], None],
        supervisor_return_timeout_s: float = 60.0,
        exit_record_dir: str = "",
        open_files: tuple[int, ...] = (),
        output_dir: Path | None = None,
        make_command: MakeCommand | None = None,
    ) -> Self:
        """Starts the process as `start_process` does and raises; `run` must follow."""
        started = start_process(
            spec,
            env=env,
            private=private,
            supervisor_return_timeout_s=supervisor_return_timeout_s,
            exit_record_dir=exit_record_dir,
            open_files=open_files,
            output_dir=output_dir,
            make_command=make_command,
        )
        return cls(started.process, started.socket, spec.job_id, on_message=on_message, on_lost=on_lost)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: wire.ToSpawner) -> None:
        """Never blocks. Raises SpawnerOverflowError; nothing happens once the spawner is lost."""
        if self._exited or self._fault:
            return
        frame = encode(wire.encode(message), frame_bytes_max=SPAWNER_FRAME_BYTES_MAX)
        if len(self._unsent) + len(frame) > UNSENT_BYTES_MAX:
            raise SpawnerOverflowError(f"cannot tell the spawner more: {len(self._unsent)} bytes wait already")
        self._unsent += frame
        self._flush()
        if self._unsent:
            self._unsent_came.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Reads until the spawner has exited and was reaped, then calls `on_lost` unless it had said Ended."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write)
                tasks.start_soon(self._read)
                tasks.start_soon(self._end_if_silent)
                task_status.started()
                await anyio.wait_readable(self._pidfd)
                tasks.cancel_scope.cancel()
            self._receive_rest()
            reason = await self._reap()
        finally:
            self._socket.close()
            os.close(self._pidfd)
        if not self._ended:
            self._on_lost(reason)

    def kill_tree(self) -> None:
        """SIGKILL to all that a lost spawner left behind: by cgroup where it had one, and by our orphaned children.

        Never blocks, may be called again. `emptied` waits until they are gone.
        """
        if not self._exited and self._process.pid in self._living:
            self._kill_spawner()
        kill_cgroup(self._cgroup)
        self._orphans.kill(others=frozenset(self._living - {self.pid}))

    async def emptied(self, *, timeout_s: float) -> tuple[int, ...]:
        """Kills and reaps until nothing is left; returns the pids that can't be killed (state D) in time."""
        kill_cgroup(self._cgroup)
        return await self._orphans.emptied(timeout_s=timeout_s, others=lambda: frozenset(self._living - {self.pid}))

    # --- the link --------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        while not self._fault:
            await self._unsent_came.wait()
            self._unsent_came = anyio.Event()
            while self._unsent and not self._fault:
                await anyio.wait_writable(self._socket)
                self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                sent = self._socket.send(self._unsent)
                del self._unsent[:sent]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._give_up(f"its link is broken: {error.strerror or error}")

    async def _read(self) -> None:
        while not self._fault:
            await anyio.wait_readable(self._socket)
            self._receive()

    def _receive(self) -> bool:
        """Takes what is there now; False if nothing is."""
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

    def _receive_rest(self) -> None:
        """What it said before it exited. Not until the end of the stream: a child of it may hold the other end."""
        while not self._fault and self._receive():
            continue

    def _take(self, message: wire.Message) -> None:
        match message:
            case wire.Ready():
                self._cgroup = message.cgroup
            case wire.Spawned():
                self._orphans.note_session(message.pid)
            case wire.Ended():
                self._ended = True
            case wire.PrepareStore() | wire.Spawn() | wire.Signal() | wire.KillTree() | wire.End():
                raise wire.SpawnerProtocolError(f"cannot take {type(message).__name__} from a spawner")
            case _:
                pass
        self._on_message(message)

    def _give_up(self, fault: str) -> None:
        if not self._fault:
            self._fault = fault
            self._unsent.clear()
            self._link_ended.set()

    async def _end_if_silent(self) -> None:
        """A spawner that can't be spoken to any more is of no use: it gets a moment to exit by itself."""
        await self._link_ended.wait()
        with anyio.move_on_after(LAST_WORDS_TIMEOUT_S):
            await anyio.Event().wait()  # Cancelled when it exits.
        self._kill_spawner()

    # --- the process -----------------------------------------------------------------------------------------------

    def _kill_spawner(self) -> None:
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except OSError:
            return  # It has exited already.

    async def _reap(self) -> str:
        result = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)  # noqa: ASYNC222 - WNOHANG
        if result is None:  # A tracer (gdb, strace) sees the end first; until it lets go there is nothing to reap.
            os.set_blocking(self._pidfd, True)  # The event loop has taken that away.
            result = await anyio.to_thread.run_sync(os.waitid, os.P_PIDFD, self._pidfd, os.WEXITED)
        self._exited = True
        self._living.discard(self.pid)
        status = result.si_status if result is not None else 0
        code = status if result is None or result.si_code == os.CLD_EXITED else -status
        self._process.returncode = code  # so that Popen neither waits nor warns
        how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        return f"the spawner (pid {self.pid}) {how}" + (f" after {self._fault}" if self._fault else "")
