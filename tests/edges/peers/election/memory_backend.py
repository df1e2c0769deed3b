"""A backend in memory, for election tests: it can be unreachable, and leases end when the test says so."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import anyio

from supervisor.ports.rendezvous_backend import BackendUnavailableError, Leader, LeadLostError


class Memory:
    """The state that the backends of all nodes share."""

    def __init__(self, ttl_s: float = 60.0) -> None:
        self.ttl_s = ttl_s
        self.leader: Leader | None = None
        self.state = b""
        self.term = 0
        self.away: set[str] = set()  # nodes that can't reach it
        self.written: list[bytes] = []
        self.may_vanish = False  # the last write
        self._changed = anyio.Event()

    def elect(self, leader: Leader | None) -> None:
        self.leader = leader
        self._changed.set()
        self._changed = anyio.Event()

    def wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def changed(self) -> None:
        await self._changed.wait()


class MemoryLead:
    def __init__(self, memory: Memory, node: str) -> None:
        self._memory, self._node = memory, node
        self.term, self.state, self.ttl_s = memory.term, memory.state, memory.ttl_s

    async def renew(self) -> None:
        self._check()

    async def write(self, state: bytes, *, is_last: bool) -> None:
        self._check()
        self._memory.state, self._memory.may_vanish = state, is_last
        self._memory.written.append(state)

    async def resign(self) -> None:
        if self._memory.leader is not None and self._memory.leader.term == self.term:
            self._memory.elect(None)

    def _check(self) -> None:
        if self._node in self._memory.away:
            raise BackendUnavailableError("it is away")
        if self._memory.leader is None or self._memory.leader.term != self.term:
            raise LeadLostError("its lease has ended")


class MemoryBackend:
    def __init__(self, memory: Memory, node: str) -> None:
        self._memory, self._node = memory, node

    async def try_to_lead(self, node: str, address: str) -> MemoryLead | None:
        self._check()
        if self._memory.leader is not None:
            return None
        self._memory.term += 1
        self._memory.elect(Leader(self._memory.term, node, address, self._memory.ttl_s))
        return MemoryLead(self._memory, node)

    async def end_lead(self, term: int) -> None:
        self._check()
        if self._memory.leader is not None and self._memory.leader.term == term:
            self._memory.elect(None)

    async def leader(self) -> Leader | None:
        self._check()
        return self._memory.leader

    async def leaders(self) -> AsyncGenerator[Leader | None]:
        while True:
            self._check()
            yield self._memory.leader
            await self._memory.changed()

    async def close(self) -> None:
        pass

    def _check(self) -> None:
        if self._node in self._memory.away:
            raise BackendUnavailableError("it is away")
