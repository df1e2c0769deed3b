"""From which files does a process read what a job's nodes know each other by, and what is refused there?"""

from __future__ import annotations

from pathlib import Path

import msgspec

from supervisor.edges.machine.folders import rendezvous_token_file
from supervisor.edges.peers.transport import cluster_tls
from supervisor.edges.peers.transport.cluster_tls import Tls, TlsFiles


def read(token_file: str, files: TlsFiles | None) -> Tls | None:
    """Returns what protects the connections; None: neither is given. Blocks on the disk. Raises ConfigurationError.

    With both, the certificates make the connections, and both sides also prove that they know the token.
    """
    token = rendezvous_token_file.read(Path(token_file)) if token_file else b""
    if files is not None:
        return msgspec.structs.replace(cluster_tls.load(files), token=token)
    return cluster_tls.from_token(token) if token else None
