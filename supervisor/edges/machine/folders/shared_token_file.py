"""How does the token come about that a user's nodes share by their home folder, if none has made one yet?"""

from __future__ import annotations

import base64
import os
import secrets
from pathlib import Path

from supervisor.errors import ConfigurationError

TOKEN_BYTES = 32


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
