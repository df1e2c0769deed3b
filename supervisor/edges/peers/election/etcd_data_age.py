"""For how long at least has this etcd kept what was written to it?

A key beside the jobs, `.held`, has a lease that nobody renews: what has passed of it is the age. If all data is lost,
so is the key. After a restart, with another leader of etcd, or from a backup, a lease has all of its time again. An
etcd that saves what is left of its leases is the exception; so the key also names its raft term, and proves nothing in
another.
"""

from __future__ import annotations

from contextlib import suppress

import anyio
import msgspec

from supervisor.edges.peers.election.etcd_client import EtcdClient
from supervisor.ports.rendezvous_backend import BackendRefusedError, BackendUnavailableError

KEY = ".held"  # no job has this id: ids do not begin with a dot
LASTS_S = 30 * 24 * 3600  # then etcd removes it, and the next job that starts writes it again
ROUNDED_S = 1  # etcd reports whole seconds
LOOKS_S = 0.5  # at most, because the caller has a lead to renew


class _Mark(msgspec.Struct, frozen=True):
    cluster_id: int
    raft_term: int


class DataAge:
    """The age of the data under one prefix."""

    def __init__(self, client: EtcdClient, prefix: str) -> None:
        self._client = client
        self._key = f"{prefix}/{KEY}".encode()

    async def held_for_s(self) -> float:
        """Returns the age; 0.0: it is not known, but will be if this user may write the key. Never raises."""
        with suppress(BackendUnavailableError, BackendRefusedError), anyio.move_on_after(LOOKS_S):
            told = await self._client.range(self._key)
            now = _Mark(told.header.cluster_id, told.header.raft_term)
            found = told.kvs[0] if told.kvs else None
            if found is not None and found.lease and _read(found.value) == now:
                held_for_s = await self._proven_s(found.lease, now)
                if held_for_s is not None:
                    return held_for_s
            await self._write(now, changed_at=found.mod_revision if found is not None else 0)
        return 0.0

    async def _proven_s(self, lease: int, now: _Mark) -> float | None:
        """Returns None if this lease proves nothing, now or later."""
        lives = await self._client.time_to_live(lease)
        if lives.TTL < 0:
            return None
        if lives.header.raft_term != now.raft_term:
            return 0.0
        return max(0.0, float(lives.grantedTTL - lives.TTL - ROUNDED_S))

    async def _write(self, now: _Mark, *, changed_at: int) -> None:
        lease, _ = await self._client.grant(LASTS_S)
        is_written = False
        with suppress(BackendRefusedError):  # This user may write only the keys of its jobs.
            mark = msgspec.json.encode(now)
            is_written = await self._client.replace(self._key, mark, lease=lease, changed_at=changed_at)
        if not is_written:
            await self._client.revoke(lease)


def _read(value: bytes) -> _Mark | None:
    try:
        return msgspec.json.decode(value, type=_Mark)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
