"""How does a worker get the secret of its cycle? By a 0600 file in a 0700 directory, never by environment or argv."""

from __future__ import annotations

import os
import re
from pathlib import Path

from supervisor.edges.machine import socket_dir

TOKEN_BYTES = 32


class TokenFiles:
    """See ports.Tokens. One directory per job below `root`, one file per cycle."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, job_id: str, cycle: int) -> Path:
        """Where the cycle's token is, once it was issued."""
        return self._folder(job_id) / f"cycle-{cycle}.token"

    def issue(self, job_id: str, cycle: int) -> tuple[bytes, Path]:
        """A fresh token and the file that holds it. Raises OSError or ConfigurationError."""
        folder = self._folder(job_id)
        socket_dir.make_closed(self._root)
        socket_dir.make_closed(folder)
        path = self.path(job_id, cycle)
        token = os.urandom(TOKEN_BYTES)
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(token)
        return token, path

    def withdraw(self, job_id: str, cycle: int) -> None:
        """The cycle is over. Idempotent, never raises; the job's directory goes with its last token."""
        folder = self._folder(job_id)
        try:
            self.path(job_id, cycle).unlink(missing_ok=True)
            folder.rmdir()
        except OSError:
            return  # Another cycle's token is in it, or it was wiped already.

    def remove_all(self) -> None:
        """At the end of the supervisor."""
        import shutil  # Late: no start waits for it.

        shutil.rmtree(self._root, ignore_errors=True)

    def _folder(self, job_id: str) -> Path:
        # A job's id is the user's text: it must stay one name inside the root.
        plain = re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", job_id)
        if plain:
            return self._root / job_id
        import hashlib  # Late: it loads OpenSSL, and an id like this is rare.

        return self._root / hashlib.sha256(job_id.encode()).hexdigest()
