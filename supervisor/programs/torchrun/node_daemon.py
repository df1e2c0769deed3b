"""Does this node's supervisor lead the rendezvous, so that the loss of a torchrun is not the loss of its leader?"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Generator

from anyio import to_thread

from supervisor.edges.machine.folders import socket_dir, supervisor_owner
from supervisor.errors import HoldfastError, NoSupervisorError
from supervisor.ports.job_requests import RendezvousRequest

_FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"  # gRPC's fork handlers sometimes kill a program that torchrun starts

_log = logging.getLogger("holdfast.torchrun")


async def leads(rendezvous: RendezvousRequest) -> bool:
    """Asks it to lead. Returns False if it is absent or the address is another node's. Never raises; bounded."""
    return await to_thread.run_sync(_ask, rendezvous, abandon_on_cancel=True)


def _ask(rendezvous: RendezvousRequest) -> bool:
    for place in socket_dir.candidates():
        path = place.path / socket_dir.CONTROL_SOCKET
        if not socket_dir.answers(path):
            continue
        try:
            with supervisor_owner.opened(place.path) as held, _without_fork_support():
                from supervisor.edges.operators.control_client import ControlClient  # Loads gRPC.

                with ControlClient(path, reached_by=held / socket_dir.CONTROL_SOCKET) as client:
                    return client.lead_rendezvous(rendezvous)
        except HoldfastError as error:
            _log.warning("holdfast: the supervisor in %s does not lead the rendezvous: %s", place.path, error)
            if not isinstance(error, NoSupervisorError):  # Else it was not asked, so the next one may be.
                return False
    return False


@contextlib.contextmanager
def _without_fork_support() -> Generator[None]:
    """Disables it while gRPC is loaded; the workers inherit what the user has set."""
    if "grpc" in sys.modules:
        yield
        return
    before = os.environ.get(_FORK_SUPPORT)
    os.environ[_FORK_SUPPORT] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FORK_SUPPORT]
        else:
            os.environ[_FORK_SUPPORT] = before
