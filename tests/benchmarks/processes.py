"""Which processes did a run start, what do they cost, and how are they ended? By id, never by name."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import time
from collections import defaultdict
from pathlib import Path

REAP_EVERY_S = 0.2
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Makes orphans of the processes that we started our children from now on, so that the clean-up misses none."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become the reaper of orphans")


def descendants(pid: int) -> list[int]:
    """Returns all living processes below `pid`, parents first."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (parent := _living_parent(int(entry))) is not None:
            children[parent].append(int(entry))
    found: list[int] = []
    pending = [pid]
    while pending:
        below = children[pending.pop()]
        found += below
        pending += below
    return found


def pid_here(ancestor: int, pid: int, variable: str) -> int:
    """Returns the id of the process below `ancestor` that is `pid` to itself and has that variable ("NAME=value").

    Raises ProcessLookupError.
    """
    for each in descendants(ancestor):
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{each}/status").read_text()
            own = next(line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:"))
            if own == str(pid) and variable.encode() in Path(f"/proc/{each}/environ").read_bytes().split(b"\0"):
                return each
    raise ProcessLookupError(f"no process {pid} with {variable} is below {ancestor}")


def _living_parent(pid: int) -> int | None:
    """Returns the parent; None for a zombie and for a process that is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, parent = stat.rpartition(")")[2].split()[:2]
    return None if state in "ZX" else int(parent)


def end_descendants(*, limit_s: float = 20) -> None:
    """Sends SIGKILL to everything below this process until nothing is left. Raises TimeoutError if something stays."""
    give_up_at_s = time.monotonic() + limit_s
    while remaining := descendants(os.getpid()):
        for pid in remaining:
            _signal(pid, signal.SIGKILL)
        while not await_ends(remaining, limit_s=REAP_EVERY_S):
            reap()  # The first process of a pid namespace ends once all of its others have been collected.
            if time.monotonic() > give_up_at_s:
                raise TimeoutError(f"cannot end processes {remaining}: they do not die of SIGKILL")
    reap()


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def await_ends(pids: list[int], *, limit_s: float) -> bool:
    """Returns whether all of them ended within the limit."""
    give_up_at_s = time.monotonic() + limit_s
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([pidfd], [], [], max(0.0, give_up_at_s - time.monotonic()))[0]:
                return False
        finally:
            os.close(pidfd)
    return True


def reap() -> None:
    """Collects the zombies that we adopted."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def own_cpu_s() -> float:
    """Returns the CPU time of this process, and of all below it that have been collected."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def machine_cpu_s() -> float:
    """Returns the CPU time that this machine used and that its host kept back, idle time left out: man 5 proc_stat."""
    ticks = [int(each) for each in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = ticks
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Returns the CPU time of all threads of `pid` so far, ended ones included, to the nanosecond; 0 if it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # CLOCK of another process: man 3 clock_getcpuclockid
    except OSError:
        return 0.0


def pss_bytes(pid: int) -> int:
    """Returns the memory of `pid`, with shared pages divided among their processes; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def command(pid: int) -> str:
    """Returns its command line; "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
