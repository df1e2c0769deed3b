"""What does the kernel report about the ranks' processes, and have they moved between two looks?

A thread reads /proc: a process that is stuck in the kernel may make even that wait. The values that never wait are read
for all ranks first, and results count if they come in time.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping

import anyio
import msgspec

from supervisor.core.process_facts import ChildProcess, ProcessFacts, ProcessState
from supervisor.edges.machine.own_process.threads import in_thread

THREADS_MAX = 4  # each may wait in the kernel indefinitely
DESCENDANTS_MAX = 64  # of a process: children, theirs, and so on; one with more is never called idle
THREADS_READ_MAX = 1024  # of a process and its descendants, in about 20 ms; the same holds beyond
FILE_BYTES_MAX = 64 * 1024
IDLE_S = 0.5  # who writes nothing for a shorter time may only pause
FUTEX_CALLS = frozenset({"449", "455"} | {{"x86_64": "202", "aarch64": "98"}.get(os.uname().machine, "")})
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_STATES = {each.value: each for each in ProcessState} | {"t": ProcessState.TRACED, "I": ProcessState.SLEEPING}
_PARENT, _SESSION, _CPU_TICKS, _EXIT_CODE = 1, 3, slice(11, 13), 49  # fields of /proc/PID/stat after the name


class ProcessSample(msgspec.Struct, frozen=True):
    """The state of one process at one moment."""

    state: ProcessState
    cpu_ticks: int = 0
    exit_code: int = 0  # for a stopped process: the signal that stopped it, if the kernel reports it
    tracer_pid: int = 0
    switches: tuple[str, ...] = ()  # how often the main thread yielded or lost its CPU
    call: str = ""  # number of the main thread's current system call
    kernel_place: str = ""
    children: tuple[ChildProcess, ...] = ()
    descendants: tuple[ChildProcess, ...] = ()  # children, then theirs, and so on; also what it has detached
    written_bytes: int | None = None  # by it and its descendants; None: nobody may know


class ProcessActivity:
    """Looks at processes without blocking the loop."""

    def __init__(self, look: Callable[[int, dict[int, ProcessSample]], None] | None = None) -> None:
        self._threads = anyio.CapacityLimiter(THREADS_MAX)
        self._look = look or _look_closely

    async def take(self, pids: Mapping[int, int], *, at_most_s: float) -> dict[int, ProcessSample]:
        """Returns looks by rank. Omits a process that has ended or could not be read in time."""
        seen: dict[int, ProcessSample] = {}
        with anyio.move_on_after(at_most_s), contextlib.suppress(OSError):  # Without a thread there is no look.
            await in_thread(
                lambda: self._all(tuple(pids.values()), seen), limiter=self._threads, abandon_on_cancel=True
            )
        return {rank: seen[pid] for rank, pid in pids.items() if pid in seen}

    def _all(self, pids: tuple[int, ...], seen: dict[int, ProcessSample]) -> None:
        for pid in pids:
            found = _glance(pid)
            if found is not None:
                seen[pid] = found
        for pid in tuple(seen):
            self._look(pid, seen)


def facts_of(first: ProcessSample | None, second: ProcessSample | None, *, apart_s: float) -> ProcessFacts | None:
    """Compares two looks at one process, `apart_s` apart. Returns None if it was never seen."""
    latest = second or first
    if latest is None:
        return None
    facts = ProcessFacts(
        state=latest.state,
        stop_signal=_signal_name(latest.exit_code) if latest.state is ProcessState.STOPPED else "",
        tracer=_tracer(latest.tracer_pid) if latest.state is ProcessState.TRACED else "",
        kernel_place=latest.kernel_place,
        children=latest.children,
    )
    if first is None or second is None:
        return facts
    return msgspec.structs.replace(
        facts,
        is_still=_is_still(first, second),
        cpu_share=(second.cpu_ticks - first.cpu_ticks) / TICKS_PER_S / apart_s if apart_s > 0 else 0.0,
        waits_on_futex=_is_in_futex(first) and _is_in_futex(second),
        is_idle=apart_s >= IDLE_S and _is_idle(first, second),
    )


def is_stopped(pid: int) -> bool:
    """Returns whether a signal has stopped the process. Never waits for it."""
    return _state_of(pid) is ProcessState.STOPPED


def _is_still(first: ProcessSample, second: ProcessSample) -> bool:
    if ProcessState.RUNNING in (first.state, second.state):
        return False
    return (first.state, first.switches, first.call) == (second.state, second.switches, second.call)


def _is_idle(first: ProcessSample, second: ProcessSample) -> bool:
    """Returns whether neither it nor a descendant wrote, and no descendant ran. False where that is not known."""
    if first.written_bytes is None or first.written_bytes != second.written_bytes:
        return False
    ran = (ProcessState.RUNNING, ProcessState.UNINTERRUPTIBLE)
    return not any(each.state in ran for each in (*first.descendants, *second.descendants))


def _is_in_futex(look: ProcessSample) -> bool:
    return look.call in FUTEX_CALLS or look.kernel_place.startswith("futex")


def _signal_name(number: int) -> str:
    """Decodes the signal: some kernels report it plainly, some as a wait status, older ones not at all."""
    number = number >> 8 or number
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def _tracer(pid: int) -> str:
    name = _read(f"/proc/{pid}/comm").strip() if pid else ""
    return f"{name or 'a debugger'} (pid {pid})" if pid else ""


# --- /proc ---------------------------------------------------------------------------------------------------------


def _glance(pid: int) -> ProcessSample | None:
    """Reads the values that never wait for the process itself."""
    fields = _fields_of(pid)
    if not fields:
        return None
    lines = (line.partition(":") for line in _read(f"/proc/{pid}/status").splitlines())
    status = {name: value.strip() for name, _, value in lines}
    return ProcessSample(
        state=_STATES.get(fields[0], ProcessState.UNKNOWN),
        cpu_ticks=sum(map(int, fields[_CPU_TICKS])),
        exit_code=int(fields[_EXIT_CODE]) if len(fields) > _EXIT_CODE else 0,
        tracer_pid=int(status.get("TracerPid", "0")),
        switches=(status.get("voluntary_ctxt_switches", ""), status.get("nonvoluntary_ctxt_switches", "")),
    )


def _look_closely(pid: int, seen: dict[int, ProcessSample]) -> None:
    """Adds values to `seen` that may wait for a process stuck in the kernel."""
    parents, are_all = _descendants_of(pid)
    descendants = {each: ChildProcess(each, _state_of(each)) for each in parents}
    place = _read(f"/proc/{pid}/wchan").strip()
    found = msgspec.structs.replace(
        seen[pid],
        children=tuple(each for each in descendants.values() if parents[each.pid] == pid),
        descendants=tuple(descendants.values()),
        kernel_place="" if place == "0" else place,
    )
    seen[pid] = found
    call = _read(f"/proc/{pid}/syscall").partition(" ")[0].strip()
    written = [_written_bytes(each) for each in (pid, *descendants)]
    is_known = are_all and None not in written
    written_bytes = sum(each for each in written if each is not None) if is_known else None
    seen[pid] = msgspec.structs.replace(found, call=call, written_bytes=written_bytes)


def _descendants_of(pid: int) -> tuple[dict[int, int], bool]:
    """Returns the parent of each descendant, and whether these are all. Detached ones have none: 0."""
    detached, are_all_known = _detached_from(pid)
    parents = dict.fromkeys(detached[:DESCENDANTS_MAX], 0)
    unread, threads_left, are_all = deque([pid, *parents]), THREADS_READ_MAX, len(parents) == len(detached)
    while unread and are_all:
        parent = unread.popleft()
        children, lists, are_all = _children_of(parent, threads_max=threads_left)
        known = children[: DESCENDANTS_MAX - len(parents)]
        parents |= dict.fromkeys(known, parent)
        are_all &= len(known) == len(children)
        unread += known
        threads_left -= lists
    return parents, are_all and are_all_known


def _detached_from(pid: int) -> tuple[list[int], bool]:
    """Returns processes of its session whose own parent has ended, and whether these are all.

    The parent of a rank is its spawner, which adopts them. One that leads no session shares that of others.
    """
    own = _fields_of(pid)
    if not own or own[_SESSION] != str(pid):
        return [], True
    siblings, _, are_all = _children_of(int(own[_PARENT]), threads_max=THREADS_READ_MAX)
    others = {each: _fields_of(each) for each in siblings if each != pid}
    return [each for each, fields in others.items() if fields and fields[_SESSION] == str(pid)], are_all


def _children_of(pid: int, *, threads_max: int) -> tuple[list[int], int, bool]:
    """Returns its children, how many lists of them were read, and whether these are all.

    The kernel lists children by the thread that started them; some kernels do not.
    """
    threads: list[str] = []
    with contextlib.suppress(OSError):
        threads = os.listdir(f"/proc/{pid}/task")
    lists = [_read_if_there(f"/proc/{pid}/task/{thread}/children") for thread in threads[:threads_max]]
    children = [int(each) for listed in lists for each in (listed or "").split()]
    return children, len(lists), bool(lists) and len(lists) == len(threads) and None not in lists


def _written_bytes(pid: int) -> int | None:
    """Returns how many bytes the process has written to files and pipes since its start."""
    lines = (line.partition(": ") for line in _read(f"/proc/{pid}/io").splitlines())
    return next((int(value) for name, _, value in lines if name == "wchar"), None)


def _state_of(pid: int) -> ProcessState:
    fields = _fields_of(pid)
    return _STATES.get(fields[0], ProcessState.UNKNOWN) if fields else ProcessState.UNKNOWN


def _fields_of(pid: int) -> list[str]:
    """Returns the fields of its state after the name; [] if it is gone."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _read(path: str) -> str:
    """Returns "" for a file that is unreadable or gone."""
    return _read_if_there(path) or ""


def _read_if_there(path: str) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, FILE_BYTES_MAX).decode(errors="replace")
        finally:
            os.close(descriptor)
    except OSError:
        return None
