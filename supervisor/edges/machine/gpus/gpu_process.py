"""How is a process that speaks to NVML or to network cards kept, and what happens if it does not answer?

The first question starts it, or `warm` does so ahead of it. A process that does not answer in time is killed, and the
next question starts another. If even SIGKILL does not end it (state D), it is left alone, and nothing is asked while it
is there.
"""

from __future__ import annotations

import asyncio  # The loop's own readers deliver answers; anyio has none without a task.
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import cast

import anyio

import supervisor
from supervisor.edges.machine.own_process.side_threads import SideThreads
from supervisor.edges.machine.processes import process_table
from supervisor.ports.timed_waits import within

ROOT = Path(supervisor.__file__).parent.parent
PROGRAM = "from supervisor.edges.machine.gpus.gpu_program import main; main()"
ANSWER_S = 5.0  # on top of the time that the question itself may take; a cold driver needs up to 3 s
READ_BYTES = 65536
LINE_BYTES_MAX = 1024 * 1024
END_S = 1.0
STARTS_STUCK_MAX = 2  # each is a thread that waits for the file system of the interpreter
DOOMED_S = 0.2
NVML = "NVML"
CARDS = "the driver of the network cards"


class SilentError(Exception):
    """Raised if there is no answer; its text is the end of a sentence that says why."""


class GpuProcess:
    """Asks one process at a time. Use it only from the event loop's thread."""

    def __init__(
        self, *, environment: Mapping[str, str] | None = None, answer_s: float = ANSWER_S, asked: str = NVML
    ) -> None:
        """`environment` is that of the process; None: this one's. `asked`: what people read that the process asks."""
        self._environment = environment
        self._asked = asked
        self.answer_s = answer_s
        self.xids = set[tuple[str, int]]()  # (UUID, Xid), also of questions given up
        self._current: _Running | None = None
        self._doomed: list[_Running] = []  # killed, but not ended yet
        self._starting = anyio.Lock()
        self._threads = SideThreads(stuck_max=STARTS_STUCK_MAX)

    @property
    def pid(self) -> int | None:
        return self._current.process.pid if self._current is not None else None

    def take_xids(self) -> tuple[tuple[str, int], ...]:
        """Returns the Xid events that nobody has taken yet: each counts once, although looks of two jobs overlap."""
        taken = tuple(sorted(self.xids))
        self.xids.clear()
        return taken

    async def ask(self, question: str, *, takes_s: float = 0.0, **more: object) -> dict[str, object]:
        """Returns the answer. `takes_s`: how long the question itself may take. Raises SilentError.

        Time in which this process was suspended, perhaps with that one, does not count.
        """
        await self._await_doomed(DOOMED_S)
        running = await self._running()
        number, future = running.put(question, more)
        try:
            # Awaited itself, the future would be cancelled at the limit.
            await within(takes_s + self.answer_s, lambda: asyncio.wait((future,)))
            if future.done():
                return future.result()
            why = f"{self._asked} has not answered within {self.answer_s:g} s"
            future.cancel()
            self._give_up(running, why)
            raise SilentError(why)
        finally:
            running.drop(number)

    async def warm(self) -> None:
        """Starts the process, so that later questions are answered at once. Never raises."""
        try:
            await self.ask("ready")
        except SilentError:
            return  # The next question reports why.

    async def aclose(self) -> None:
        """Ends the process. Does not wait for one that SIGKILL does not end."""
        if self._current is not None:
            self._give_up(self._current, "the supervisor ends")
        with anyio.CancelScope(shield=True):
            await self._await_doomed(END_S)
        _stuck.extend(each for each in self._doomed if not each.has_ended)

    async def _await_doomed(self, at_most_s: float) -> None:
        """Waits for killed processes; they end at once unless they are stuck in the kernel."""
        with anyio.move_on_after(at_most_s):
            for each in self._doomed:
                await each.ended.wait()

    async def _running(self) -> _Running:
        """Returns the process that runs, or starts one. Raises SilentError."""
        async with self._starting:
            if self._current is None or self._current.has_ended:
                self._current = await self._start()
            return self._current

    async def _start(self) -> _Running:
        self._doomed = [each for each in self._doomed if not each.has_ended]
        if self._doomed:
            pid = self._doomed[0].process.pid
            raise SilentError(f"{self._asked} hangs: process {pid} asks it and can't be ended")
        environment = dict(os.environ if self._environment is None else self._environment)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), environment.get("PYTHONPATH", ""))))
        start = partial(_execute, [sys.executable, "-P", "-c", PROGRAM], environment)
        try:
            process = await self._threads.call(start, timeout_s=self.answer_s, discard=process_table.discard)
            return _Running(process, self._asked, self.xids)
        except OSError as error:
            raise SilentError(f"{sys.executable} cannot be started ({error.strerror or error})") from error

    def _give_up(self, running: _Running, why: str) -> None:
        if self._current is running:
            self._current = None
        running.kill(why)
        if not running.has_ended:
            self._doomed.append(running)


class _Running:
    """One process, from its start until it is reaped."""

    def __init__(self, process: subprocess.Popen[bytes], asked: str, xids: set[tuple[str, int]]) -> None:
        """Raises OSError without a descriptor of the process, which has then ended."""
        self.process = process
        self._xids = xids
        self._name = f"the process that asks {asked}"
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[dict[str, object]]] = {}
        self._asked = 0
        self._rest = b""
        self.ended = anyio.Event()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._questions, self._answers = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self._questions, False)
        os.set_blocking(self._answers, False)
        self._handle = process_table.descriptor_of_child(self.process)
        self._loop.add_reader(self._answers, self._read)
        self._loop.add_reader(self._handle, self._reap)

    @property
    def has_ended(self) -> bool:
        return self._handle < 0

    def put(self, question: str, more: Mapping[str, object]) -> tuple[int, asyncio.Future[dict[str, object]]]:
        """Sends a question. Returns its number and the future answer. Raises SilentError."""
        self._asked += 1
        self._write({"id": self._asked, "ask": question, **more})
        future: asyncio.Future[dict[str, object]] = self._loop.create_future()
        self._waiting[self._asked] = future
        return self._asked, future

    def drop(self, number: int) -> None:
        """Forgets a question whose answer nobody waits for any more."""
        if self._waiting.pop(number, None) is not None and not self.has_ended:
            with suppress(SilentError):
                self._write({"id": number, "ask": "drop"})

    def _write(self, question: Mapping[str, object]) -> None:
        line = json.dumps(question).encode() + b"\n"
        try:
            written = os.write(self._questions, line)
        except OSError as error:  # The process has just ended, or reads nothing.
            raise SilentError(f"{self._name} can't be asked ({error.strerror})") from error
        if written < len(line):
            self.kill("its questions have filled the pipe")
            raise SilentError(f"{self._name} reads no questions")

    def kill(self, why: str) -> None:
        if not self.has_ended:
            self.process.kill()
        self._lose(why)

    def _read(self) -> None:
        try:
            received = os.read(self._answers, READ_BYTES)
        except BlockingIOError:
            return
        self._rest += received
        if not received or len(self._rest) > LINE_BYTES_MAX:
            self._loop.remove_reader(self._answers)  # the process handle reports the end
            return
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            answer = cast("dict[str, object]", json.loads(line))
            if "xid" in answer:
                uuid, xid = cast("tuple[str, int]", answer["xid"])
                self._xids.add((uuid, xid))
                continue
            future = self._waiting.pop(cast("int", answer["id"]), None)
            if future is None or future.done():
                continue
            if "error" in answer:
                future.set_exception(SilentError(str(answer["error"])))
            else:
                future.set_result(answer)

    def _reap(self) -> None:
        code = self.process.poll()
        if code is None:
            return
        self._read()  # its last words
        self._loop.remove_reader(self._handle)
        self._loop.remove_reader(self._answers)
        os.close(self._handle)
        self._handle = -1
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.ended.set()
        self._lose(f"{self._name} has ended with {code}")

    def _lose(self, why: str) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(SilentError(why))


def _execute(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts the process. Blocks until the file system of the interpreter answers. Raises OSError."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd="/",
        start_new_session=True,
    )


_stuck: list[_Running] = []  # kept here, so that no destructor complains that they still run
