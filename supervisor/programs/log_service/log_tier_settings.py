"""What must a process of the log server know? Its supervisor writes it to its stdin as one line of JSON."""

from __future__ import annotations

import msgspec

from supervisor.edges.peers.handshake import job_secrets
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.cluster_tls import Tls, TlsFiles

SENDER, LEAF, ROOT = "sender", "leaf", "root"


class Settings(msgspec.Struct, frozen=True):
    """The settings of a sender, a leaf or the root. They contain no secrets, only the places of secrets."""

    tier: str
    job_id: str
    name: str  # the node's for a sender, "leaf 0", "root"
    host: str = ""  # the address to listen at; "": all addresses
    port: int = 0
    token_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    queue_chunks: int = 0  # of a leaf
    callers: int = 1  # of a leaf and the root: once that many have nothing more to send, it need not wait
    cycle_prefix: str = ""  # for the root: the prefix of the cycles' files
    supervisor_log: str = ""
    run_began_ms: int = 0  # for the root: when this run of the job began, in Unix time; 0: unknown
    door_fd: int = -1  # of a sender: the socket to which the node's log processes connect
    ends_with_supervisor: bool = False  # at once: another supervisor comes and restarts it
    graceful_s: float = 60.0  # how long it may continue once its supervisor has finished with it
    quiet_s: float = 3.0  # a caller that lost its connection returns within this time
    log_path: str = ""  # for its own messages

    def tls(self) -> Tls | None:
        """Returns what protects the connections; None: nothing. Blocks on the disk. Raises ConfigurationError."""
        files = TlsFiles(self.tls_cert, self.tls_key, self.tls_ca) if self.tls_cert else None
        return job_secrets.read(self.token_file, files)


class Next(msgspec.Struct, frozen=True):
    """A later line: the next tier's address, or that nothing more comes. The end of stdin means its death."""

    address: str = ""
    finish: bool = False
    follows: bool = False  # this process replaces a dead one, whose senders will come here


def address_of(text: str) -> PeerAddress:
    """Returns the address that a supervisor has written as "host:port" or "[host]:port"."""
    host, _, port = text.rpartition(":")
    return PeerAddress(host.strip("[]"), int(port))
