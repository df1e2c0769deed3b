"""How is a process of a job's log server kept running, and how does it end?

A process that dies is replaced at once. It loses nothing: each sender keeps its data until that is written.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio

import supervisor
from supervisor.edges.machine.own_process.side_threads import SideThreads
from supervisor.edges.machine.processes import process_table
from supervisor.ports.timed_waits import pause

ROOT = Path(supervisor.__file__).parent.parent
AGAIN_FIRST_S, AGAIN_MOST_S = 0.02, 5.0
STEADY_S = 10.0  # a process that lived this long is replaced at once
END_MARGIN_S = 5.0  # on top of the time in which it ends by itself
LINE_BYTES_MAX = 4096
READY, AWAY, WARNING = b"ready", b"away", b"warning: "
FINISH = b'{"finish": true}'
FOLLOWS = b'{"follows": true}'  # tells a process that it follows a dead one
KILLED_S = 2.0  # a process that does not end after SIGKILL hangs in a disk and is left alone
START_TIMEOUT_S = 10.0  # on a busy machine
STARTS_STUCK_MAX = 2  # each is a thread that waits for the file system of the interpreter


class LogTier:
    """Runs one tier. `settings`: the first line that the process reads.

    `on_lost` is told why one ended too early, `on_away` that the next tier is not reached, `on_warning` what else the
    user should know.
    """

    def __init__(
        self,
        settings: bytes,
        *,
        ends_in_s: float,
        on_lost: Callable[[str], None],
        on_away: Callable[[], None],
        on_warning: Callable[[str], None] | None = None,
        listening_fd: int = -1,
    ) -> None:
        self._settings = settings
        self._ends_in_s = ends_in_s
        self._on_lost = on_lost
        self._on_away = on_away
        self._on_warning = on_warning
        self._listening_fd = listening_fd
        self._starts = SideThreads(stuck_max=STARTS_STUCK_MAX)
        self._process: subprocess.Popen[bytes] | None = None
        self._told = b""
        self._is_finished = False
        self._has_died = False
        self._has_served = False
        self._told_why = ""  # since one has served
        self._ends_at_s = 0.0
        self._finishing = anyio.Event()
        self.ready = anyio.Event()

    @property
    def pid(self) -> int:
        """Returns the pid; 0 if no process runs at this moment."""
        return self._process.pid if self._process is not None else 0

    def tell(self, line: bytes) -> None:
        """Sends a line to the process. Its successors get the newest such line, too."""
        if line != self._told:
            self._told = line
            self._write(line)

    def finish(self, *, spent_s: float = 0.0) -> None:
        """Lets the tier end once it has passed on everything. A process that dies meanwhile is still replaced.

        `spent_s`: so much of its time is over.
        """
        if not self._finishing.is_set():
            self._ends_at_s = anyio.current_time() + max(0.0, self._ends_in_s - spent_s) + END_MARGIN_S
            self._finishing.set()
        self._write(FINISH)

    async def run(self) -> bool:
        """Runs until it is finished; returns whether everything that came was passed on. Sets no time limit."""
        again_s = AGAIN_FIRST_S
        while True:
            why = "it can't be started"
            started_at_s = anyio.current_time()
            try:
                process = await self._starts.call(self._start, timeout_s=START_TIMEOUT_S, discard=process_table.discard)
                pidfd = process_table.descriptor_of_child(process)
            except OSError as error:
                why = f"it can't be started: {error.strerror or error}"
            else:
                self._process = process
                why = await self._until_end(process, pidfd)
                self._process = None
                if why == "" or (self._finishing.is_set() and self._is_finished):
                    return why == ""
            self._has_died = True
            if why != self._told_why:
                self._told_why = why
                self._on_lost(why)
            has_lived = anyio.current_time() - started_at_s > STEADY_S
            again_s = AGAIN_FIRST_S if has_lived else min(AGAIN_MOST_S, again_s * 2)
            if not await self._may_start_again(again_s):
                return False

    async def _may_start_again(self, pause_s: float) -> bool:
        """Returns after a pause. Once the job has ended, nothing waits for a tier that has never served."""
        if self._finishing.is_set():
            await pause(pause_s, why="one that can't start must not take the CPU from the workers")
        else:
            with anyio.move_on_after(pause_s):
                await self._finishing.wait()
        return not self._finishing.is_set() or (self._has_served and anyio.current_time() < self._ends_at_s)

    def _start(self) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), environment.get("PYTHONPATH", ""))))
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "supervisor", "log-tier"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd="/",
            start_new_session=True,
            pass_fds=(self._listening_fd,) if self._listening_fd >= 0 else (),
        )

    async def _until_end(self, process: subprocess.Popen[bytes], pidfd: int) -> str:
        """Returns why the process ended; "" if it was finished. Closes `pidfd`."""
        last = b""
        self._write(self._settings)
        if self._has_died:
            self._write(FOLLOWS)
        if self._told:
            self._write(self._told)
        if self._finishing.is_set():
            self.finish()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._kill_in_time, process, tasks.cancel_scope)
                last = await self._read_words(process)
                await anyio.wait_readable(pidfd)
                tasks.cancel_scope.cancel()
        finally:
            os.close(pidfd)
            for end in (process.stdin, process.stdout):
                if end is not None:
                    end.close()
            if process.poll() is None:  # Nobody waits for the process any more. Popen reaps it later.
                process.kill()
        if process.poll() is None:
            self._is_finished = True
            return "it can't be ended"
        code = process.wait()
        self.ready = anyio.Event()
        if self._finishing.is_set() and (code in (0, 1) or anyio.current_time() >= self._ends_at_s):
            self._is_finished = True
            return "" if code == 0 else "not everything was passed on in time"
        words = last.decode(errors="replace").strip()
        return f"{_in_words(code)}{f': {words}' if words else ''}"

    async def _read_words(self, process: subprocess.Popen[bytes]) -> bytes:
        """Reads its output until it closes, and returns the last line."""
        assert process.stdout is not None
        fd, rest, last = process.stdout.fileno(), b"", b""
        os.set_blocking(fd, False)
        while True:
            await anyio.wait_readable(fd)
            try:
                data = os.read(fd, LINE_BYTES_MAX)
            except BlockingIOError:
                continue
            if not data:
                return rest or last
            *whole, rest = (rest + data)[-2 * LINE_BYTES_MAX :].split(b"\n")
            for line in whole:
                if line == READY:
                    self._has_served, self._told_why = True, ""
                    self.ready.set()
                elif line == AWAY:
                    self._on_away()
                elif line.startswith(WARNING) and self._on_warning is not None:
                    self._on_warning(line.removeprefix(WARNING).decode(errors="replace"))
                else:
                    last = line

    async def _kill_in_time(self, process: subprocess.Popen[bytes], waiting: anyio.CancelScope) -> None:
        await self._finishing.wait()
        await pause(self._ends_at_s - anyio.current_time(), why="it ends by itself before, unless it hangs")
        process.kill()
        await pause(KILLED_S, why="it is told by the process's descriptor, which another task waits for")
        waiting.cancel()

    def _write(self, line: bytes) -> None:
        process = self._process
        if process is None or process.stdin is None or process.stdin.closed:
            return
        try:
            os.write(process.stdin.fileno(), line + b"\n")
        except OSError:
            return  # The process has died; its end says so.


def _in_words(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"
