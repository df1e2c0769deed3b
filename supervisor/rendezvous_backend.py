"""What must a backend of the rendezvous be able to do, so that the loss of any node is an ordinary fault?

The interface for backends of other people. A backend elects one leader among the nodes of a job and keeps a small
document for the leader that comes next: the names of the nodes and a few numbers. Membership, ranks and restarts are no
business of a backend: the leader learns them from the nodes. A package offers a backend under the entry point group
`holdfast.rendezvous_backends`; its name is what `--rdzv-backend` takes, and what it loads is a `BackendFactory`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

import msgspec

ENTRY_POINTS = "holdfast.rendezvous_backends"


class BackendUnavailableError(Exception):
    """Raised where the backend does not answer now. To try again may help; training goes on meanwhile."""


class BackendRefusedError(Exception):
    """Raised where to try again does not help: a wrong password, a certificate that is not trusted."""


class LeadLostError(Exception):
    """Raised to a leader that is no leader any more: its lease has ended, and another may lead."""


class Place(msgspec.Struct, frozen=True):
    """Which job, and where its nodes meet: as the command line says, the same on each node."""

    job_id: str
    host: str
    port: int
    options: Mapping[str, str]  # of --rdzv-conf, those of Holdfast itself taken out
    ttl_s: float  # how long a leader leads that is not heard of any more


class Leader(msgspec.Struct, frozen=True):
    """Who leads. Terms grow: of two leaders of a job, the one with the higher term is the later one."""

    term: int
    node: str
    address: str  # HOST:PORT where it listens to the other nodes
    ttl_s: float


class Lead(Protocol):
    """The lead that this node has won."""

    @property
    def term(self) -> int: ...

    @property
    def state(self) -> bytes:
        """As the last leader of the job has written it; empty if there was none."""
        ...

    @property
    def ttl_s(self) -> float:
        """So long after `renew` has been called nobody else can lead. Never longer than the backend's own limit."""
        ...

    async def renew(self) -> None:
        """Raises LeadLostError, or BackendUnavailableError: then the lead lasts until its time is up."""
        ...

    async def write(self, state: bytes, *, is_last: bool) -> None:
        """Keeps the state, if this node still leads. Raises LeadLostError or BackendUnavailableError.

        A write that was given up may still arrive, but never after a later one.

        `is_last`: it says how the job has ended, and no other follows. It must stay for 15 minutes and is of no use
        after that. Any other one must stay until the next one is written. Neither may go because leases end: a node
        that missed the end would begin the job again.
        """
        ...

    async def resign(self) -> None:
        """Gives up the lead at once; the state stays. Never raises."""
        ...


class RendezvousBackend(Protocol):
    async def try_to_lead(self, node: str, address: str) -> Lead | None:
        """None: another node leads. Raises BackendUnavailableError or BackendRefusedError."""
        ...

    async def leader(self) -> Leader | None:
        """Who leads at this moment, from a source that is never stale. Raises as `try_to_lead`."""
        ...

    def leaders(self) -> AsyncGenerator[Leader | None]:
        """Who leads now, then each change. Ends by BackendUnavailableError; it is called again then."""
        ...

    async def close(self) -> None:
        """Never raises."""
        ...


class BackendFactory(Protocol):
    def __call__(self, place: Place) -> RendezvousBackend:
        """Does no I/O. Raises ValueError for an option that it does not know or can't use."""
        ...
