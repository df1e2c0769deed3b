"""A kernel, a seccomp profile or a folder that refuses what Holdfast needs is named, with what to do."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.e2e import many_users

pytestmark = pytest.mark.timeout(60)

STRANGER = 4321  # an unused user id
ASKING = (
    "status", "jobs", "nodes", "events j", "logs j", "stop j", "drain", "report j", "run --no-python true", "daemon",
)  # fmt: skip
PIDFD_OPEN = 434
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2


class Program(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


def refuse(call: int, number: int) -> None:
    """Makes the kernel answer this system call with an error, from now on, as an old seccomp profile does."""
    code = b"".join(
        struct.pack("HBBI", *each)
        for each in (
            (0x20, 0, 0, 0),  # load the number of the call
            (0x15, 0, 1, call),
            (0x06, 0, 0, 0x00050000 | number),  # SECCOMP_RET_ERRNO
            (0x06, 0, 0, 0x7FFF0000),  # SECCOMP_RET_ALLOW
        )
    )
    buffer = ctypes.create_string_buffer(code, len(code))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    program = Program(len(code) // 8, ctypes.addressof(buffer))
    assert libc.prctl(PR_SET_SECCOMP, FILTER, ctypes.byref(program), 0, 0) == 0, os.strerror(ctypes.get_errno())


def holdfast(*arguments: str, refused: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "supervisor", *arguments],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=30, check=False,
        preexec_fn=(lambda: refuse(PIDFD_OPEN, refused)) if refused else None,
    )  # fmt: skip


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_without_pidfd_open_the_message_names_it(number: int, tmp_path: Path) -> None:
    refused = holdfast(
        "run", "--no-python", "true", refused=number, HOLDFAST_STATE_DIR=str(tmp_path), XDG_RUNTIME_DIR=str(tmp_path)
    )
    assert refused.returncode == 2
    assert f"the system call pidfd_open is refused ({os.strerror(number)})" in refused.stderr
    assert "a runtime whose seccomp profile knows pidfd_open" in refused.stderr
    assert "check --python" not in refused.stderr
    checked = holdfast("doctor", refused=number)
    assert "pidfd_open is refused" in checked.stdout


@pytest.mark.skipif(bool(many_users.missing()), reason=many_users.missing())
def test_a_socket_folder_of_another_user_is_refused_with_a_sentence(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="hf-"))  # a short path, in a folder that others may enter
    try:
        (folder / "theirs").mkdir(mode=0o700)
        os.chown(folder / "theirs", STRANGER, STRANGER)
        folder.chmod(0o755)
        person = f"setpriv --reuid {STRANGER + 1} --regid {STRANGER + 1} --clear-groups env HOME=/"
        holdfast = f"{person} HOLDFAST_SOCKET_DIR={folder}/theirs timeout 30 {sys.executable} -m supervisor"
        script = [
            many_users.opened(tmp_path / "keep"),
            "set +e",
            *(f"{holdfast} {each}; echo $? >&2" for each in ASKING),
        ]
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", "\n".join(script)],
            cwd="/", capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    finally:
        shutil.rmtree(folder)
    said = done.stderr.splitlines()
    assert len(said) == 2 * len(ASKING), done.stderr
    for sentence, code in zip(said[::2], said[1::2], strict=True):
        assert f"{folder}/theirs" in sentence
        assert f"it belongs to user id {STRANGER}, not {STRANGER + 1}" in sentence
        assert "a fault of Holdfast" not in sentence
        assert code == ("78" if "cannot use socket directory" in sentence else "69")
