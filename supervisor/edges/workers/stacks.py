"""Where does each rank stand right now? py-spy from outside, else the rank's own faulthandler, within a budget."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import IO

import anyio
import msgspec

from supervisor.core.facts import Evidence
from supervisor.edges.workers.stack_text import Stack, from_faulthandler, from_py_spy, grouped

Ask = Callable[[int, float], Awaitable[str | None]]

HEAD_START_SHARE = 0.3  # of the budget, for py-spy alone; then the rank is asked too, and the first answer counts
CLOSING_SHARE = 0.1  # of the budget, kept for ending what hangs
CLOSING_S_MAX = 0.05
OUTPUT_BYTES_MAX = 4 * 1024 * 1024
ATTEMPTS_MAX = 3  # a running interpreter changes under the reader's eyes; a second look mostly succeeds
NOTE_CHARACTERS_MAX = 300


class _Found(msgspec.Struct):
    stacks: dict[int, Stack] = msgspec.field(default_factory=dict[int, Stack])
    faults: dict[int, str] = msgspec.field(default_factory=dict[int, str])  # of py-spy
    refusals: dict[int, str] = msgspec.field(default_factory=dict[int, str])  # of the rank's client
    sources: set[str] = msgspec.field(default_factory=set[str])


class StackCollector:
    """See ports.StackSource."""

    def __init__(self, *, py_spy: Path | None = None) -> None:
        """`py_spy`: the program; None: the one beside this interpreter, else on PATH."""
        self._py_spy = py_spy if py_spy is not None else _find_py_spy()
        self._unreaped: list[subprocess.Popen[bytes]] = []

    async def collect(self, pids: Mapping[int, int], *, ask: Ask, budget_s: float) -> Evidence:
        """Stacks of all these ranks (rank -> pid) at once, in at most `budget_s`. Never raises for what a rank does."""
        began_s = anyio.current_time()
        found = _Found()
        closing_s = min(CLOSING_S_MAX, CLOSING_SHARE * budget_s)
        end_s = began_s + budget_s - closing_s
        self._unreaped = [process for process in self._unreaped if process.poll() is None]
        with anyio.move_on_after(max(0.0, budget_s - closing_s)):
            async with anyio.create_task_group() as tasks:
                for rank, pid in pids.items():
                    tasks.start_soon(self._look, rank, pid, ask, end_s, budget_s * HEAD_START_SHARE, found)
        notes: list[str] = []
        for rank in sorted(set(pids) - set(found.stacks)):
            why = found.faults.get(rank, f"no answer within {budget_s:g} s") + found.refusals.get(rank, "")
            notes.append(f"no stack of rank {rank} (pid {pids[rank]}): {why}"[:NOTE_CHARACTERS_MAX])
        return Evidence(
            groups=grouped(found.stacks),
            notes=tuple(notes),
            source=", ".join(sorted(found.sources, reverse=True)),
            took_s=anyio.current_time() - began_s,
        )

    async def _look(self, rank: int, pid: int, ask: Ask, end_s: float, head_start_s: float, found: _Found) -> None:
        """py-spy disturbs nobody, so it begins; a rank that it has no answer for in time is asked beside it."""
        found.faults[rank] = "py-spy had no time"
        unreadable = anyio.Event()
        async with anyio.create_task_group() as tasks:

            def take(stack: Stack | None, source: str) -> None:
                if stack is not None:
                    found.stacks[rank] = stack
                    found.sources.add(source)
                    tasks.cancel_scope.cancel()

            async def run_py_spy() -> None:
                take(await self._by_py_spy(rank, pid, end_s, found), "py-spy")
                unreadable.set()

            tasks.start_soon(run_py_spy)
            with anyio.move_on_after(head_start_s):
                await unreadable.wait()
            text = await ask(rank, max(0.0, end_s - anyio.current_time()))
            missing = ", and its client has not answered" if text is None else ", nor has its client a stack"
            found.refusals[rank] = missing
            take(from_faulthandler(text) if text else None, "faulthandler")

    async def _by_py_spy(self, rank: int, pid: int, end_s: float, found: _Found) -> Stack | None:
        if self._py_spy is None:
            found.faults[rank] = "py-spy is not installed"
            return None
        for _ in range(ATTEMPTS_MAX):
            if anyio.current_time() >= end_s:
                break  # Starting a process can't be interrupted; with many ranks on a busy node it takes its time.
            output, complaint = await self._run(self._py_spy, pid)
            stack = from_py_spy(output, pid) if output else None
            if stack is not None:
                return stack
            found.faults[rank] = _shortened(complaint) or "py-spy saw no Python frame"
            if _is_hopeless(complaint):
                break
        return None

    async def _run(self, program: Path, pid: int) -> tuple[bytes, str]:
        """Output and complaint of one run. Cancelled, it is killed."""
        # Not blocking: a stopped or traced process is read as it is, and a py-spy that is killed leaves nobody stopped.
        command = (str(program), "dump", "--json", "--nonblocking", "--pid", str(pid))
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 a vfork, and its end is waited for below
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
            )
        except OSError as error:
            return b"", f"py-spy can't be run: {error.strerror or error}"
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            output = bytearray()
            complaint = bytearray()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_drain, process.stdout, output)
                tasks.start_soon(_drain, process.stderr, complaint)
            process.wait()  # It has closed both ends, so it is at its end; this returns at once.
            return bytes(output), complaint.decode(errors="replace")
        finally:
            process.stdout.close()
            process.stderr.close()
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                self._unreaped.append(process)  # Reaped at the next look: a kill takes a moment, and time is up.


async def _drain(pipe: IO[bytes], into: bytearray) -> None:
    descriptor = pipe.fileno()
    os.set_blocking(descriptor, False)
    while len(into) < OUTPUT_BYTES_MAX:
        await anyio.wait_readable(descriptor)
        data = os.read(descriptor, 64 * 1024)
        if not data:
            return
        into += data


def _find_py_spy() -> Path | None:
    beside = Path(sys.executable).with_name("py-spy")
    if beside.exists():
        return beside
    on_path = shutil.which("py-spy")
    return Path(on_path) if on_path else None


def _shortened(complaint: str) -> str:
    """The first line: causes and a backtrace of py-spy's own follow."""
    return complaint.strip().partition("\n")[0][:NOTE_CHARACTERS_MAX]


def _is_hopeless(complaint: str) -> bool:
    """Another attempt would end the same way."""
    lowered = complaint.lower()
    return any(words in lowered for words in ("permission denied", "process is running", "can't be run"))
