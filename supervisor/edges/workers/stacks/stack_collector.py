"""Where is each rank in its code right now? Asks py-spy from outside, else the rank's own faulthandler, within a
budget.

Two looks at the processes, before and after, show what stacks do not: which processes are stopped or have not moved.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import anyio
import msgspec
from anyio.abc import TaskGroup

from supervisor.core.facts import Evidence
from supervisor.core.process_facts import ProcessState, RankFacts, RankLook
from supervisor.edges.machine.own_process.own_descriptors import separately
from supervisor.edges.machine.own_process.side_threads import SideThreads
from supervisor.edges.workers.stacks.process_activity import ProcessActivity, ProcessSample, facts_of, is_stopped
from supervisor.edges.workers.stacks.source_line import source_line
from supervisor.edges.workers.stacks.stack_text import (
    Reading,
    Stack,
    from_faulthandler,
    from_py_spy,
    grouped,
    was_forced,
)
from supervisor.ports.timed_waits import pause

Ask = Callable[[int, float], Awaitable[str | None]]

HEAD_START_SHARE = 0.3  # of the time, for py-spy alone; then the rank is asked, too, and the first answer counts
ACCUSED_HEAD_START_SHARE = 0.0  # its own stack is essential, and py-spy may start slowly on a busy node
ACCUSED_ALONE_SHARE = 0.6  # of the budget at most, before the other ranks
CLOSING_SHARE = 0.1  # of the budget, kept for killing what hangs
CLOSING_S_MAX = 0.05
OUTPUT_BYTES_MAX = 4 * 1024 * 1024
ATTEMPTS_MAX = 3  # a running interpreter changes while it is read; a second attempt usually succeeds
NOTES_MAX = 8
SOURCES_STUCK_MAX = 2
UNREAPED_MAX = 64  # killed runs of py-spy that have not ended: it may be on a file system that does not answer
GIL_FRAMES_MAX = 16  # the innermost frames of the thread that holds it
FIRST_LOOK_S_MAX = 0.02
LOOKS_APART_S = 0.02  # at least: a process that computes, or wakes up, shows it in this time
UNANSWERED_S = 0.02  # a client that gets the GIL answers within a few milliseconds
NO_TIME = "py-spy had no time"
SHELL = ("/bin/sh", "-c", 'exec "$0" "$@"')
SHELL_CANNOT_EXECUTE = (126, 127)
NOTE_CHARACTERS_MAX = 300


class _Round(msgspec.Struct):
    """One collection: its request and its results so far."""

    pids: Mapping[int, int]
    ask: Ask
    end_s: float
    stacks: dict[int, Stack] = msgspec.field(default_factory=dict[int, Stack])
    faults: dict[int, str] = msgspec.field(default_factory=dict[int, str])  # from py-spy
    refusals: dict[int, str] = msgspec.field(default_factory=dict[int, str])  # from the rank's client
    sources: set[str] = msgspec.field(default_factory=set[str])
    readings: dict[int, Reading] = msgspec.field(default_factory=dict[int, Reading])  # from py-spy
    answers: dict[int, bool] = msgspec.field(default_factory=dict[int, bool])  # whether the client itself answered
    lines: dict[int, str] = msgspec.field(default_factory=dict[int, str])  # of source code

    def left_s(self) -> float:
        return max(0.0, self.end_s - anyio.current_time())


class StackCollector:
    """Collects stacks; see ports.StackSource."""

    def __init__(self, *, py_spy: Path | None = None) -> None:
        """`py_spy`: the program; None: the one beside this interpreter, else the one in PATH."""
        self._py_spy = py_spy if py_spy is not None else _find_py_spy()
        self._looks = ProcessActivity()
        self._sources = SideThreads(stuck_max=SOURCES_STUCK_MAX)
        self._unreaped: list[subprocess.Popen[bytes]] = []
        # More processes than cores would only delay all of them. Accused ranks do not wait for other ranks.
        cores = len(os.sched_getaffinity(0))
        self._slots = anyio.CapacityLimiter(cores)
        self._accused_slots = anyio.CapacityLimiter(cores)

    async def collect(
        self,
        pids: Mapping[int, int],
        *,
        ask: Ask,
        budget_s: float,
        accused: tuple[int, ...] = (),
        apart_s: float = 0.0,
        kernel_wait_s: float = 0.0,
    ) -> Evidence:
        """Returns the stacks of these ranks (rank -> pid) within `budget_s`, those of accused ranks first.

        Never raises because of a rank. The notes say how many stacks are missing, and why.
        """
        began_s = anyio.current_time()
        closing_s = min(CLOSING_S_MAX, CLOSING_SHARE * budget_s)
        this = _Round(pids, ask, began_s + max(0.0, budget_s - closing_s))
        self.unreaped()
        first = [rank for rank in dict.fromkeys(accused) if rank in pids]
        others = [rank for rank in pids if rank not in accused]
        looks = (
            await self._looks.take(pids, at_most_s=min(max(FIRST_LOOK_S_MAX, apart_s), this.left_s())),
            dict[int, ProcessSample](),
        )
        looked_s = anyio.current_time()
        if any(each.state is ProcessState.UNINTERRUPTIBLE for each in looks[0].values()):
            apart_s = max(apart_s, kernel_wait_s)
        with anyio.CancelScope(deadline=this.end_s):
            async with anyio.create_task_group() as tasks:
                alone_s = ACCUSED_ALONE_SHARE * budget_s
                await self._look_at(first, ACCUSED_HEAD_START_SHARE, self._accused_slots, this, tasks, alone_s)
                await self._look_at(others, HEAD_START_SHARE, self._slots, this, tasks, budget_s)
            rest_s = looked_s + max(LOOKS_APART_S, apart_s) - anyio.current_time()
            if rest_s > 0:
                await pause(rest_s, why="what did not move between two looks may only have had no time to")
            looks[1].update(await self._looks.take(pids, at_most_s=this.left_s()))
            await self._read_sources(this)
        apart_s = anyio.current_time() - looked_s  # longer than was wanted, on a busy node
        return Evidence(
            groups=grouped(this.stacks),
            notes=_notes(this, [*first, *others], budget_s),
            source=", ".join(sorted(this.sources, reverse=True)),
            took_s=anyio.current_time() - began_s,
            facts=tuple(_facts(this, rank, looks[0].get(rank), looks[1].get(rank), apart_s) for rank in pids),
        )

    async def look(self, pids: Mapping[int, int], *, budget_s: float) -> tuple[RankLook, ...]:
        """Returns where all threads are, as far as py-spy says so in time; see ports.StackSource."""
        this = _Round(pids, _ask_nobody, anyio.current_time() + budget_s)
        self.unreaped()

        async def read(rank: int) -> None:
            async with self._slots:
                reading = await self._by_py_spy(rank, this)
            if reading is not None:
                this.readings[rank] = reading

        with anyio.CancelScope(deadline=this.end_s):
            async with anyio.create_task_group() as tasks:
                for rank in pids:
                    tasks.start_soon(read, rank)
        return tuple(RankLook(rank, each.stack, each.threads) for rank, each in sorted(this.readings.items()))

    def is_stopped(self, pid: int) -> bool:
        """Returns whether the process is stopped; see ports.StackSource."""
        return is_stopped(pid)

    def unreaped(self) -> int:
        """Reaps killed py-spy processes, and returns how many have not ended yet."""
        self._unreaped = [process for process in self._unreaped if process.poll() is None]
        return len(self._unreaped)

    async def _read_sources(self, this: _Round) -> None:
        """Reads source lines in a thread: the script may be on a disk that does not answer."""

        def read() -> None:
            for rank, stack in tuple(this.stacks.items()):
                this.lines[rank] = source_line(stack[-1])

        with contextlib.suppress(OSError):  # Without a thread, or if too many are stuck, there are no lines.
            await self._sources.call(lambda: separately(read), timeout_s=this.left_s(), discard=bool)

    async def _look_at(
        self,
        ranks: Sequence[int],
        head_start_share: float,
        slots: anyio.CapacityLimiter,
        this: _Round,
        tasks: TaskGroup,
        at_most_s: float,
    ) -> None:
        """Looks at these ranks; returns when done or after `at_most_s`. Unfinished looks continue in `tasks`."""
        unfinished = set(ranks)
        finished = anyio.Event()
        head_start_s = head_start_share * this.left_s()

        async def look(rank: int) -> None:
            await self._look(rank, head_start_s, slots, this)
            unfinished.discard(rank)
            if not unfinished:
                finished.set()

        for rank in ranks:
            tasks.start_soon(look, rank)
        if ranks:
            with anyio.move_on_after(at_most_s):
                await finished.wait()

    async def _look(self, rank: int, head_start_s: float, slots: anyio.CapacityLimiter, this: _Round) -> None:
        """Runs py-spy first, since it disturbs nobody; asks the rank, too, if py-spy has no answer in time."""
        this.faults[rank] = NO_TIME
        asked_s = float("inf")
        unreadable = anyio.Event()
        async with anyio.create_task_group() as tasks:

            def take(stack: Stack | None, source: str) -> None:
                if stack is not None:
                    this.stacks[rank] = stack
                    this.sources.add(source)
                    tasks.cancel_scope.cancel()

            async def run_py_spy() -> None:
                async with slots:
                    reading = await self._by_py_spy(rank, this)
                if reading is not None:
                    this.readings[rank] = reading
                    if reading.gil_stack and anyio.current_time() - asked_s >= UNANSWERED_S:
                        this.answers[rank] = False
                    take(reading.stack, "py-spy")
                unreadable.set()

            tasks.start_soon(run_py_spy)
            if head_start_s:
                with anyio.move_on_after(head_start_s):
                    await unreadable.wait()
            asked_s = anyio.current_time()
            text = await this.ask(rank, this.left_s())
            if text is not None:
                this.answers[rank] = not was_forced(text)
            this.refusals[rank] = (
                ", and its client has not answered" if text is None else ", and its client sent no stack"
            )
            take(from_faulthandler(text) if text else None, "faulthandler")

    async def _by_py_spy(self, rank: int, this: _Round) -> Reading | None:
        if self._py_spy is None:
            this.faults[rank] = "py-spy is not installed"
            return None
        if (unreaped := self.unreaped()) >= UNREAPED_MAX:
            this.faults[rank] = f"{unreaped} earlier runs of {self._py_spy} do not end: its file system may not answer"
            return None
        for _ in range(ATTEMPTS_MAX):
            if not this.left_s():
                break  # starting a process can't be interrupted, and is slow with many ranks on a busy node
            output, complaint = await self._run(self._py_spy, this.pids[rank])
            reading = from_py_spy(output, this.pids[rank]) if output else None
            if reading is not None:
                return reading
            this.faults[rank] = _shortened(complaint) or "py-spy saw no Python frame"
            if _is_hopeless(complaint):
                break
        return None

    async def _run(self, program: Path, pid: int) -> tuple[bytes, str]:
        """Returns output and error text of one run. Kills it when cancelled."""
        # Non-blocking: a stopped or traced process is read as it is, and a killed py-spy leaves no process stopped.
        # If py-spy is on a file system that does not answer, the shell waits for that, not this thread.
        command = (*SHELL, str(program), "dump", "--json", "--nonblocking", "--pid", str(pid))
        try:
            # close_fds=False makes it a posix_spawn. A fork would copy this process's page tables. All descriptors
            # close at exec anyway.
            process = subprocess.Popen(  # noqa: ASYNC220 it is quick, and its end is awaited below
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                close_fds=False,
            )  # fmt: skip
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
            code = process.wait()  # it has closed both ends and is about to exit; this returns at once
            why = complaint.decode(errors="replace")
            return bytes(output), f"py-spy can't be run: {why}" if code in SHELL_CANNOT_EXECUTE else why
        finally:
            process.stdout.close()
            process.stderr.close()
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                self._unreaped.append(process)  # reaped at the next look: a kill takes a moment, and time is up


async def _ask_nobody(rank: int, timeout_s: float) -> None:
    del rank, timeout_s


def _facts(
    this: _Round, rank: int, first: ProcessSample | None, second: ProcessSample | None, apart_s: float
) -> RankFacts:
    reading = this.readings.get(rank)
    return RankFacts(
        rank,
        process=facts_of(first, second, apart_s=apart_s),
        gil_frames=reading.gil_stack[-GIL_FRAMES_MAX:] if reading is not None else (),
        gil_is_main=reading is not None and reading.gil_is_main,
        answers=this.answers.get(rank),
        source_line=this.lines.get(rank, ""),
    )


async def _drain(pipe: IO[bytes], into: bytearray) -> None:
    descriptor = pipe.fileno()
    os.set_blocking(descriptor, False)
    while len(into) < OUTPUT_BYTES_MAX:
        await anyio.wait_readable(descriptor)
        data = os.read(descriptor, 64 * 1024)
        if not data:
            return
        into += data


def _notes(this: _Round, ranks: Sequence[int], budget_s: float) -> tuple[str, ...]:
    """Returns notes on missing stacks by reason, in the order of the looks."""
    missing: dict[str, list[int]] = {}
    for rank in ranks:
        if rank not in this.stacks:
            why = this.faults.get(rank, NO_TIME) + this.refusals.get(rank, "")
            missing.setdefault(why, []).append(rank)
    if not missing:
        return ()
    notes = [f"stacks of {len(this.stacks)} of {len(this.pids)} ranks came within {budget_s:g} s"]
    for why, of in missing.items():
        whom = f"rank {of[0]} (pid {this.pids[of[0]]})" if len(of) == 1 else f"ranks {_ranges(sorted(of))}"
        notes.append(f"no stack of {whom}: {why}"[:NOTE_CHARACTERS_MAX])
    return tuple(notes[: NOTES_MAX + 1])


def _ranges(numbers: Sequence[int]) -> str:
    """Formats 0, 4, 5, 6, 7 as "0, 4-7"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def _find_py_spy() -> Path | None:
    beside = Path(sys.executable).with_name("py-spy")
    if beside.exists():
        return beside
    import shutil  # Late: no start waits for it.

    on_path = shutil.which("py-spy")
    return Path(on_path) if on_path else None


def _shortened(complaint: str) -> str:
    """Returns the first line: the rest are causes and a backtrace of py-spy's own."""
    return complaint.strip().partition("\n")[0][:NOTE_CHARACTERS_MAX]


def _is_hopeless(complaint: str) -> bool:
    """Returns whether another attempt would fail in the same way."""
    lowered = complaint.lower()
    return any(words in lowered for words in ("permission denied", "process is running", "can't be run"))
