"""How does a worker get the secret of its cycle? By a 0600 file in a 0700 directory, never by environment or argv.

If no file can be written because the disk is full, the token stays in memory under a path: a full disk must not end a
job at its next restart.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from holdfast_wire import private_files

TOKEN_BYTES = 32
SHARED_MEMORY = Path("/dev/shm")
ATTEMPTS_MAX = 10  # another thread may withdraw a job's last token while this one issues its next


class WorkerTokens:
    """Issues tokens; see ports.Tokens. Below `root`, a directory per job, a file per cycle. Thread-safe; blocks."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._in_memory: dict[Path, _MemoryFile] = {}  # the file that could not be written -> its replacement

    def path(self, job_id: str, cycle: int) -> Path:
        """Returns the path of the cycle's token after it was issued."""
        path = self._folder(job_id) / f"cycle-{cycle}.token"
        replacement = self._in_memory.get(path)
        return path if replacement is None else replacement.path

    def issue(self, job_id: str, cycle: int) -> tuple[bytes, Path]:
        """Returns a fresh token and the file that holds it. Raises OSError if neither disk nor memory takes it."""
        self.withdraw(job_id, cycle)
        token = os.urandom(TOKEN_BYTES)
        path = self.path(job_id, cycle)
        try:
            self._write(path, token)
        except OSError:
            self._in_memory[path] = _MemoryFile(token)
        return token, self.path(job_id, cycle)

    def take_back(self, job_id: str, cycle: int, token: bytes) -> None:
        """Adopts a token that an earlier supervisor issued; its file may be gone. Never raises."""
        path = self.path(job_id, cycle)
        with contextlib.suppress(OSError):
            if not path.exists():
                self._write(path, token)

    def withdraw(self, job_id: str, cycle: int) -> None:
        """Removes an ended cycle's token, and the job's directory with its last token. Idempotent, never raises."""
        folder = self._folder(job_id)
        path = folder / f"cycle-{cycle}.token"
        replacement = self._in_memory.pop(path, None)
        if replacement is not None:
            replacement.remove()
        try:
            path.unlink(missing_ok=True)
            folder.rmdir()
        except OSError:
            return  # It holds another cycle's token, or was wiped already.

    def remove_all(self) -> None:
        """Removes all tokens, at the end of the supervisor."""
        import shutil  # Late: no start waits for it.

        while self._in_memory:
            self._in_memory.popitem()[1].remove()
        shutil.rmtree(self._root, ignore_errors=True)

    def _write(self, path: Path, token: bytes) -> None:
        """Writes the token's file. Raises OSError."""
        descriptor = self._create(path)
        try:
            os.fchmod(descriptor, 0o600)  # whatever the umask
            if os.write(descriptor, token) != len(token):
                raise OSError(f"{path} takes a part of the token only")
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def _create(self, path: Path, attempts: int = ATTEMPTS_MAX) -> int:
        try:
            _close_to_others(self._root)
            _close_to_others(path.parent)
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            if attempts == 1 or not self._root.parent.exists():
                raise
        return self._create(path, attempts - 1)

    def _folder(self, job_id: str) -> Path:
        # A job's id is the user's text: it must stay one name inside the root.
        plain = re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", job_id)
        if plain:
            return self._root / job_id
        import hashlib  # Late: it loads OpenSSL, and an id like this is rare.

        return self._root / hashlib.sha256(job_id.encode(errors="surrogatepass")).hexdigest()


def _close_to_others(path: Path) -> None:
    """Makes a 0700 directory, or mends the mode of ours: files that others put into it meanwhile are never read.

    Raises OSError if it is not ours.
    """
    private_files.make_folder(path)
    if not private_files.folder_fault(path):
        return
    # By descriptor, so that the directory whose owner was checked is the one whose mode is changed.
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to another user")
        os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)


class _MemoryFile:
    """The token in a file without a disk, which processes of this user open by its path."""

    def __init__(self, token: bytes) -> None:
        """Raises OSError."""
        if _is_traceable():
            self._descriptor = os.memfd_create("holdfast-token", os.MFD_CLOEXEC)
            self.path = Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")
        else:
            import tempfile  # Late: hardly any supervisor needs it.

            self._descriptor, name = tempfile.mkstemp(prefix="holdfast-token-", dir=SHARED_MEMORY)
            self.path = Path(name)
        try:
            os.fchmod(self._descriptor, 0o600)
            if os.write(self._descriptor, token) != len(token):
                raise OSError(f"{self.path} takes a part of the token only")
        except OSError:
            self.remove()
            raise

    def remove(self) -> None:
        if self.path.parent == SHARED_MEMORY:
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)


def _is_traceable() -> bool:
    """Returns whether other processes of this user may open our descriptors in /proc."""
    return os.stat("/proc/self/environ").st_uid == os.geteuid()
