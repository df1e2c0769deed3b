"""What does a process of the log server have to know? Its supervisor writes it to its stdin as one line of JSON."""

from __future__ import annotations

import msgspec

SENDER, LEAF, ROOT = "sender", "leaf", "root"


class Settings(msgspec.Struct, frozen=True):
    """Of a sender, a leaf or the root. No secret is in it: only where the secrets lie."""

    tier: str
    job_id: str
    name: str  # the node's for a sender, "leaf 0", "root"
    host: str = ""  # listened at; "": at all addresses
    port: int = 0
    token_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    queue_chunks: int = 0  # of a leaf
    callers: int = 1  # of a leaf and the root: once so many have said that nothing more comes, it need not wait
    cycle_prefix: str = ""  # what the root may write: the files of cycles, and the supervisors' words
    supervisor_log: str = ""
    door_fd: int = -1  # of a sender: the socket at which the node's log processes are taken
    ends_with_supervisor: bool = False  # at once: another supervisor comes and starts it again
    graceful_s: float = 60.0  # the longest to go on once its supervisor has finished with it
    log_path: str = ""  # for its own words


class Next(msgspec.Struct, frozen=True):
    """A later line: where the next tier is, or that nothing more comes. The end of stdin: the supervisor has died."""

    address: str = ""
    finish: bool = False
    follows: bool = False  # another one that has died: those who had sent to that one come to this one
