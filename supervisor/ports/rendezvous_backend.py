"""What must a backend of the rendezvous do, so that the loss of any node is an ordinary fault?

This is the interface for third-party backends. A backend elects one leader among the nodes of a job and keeps a small
document for the next leader: the names of the nodes and a few numbers. Membership, ranks and restarts do not concern
the backend: the leader learns them from the nodes. A package offers a backend under the entry point group
`holdfast.rendezvous_backends`; its name is the value of `--rdzv-backend`, and it loads a `BackendFactory`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol, runtime_checkable

import msgspec

from supervisor.core.election.leader import Leader

ENTRY_POINTS = "holdfast.rendezvous_backends"
SURE_S = 15.0  # after a loss of data, what the nodes know of the time before it is of no use for so long


class BackendUnavailableError(Exception):
    """Raised if the backend does not answer now. A retry may help; training continues meanwhile."""


class BackendRefusedError(Exception):
    """Raised if a retry does not help, such as for a wrong password or an untrusted certificate."""


class LeadLostError(Exception):
    """Raised to a leader that no longer leads: its lease has ended, and another may lead."""


class Place(msgspec.Struct, frozen=True):
    """Which job, and where its nodes meet, as on the command line; the same on each node."""

    job_id: str
    host: str
    port: int
    options: Mapping[str, str]  # of --rdzv-conf, without Holdfast's own
    ttl_s: float  # how long a leader leads after it was last heard


class Lead(Protocol):
    """The lead that this node has won."""

    @property
    def term(self) -> int: ...

    @property
    def state(self) -> bytes:
        """Returns what the previous leader of the job wrote; empty if there was none."""
        ...

    @property
    def ttl_s(self) -> float:
        """For this long after a call of `renew`, nobody else can lead. Never longer than the backend's own limit."""
        ...

    async def renew(self) -> None:
        """Renews the lead. Raises LeadLostError, or BackendUnavailableError: then the lead lasts for its time."""
        ...

    async def write(self, state: bytes, *, is_last: bool) -> None:
        """Keeps the state if this node still leads. Raises LeadLostError or BackendUnavailableError.

        An abandoned write may still arrive, but never after a later one.

        `is_last`: it says how the job has ended, and no other follows. It must stay for 15 minutes and is of no use
        after that. Any other must stay until the next one is written. Neither may go because leases end: a node that
        missed the end would begin the job again.
        """
        ...

    async def resign(self) -> None:
        """Gives up the lead at once; the state stays. Never raises."""
        ...


class RendezvousBackend(Protocol):
    async def try_to_lead(self, node: str, address: str) -> Lead | None:
        """Tries to lead. Returns None if another node does. Raises BackendUnavailableError or BackendRefusedError."""
        ...

    async def leader(self) -> Leader | None:
        """Returns the current leader from a source that is never stale. Raises as `try_to_lead`."""
        ...

    def leaders(self) -> AsyncGenerator[Leader | None]:
        """Yields the current leader, then each change. Ends with BackendUnavailableError; call it again then."""
        ...

    async def close(self) -> None:
        """Closes the backend. Never raises."""
        ...


@runtime_checkable
class EndsLeads(Protocol):
    """A backend may have this method, too. Without it, a lead ends `ttl_s` after its process has died."""

    async def end_lead(self, term: int) -> None:
        """Ends the lead of that term if it has not ended; the process that won it is dead. The state stays.

        Raises as `try_to_lead`.
        """
        ...


@runtime_checkable
class LeadsAbove(Protocol):
    """A backend whose data may be lost, or go back to an earlier state, has this method, too."""

    async def try_to_lead_above(self, node: str, address: str, above: int) -> Lead | None:
        """Does the same as `try_to_lead`, with a term later than `above`, which this node has seen.

        All leads after this one have later terms, too, whichever node asks, until the data is lost again.
        """
        ...


@runtime_checkable
class ProvesItsAge(Protocol):
    """A lead may have this, too. Without it, a job that finds no state begins some seconds later."""

    @property
    def held_for_s(self) -> float:
        """Returns for how long, at least, the backend has lost nothing that was written, and nobody led this job.

        Reckoned back from the moment at which the lead was won; 0.0: not known.
        """
        ...


@runtime_checkable
class KnowsPrevious(Protocol):
    """A lead may have this, too. Without it, a job that loses its leader goes on some seconds later."""

    @property
    def previous_term(self) -> int:
        """Returns the term of the lead just before this one, of any node.

        0: not known, or the backend may have lost or got back older data within the last SURE_S.
        """
        ...


class BackendFactory(Protocol):
    def __call__(self, place: Place) -> RendezvousBackend:
        """Makes a backend without I/O. Raises ValueError for an option that is unknown or unusable."""
        ...
