"""One supervisor per socket directory, through a lock that dies with its holder."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.edges.machine.folders import socket_claim, socket_dir
from supervisor.edges.machine.folders.socket_claim import SocketDirClaim
from supervisor.errors import ConfigurationError, ExhaustedError, HoldfastError, InUseError

HOLDER = """
import pathlib, sys
from supervisor.edges.machine.folders.socket_claim import SocketDirClaim
claim = SocketDirClaim(pathlib.Path(sys.argv[1]))
print(flush=True); sys.stdin.read()
"""


def test_the_lock_is_exclusive_names_its_holder_and_dies_with_it(tmp_path: Path):
    path = tmp_path / "sock"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdin=-1, stdout=-1)
    assert holder.stdout is not None
    holder.stdout.readline()
    try:
        with pytest.raises(InUseError, match=f"pid {holder.pid} serves it; stop"):
            SocketDirClaim(path)
    finally:
        holder.kill()
        holder.communicate()
    claim = SocketDirClaim(path)
    assert socket_claim.holder_pid(path) == os.getpid()
    with pytest.raises(InUseError):
        SocketDirClaim(path)
    claim.close()
    SocketDirClaim(path).close()


def test_a_wiped_directory_is_claimed_again_but_not_from_another(tmp_path: Path):
    path = tmp_path / "sock"
    claim = SocketDirClaim(path)
    claim.renew()
    shutil.rmtree(path)
    claim.renew()
    with pytest.raises(InUseError):
        SocketDirClaim(path)
    shutil.rmtree(path)
    usurper = SocketDirClaim(path)
    with pytest.raises(InUseError):
        claim.renew()
    usurper.close()
    claim.close()


CLAIMS_WITHOUT_ROOM = """
import pathlib, resource, sys
from supervisor.edges.machine.folders.socket_claim import SocketDirClaim
from supervisor.errors import ExhaustedError
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    SocketDirClaim(pathlib.Path(sys.argv[1]))
except ExhaustedError as error:
    print(error)
"""


def test_a_lock_file_that_can_not_be_written_is_an_error_with_a_remedy(tmp_path: Path):
    path = tmp_path / "sock"
    done = subprocess.run(
        [sys.executable, "-c", CLAIMS_WITHOUT_ROOM, str(path)], capture_output=True, text=True, check=False
    )
    why = "File too large; raise the limit on the size of files (ulimit -f)"
    assert done.stdout == f"cannot write {path}/supervisor.lock: {why}\n", done.stderr


@pytest.mark.parametrize(
    ("number", "kind", "remedy"),
    [
        (errno.ENOSPC, ExhaustedError, "free space on that disk"),
        (errno.EIO, ExhaustedError, "check that disk or its file server"),
        (errno.EROFS, ConfigurationError, ""),
    ],
)
@pytest.mark.parametrize(
    ("call", "what"),
    [
        (f"{socket_dir.__name__}.private_files.make_folder", "make socket directory"),
        ("os.open", "open"),
        ("fcntl.flock", "lock"),
        ("os.pwrite", "write"),
        (f"{socket_claim.__name__}.listening", "serve"),
    ],
)
def test_only_a_fault_that_stays_is_a_wrong_configuration(
    call: str, what: str, number: int, kind: type[HoldfastError], remedy: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    """systemd, the prolog and batch scripts start nothing again after a wrong configuration."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    def serve(path: Path) -> None:
        claim = SocketDirClaim(path)
        claim.close()
        socket_claim.bind(path / "worker.sock")

    path = tmp_path / "sock"
    with monkeypatch.context() as patched:
        patched.setattr(call, fail)
        with pytest.raises(HoldfastError, match=f"^cannot {what} {path}.*{os.strerror(number)}; .*{remedy}") as told:
            serve(path)
    assert told.type is kind
    SocketDirClaim(path).close()


def test_a_lock_file_that_is_a_link_is_refused(tmp_path: Path):
    path = tmp_path / "sock"
    path.mkdir(mode=0o700)
    (path / "supervisor.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(ConfigurationError, match="cannot open"):
        SocketDirClaim(path)
    assert not (tmp_path / "precious").exists()
    assert socket_claim.holder_pid(path) is None


def test_a_socket_is_bound_closed_over_a_stale_one_and_nothing_else(tmp_path: Path):
    path = tmp_path / "worker.sock"
    with socket_claim.bind(path):
        assert path.stat().st_mode & 0o777 == 0o600
        before = socket_claim.identity(path)
    with socket_claim.bind(path) as listener:
        assert socket_claim.identity(path) is not None
        assert listener.getblocking() is False
    assert before is not None
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="not a socket of ours"):
        socket_claim.bind(path)
    with pytest.raises(ConfigurationError, match="cannot serve"):
        socket_claim.bind(tmp_path / ("x" * 120))
    assert socket_claim.identity(tmp_path / "missing") is None


def test_a_copy_of_the_lock_does_not_outlive_the_claim(tmp_path: Path):
    """A process that was started and has not executed yet has such a copy."""
    path = tmp_path / "sock"
    claim = SocketDirClaim(path)
    copy = os.dup(next(fd for fd in map(int, os.listdir("/proc/self/fd")) if _is_lock(fd, path)))
    claim.close()
    SocketDirClaim(path).close()
    with socket_claim.held_if_dead(path) as is_dead:
        assert is_dead
    os.close(copy)


def _is_lock(descriptor: int, path: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == str(path / socket_claim.LOCK_FILE)
    except OSError:
        return False  # that of the listing itself
