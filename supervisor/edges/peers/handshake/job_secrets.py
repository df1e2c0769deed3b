"""From which files does a process read what a job's nodes know each other by, and what is refused there?"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from supervisor.edges.peers.transport import cluster_tls
from supervisor.edges.peers.transport.cluster_tls import Tls, TlsFiles
from supervisor.errors import ConfigurationError

TOKEN_BYTES_MIN, TOKEN_BYTES_MAX = 16, 4096
TOKEN_CHARACTERS_MIN = 6  # different ones; fewer make a secret that repeats itself, and is guessed


def read(token_file: str, files: TlsFiles | None) -> Tls | None:
    """Returns what protects the connections; None: neither is given. Blocks on the disk. Raises ConfigurationError.

    With both, the certificates make the connections, and both sides also prove that they know the token.
    """
    token = read_token(Path(token_file)) if token_file else b""
    if files is not None:
        return msgspec.structs.replace(cluster_tls.load(files), token=token)
    return cluster_tls.from_token(token) if token else None


def read_token(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(TOKEN_BYTES_MAX).strip()
    except OSError as error:
        raise ConfigurationError(f"cannot read the token file {path}: {error.strerror}; check --rdzv-conf") from error
    if mode & 0o077:
        raise ConfigurationError(f"cannot use the token file {path}: others may read it; run chmod 600 {path}")
    why = ""
    if len(token) < TOKEN_BYTES_MIN:
        why = f"it has {len(token)} bytes, and a secret has {TOKEN_BYTES_MIN} or more"
    elif len(set(token)) < TOKEN_CHARACTERS_MIN:
        why = f"it has {len(set(token))} different characters, so that it can be guessed"
    if why:
        raise ConfigurationError(
            f"cannot use the token file {path}: {why}; write one by: head -c 32 /dev/urandom | base64 > {path}"
        )
    return token
