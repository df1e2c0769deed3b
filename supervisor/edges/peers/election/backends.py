"""Which backend does a name mean, and how is it opened?

Third-party backends are found through an entry point (see supervisor/ports/rendezvous_backend.py).
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import cast

from supervisor.config.job_spec import Nodes
from supervisor.errors import ConfigurationError
from supervisor.ports.rendezvous_backend import ENTRY_POINTS, BackendFactory, Place, RendezvousBackend


def open_backend(job_id: str, nodes: Nodes) -> RendezvousBackend:
    """Opens the backend that `nodes` names. Raises ConfigurationError."""
    place = Place(job_id, nodes.host, nodes.port, dict(nodes.backend_options), nodes.leader_ttl_s)
    try:
        return _factory(nodes.backend)(place)
    except ValueError as error:
        raise ConfigurationError(
            f"cannot use --rdzv-backend {nodes.backend}: {error}; check --rdzv-conf and --rdzv-endpoint"
        ) from error


def _factory(name: str) -> BackendFactory:
    if name == "etcd":
        from supervisor.edges.peers.election import etcd_backend  # Late: few jobs need it.

        return etcd_backend.open_backend
    for found in entry_points(group=ENTRY_POINTS):
        if found.name == name:
            try:
                return cast("BackendFactory", found.load())
            except Exception as error:  # the user's package may fail in any way
                raise ConfigurationError(
                    f"cannot load --rdzv-backend {name} ({found.value}): {type(error).__name__}: {error}; check the "
                    "package that offers it"
                ) from error
    raise ConfigurationError(f"cannot find --rdzv-backend {name}: no installed package offers it; write c10d or etcd")
