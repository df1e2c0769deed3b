"""What does a path answer, how fast, and which looks are still stuck? Asks the prober (path_prober.py).

At most one look at a path is in progress: while it is stuck, other callers learn since when.
"""

from __future__ import annotations

import asyncio  # anyio has no callback for a descriptor
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import anyio

from supervisor.core.storage_verdict import Answer, Answered, Failed, Kind, Silent, Unasked
from supervisor.edges.machine.health import path_prober
from supervisor.edges.machine.own_process.side_threads import SideThreads
from supervisor.ports.timed_waits import RunTime, within

START_TIMEOUT_S = 5.0  # for the start of the prober's interpreter
END_TIMEOUT_S = 0.5  # for a prober that is neither stopped nor starved
LOOKS_MAX = 256  # in progress at once


class _Look:
    """A look in progress."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.run_time = RunTime()
        self.is_killed = False
        self.answer: Answer | None = None
        self.answered = anyio.Event()

    def take(self, answer: Answer) -> None:
        if self.answer is None:
            self.answer = answer
            self.answered.set()


class PathProbes:
    """Asks the prober. Use it only from the event loop's thread."""

    def __init__(self) -> None:
        self._link: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = anyio.Lock()
        self._threads = SideThreads(stuck_max=1)
        self._looks: dict[tuple[Kind, str], _Look] = {}
        self._last_number = 0

    @property
    def under_way(self) -> int:
        """Returns how many looks have not answered."""
        return len(self._looks)

    async def look(self, kind: Kind, path: str, *, timeout_s: float) -> Answer:
        """Returns within `timeout_s` of the look's start, perhaps by another caller; then the look is killed.

        Time in which this process was suspended, perhaps with the prober, does not count.
        """
        try:
            link = await self._open_link()
        except OSError as error:
            return Unasked(f"the process that looks at storage can't be started: {error}")
        key = kind, path
        look = self._looks.get(key)
        if look is None:
            if len(self._looks) >= LOOKS_MAX:
                return Unasked(f"{LOOKS_MAX} looks are stuck")
            self._last_number += 1
            look = self._looks[key] = _Look(self._last_number)
            self._send(link, key, look, f"{kind} ".encode() + os.fsencode(path))
        await within(timeout_s, look.answered.wait, since=look.run_time)
        if look.answer is not None:
            return look.answer
        if not look.is_killed:
            look.is_killed = True
            self._send(link, key, look, b"k")
        return Silent(anyio.current_time() - look.run_time.begun_s)

    def close(self) -> None:
        """Closes the link. Never waits for a look."""
        self._lose_link("the supervisor ends")
        process, self._process = self._process, None
        if process is not None:
            try:
                process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # --- the prober ------------------------------------------------------------------------------------------------

    async def _open_link(self) -> socket.socket:
        """Starts the prober. Raises OSError."""
        async with self._starting:
            if self._link is None:
                started = await self._threads.call(_start, timeout_s=START_TIMEOUT_S, discard=_discard)
                self._process, self._link = started
                asyncio.get_running_loop().add_reader(self._link, self._hear)
            return self._link

    def _send(self, link: socket.socket, key: tuple[Kind, str], look: _Look, request: bytes) -> None:
        try:
            link.send(b"%d " % look.number + request)
        except OSError as error:
            self._looks.pop(key, None)
            look.take(Unasked(f"the process that looks at storage can't be asked: {error.strerror}"))

    def _hear(self) -> None:
        """Reads everything that the prober and its forks have sent."""
        link = self._link
        while link is not None:
            try:
                said = link.recv(path_prober.ANSWER_BYTES_MAX + 64)
            except BlockingIOError:
                return
            except OSError:
                said = b""
            if not said:
                self._lose_link("the process that looks at storage has ended")
                return
            self._take(said)

    def _take(self, said: bytes) -> None:
        number, code, *text = said.split(b" ", 2)
        key = next((key for key, each in self._looks.items() if each.number == int(number)), None)
        if key is None:
            return  # It is the end of a look that has answered.
        look = self._looks[key]
        if code == b"-":
            look.take(Unasked("the process that looked at it was killed"))
        elif (failure := int(code)) < 0:
            look.take(Unasked(f"no process can be started for it: {os.strerror(-failure)}"))
        elif failure:
            look.take(Failed(failure, os.strerror(failure), is_there=text == [path_prober.UNLISTED]))
        else:
            look.take(Answered(os.fsdecode(text[0]) if text else ""))
        del self._looks[key]

    def _lose_link(self, why: str) -> None:
        """Drops the prober; the next look starts another."""
        link, self._link = self._link, None
        if link is None:
            return
        with suppress(RuntimeError):  # The loop may already be closed.
            asyncio.get_running_loop().remove_reader(link)
        link.close()
        if self._process is not None:
            self._process.poll()
        looks, self._looks = self._looks, {}
        for look in looks.values():
            look.take(Unasked(why))


def _start() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts the prober, in a thread: the interpreter may be on a file system that does not answer."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with theirs:
            ours.setblocking(False)
            command = [sys.executable, "-I", "-S", str(Path(path_prober.__file__))]
            # A group of its own keeps Ctrl-C away; in our session, it is not taken for a job's process.
            process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
            )
    except BaseException:  # whatever it was, close the descriptor; raised again
        ours.close()
        raise
    return process, ours


def _discard(started: tuple[subprocess.Popen[bytes], socket.socket]) -> None:
    process, link = started
    link.close()
    process.kill()
    process.wait()
