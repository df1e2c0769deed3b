"""When is the memory of some GPUs free, which processes hold it until then, and when is it checked again?

Runs in the disposable process. The end of a process that holds memory is an event (its pidfd). The kernel has no event
for memory that the driver releases later, or that a live process frees: for that, the GPUs are checked again, soon at
first and then less often.
"""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from contextlib import suppress

from supervisor.edges.machine.gpus.driver import Device, Driver
from supervisor.edges.machine.gpus.gpu_holders import Job, UserNames, described, end_if_of, is_of, with_device_open

LOOK_S_MIN = 0.002
LOOK_S_MAX = 0.03
LOOK_SHARE = 0.1  # of the time waited so far: the delay to the next check
SCAN_S = 0.02  # how long to wait for the memory of processes that have just ended before looking for holders
SCANS_APART_S = 1.0  # reading /proc of a large node takes a while
HANDLES_MAX = 64


class MemoryWait:
    """One wait for the memory of one job's GPUs. `begun_s` and all other times are by the caller's clock."""

    def __init__(
        self,
        driver: Driver,
        devices: Sequence[Device],
        *,
        tolerance_bytes: int,
        timeout_s: float,
        look_s_max: float,
        job: Job,
        users: UserNames,
        dev: str,
        begun_s: float,
    ) -> None:
        self._driver = driver
        self._devices = devices
        self._tolerance_bytes = tolerance_bytes
        self._look_s_max = min(LOOK_S_MAX, look_s_max)
        self._job = job
        self._users = users
        self._dev = dev
        self._begun_s = begun_s
        self._until_s = begun_s + timeout_s
        self._scan_at_s = begun_s + min(SCAN_S, timeout_s)
        self._used: dict[str, list[int]] = {}  # first, last and most bytes of each readable GPU
        self._holders: dict[tuple[int, str], int | None] = {}  # pid and GPU → bytes
        self._looks = 0
        self._ended: set[int] = set()
        self._handles: dict[int, int] = {}  # pid → pidfd
        self._gone: set[int] = set()  # holders that have ended: their pidfds stay readable until they are reaped
        self.next_look_s = begun_s

    @property
    def handles(self) -> list[int]:
        """Returns descriptors that become readable when a holder ends: then it is time to look."""
        return list(self._handles.values())

    def look(self, now_s: float) -> dict[str, object] | None:
        """Returns the answer once the memory is free or the time is over; else None."""
        busy = self._measure()
        if self._note_ends():
            self._scan_at_s = min(self._scan_at_s, now_s)
        is_over = now_s >= self._until_s
        if busy and (now_s >= self._scan_at_s or is_over):
            self._scan_at_s = now_s + SCANS_APART_S
            self._find_holders(busy)
        if not busy or is_over:
            answer = self._answer(busy, now_s)
            self.close()
            return answer
        self._watch(busy)
        wait_s = min(self._look_s_max, max(LOOK_S_MIN, (now_s - self._begun_s) * LOOK_SHARE))
        self.next_look_s = min(now_s + wait_s, self._until_s)
        return None

    def close(self) -> None:
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()

    def _measure(self) -> list[Device]:
        """Returns the GPUs above the tolerance. A GPU that can't be read is not waited for."""
        self._looks += 1
        busy: list[Device] = []
        for device in self._devices:
            used = self._driver.used_bytes(device)
            if used is None:
                continue
            seen = self._used.setdefault(device.name, [used, used, used])
            seen[1], seen[2] = used, max(seen[2], used)
            if used > self._tolerance_bytes:
                busy.append(device)
        return busy

    def _find_holders(self, busy: Sequence[Device]) -> None:
        """Finds the processes that hold the memory, and ends those that the job itself left over."""
        self._holders = {}
        for device in busy:
            found = self._driver.holders(device)
            minor = self._driver.minor(device)
            has_open = with_device_open({minor}, dev=self._dev) if minor is not None else set[int]()
            is_told = not has_open.isdisjoint(found)  # else the driver counts pids of another namespace, or none
            for pid in has_open:
                if pid not in found and (not is_told or is_of(self._job, pid)):
                    found[pid] = None
            for pid, used in found.items():
                if used == 0 and len(found) > 1:
                    continue
                self._holders[pid, device.name] = used
                described(pid, self._users)  # so that its user's name is known when it is needed
                if end_if_of(self._job, pid):
                    self._ended.add(pid)

    def _watch(self, busy: Sequence[Device]) -> None:
        names = {device.name for device in busy}
        for pid, name in self._holders:
            is_watched = pid in self._handles or pid in self._gone or len(self._handles) >= HANDLES_MAX
            if name in names and not is_watched:
                with suppress(OSError):  # It has ended, or its number is the host's.
                    self._handles[pid] = os.pidfd_open(pid)

    def _note_ends(self) -> bool:
        """Returns whether a holder has ended since the last check."""
        poller = select.poll()
        for handle in self._handles.values():
            poller.register(handle, select.POLLIN)
        readable = {handle for handle, _ in poller.poll(0)}
        ended = [pid for pid, handle in self._handles.items() if handle in readable]
        for pid in ended:
            os.close(self._handles.pop(pid))
        self._gone.update(ended)
        return bool(ended)

    def _answer(self, busy: Sequence[Device], now_s: float) -> dict[str, object]:
        names = {device.name for device in busy}
        return {
            "is_free": not busy,
            "gpus": [[device.name, *self._used.get(device.name, ())] for device in self._devices],
            "holders": [
                [pid, name, used, *described(pid, self._users)]
                for (pid, name), used in self._holders.items()
                if name in names
            ],
            "ended": sorted(self._ended),
            "looks": self._looks,
            "took_s": now_s - self._begun_s,
        }
