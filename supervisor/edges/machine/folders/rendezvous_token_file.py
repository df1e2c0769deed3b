"""From which file do the nodes of a job read the token they share, and how is one made in the user's home folder?"""

from __future__ import annotations

import base64
import os
import secrets
from pathlib import Path

from holdfast_wire import private_files, regular_file

from supervisor.errors import ConfigurationError

TOKEN_BYTES_MIN, TOKEN_BYTES_MAX = 16, 4096
TOKEN_CHARACTERS_MIN = 6  # different ones; fewer make a secret that repeats itself, and is guessed
TOKEN_BYTES = 32  # of one that is made here


def make(path: str) -> bool:
    """Makes the file, 0600, and returns whether it was missing. Raises ConfigurationError.

    Nodes that start at the same moment all read the first one's: a link is made by one of them only, on NFS, too.
    """
    target = Path(path)
    if target.exists():
        return False
    draft = target.with_name(f"{target.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(base64.b64encode(secrets.token_bytes(TOKEN_BYTES)) + b"\n")
                file.flush()
                os.fsync(descriptor)
            try:
                os.link(draft, target)
            except FileExistsError:
                return False
            return True
        finally:
            draft.unlink()
    except OSError as error:
        raise ConfigurationError(
            f"cannot make the token {path}: {error.strerror or error}; write --rdzv-conf token_file=F, a secret that "
            "is the same on each node"
        ) from error


def read(path: Path) -> bytes:
    """Returns the job's token. Blocks on the disk. Raises ConfigurationError."""
    try:
        with regular_file.opened(path, follows=True) as file:
            fault = private_files.secret_fault(path, os.fstat(file.fileno()))
            token = file.read(TOKEN_BYTES_MAX).strip()
    except OSError as error:
        raise ConfigurationError(f"cannot read the token file {path}: {error.strerror}; check --rdzv-conf") from error
    if fault:
        raise ConfigurationError(f"cannot use the token file {path}: {fault}")
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
