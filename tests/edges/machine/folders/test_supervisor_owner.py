"""Only a supervisor of this user or root gets what is secret. The tests are root, and make folders of others."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from holdfast_wire import socket_user

from supervisor.edges.machine.folders import supervisor_owner
from supervisor.errors import NoSupervisorError

MALLORY, ALICE = 47114, 47111
UNMAPPED = 65534
LISTEN = (
    "import os, socket, sys; os.setuid(int(sys.argv[1])); s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[2]); "
    "os.chmod(sys.argv[2], 0o666); s.listen(); print(flush=True); sys.stdin.read()"
)
OPEN = """
import sys
from pathlib import Path
from supervisor.edges.machine.folders import supervisor_owner
from supervisor.errors import NoSupervisorError
try:
    with supervisor_owner.opened(Path(sys.argv[1])):
        print("opened")
except NoSupervisorError as error:
    print(error)
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders for somebody else")


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that others may enter."""
    with tempfile.TemporaryDirectory(prefix="hf-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def listens(folder: Path, opened: ExitStack) -> socket.socket:
    """Listens there as this user."""
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    listener = opened.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(folder / "control.sock"))
    listener.listen()
    return listener


def mallory_listens(folder: Path, opened: ExitStack) -> None:
    command = [sys.executable, "-I", "-S", "-c", LISTEN, str(MALLORY), str(folder / "control.sock")]
    process = opened.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    assert process.stdout is not None
    assert process.stdout.readline() == b"\n"


def refusal(folder: Path) -> str:
    with pytest.raises(NoSupervisorError) as refused, supervisor_owner.opened(folder):
        pass
    return str(refused.value)


def test_the_path_leads_to_the_folder_that_was_judged_whoever_takes_its_name(tmp_path: Path, opened: ExitStack):
    judged = listens(tmp_path / "run", opened)
    with supervisor_owner.opened(tmp_path / "run") as held:
        (tmp_path / "run").rename(tmp_path / "moved")
        listens(tmp_path / "run", opened)
        judged.setblocking(False)
        judged.accept()[0].close()  # the look at who listens
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(held / "control.sock"))
            judged.accept()[0].close()


def test_nobody_there(tmp_path: Path):
    assert "cannot use the supervisor in " in refusal(tmp_path / "none")
    assert "no such file" in refusal(tmp_path).lower()


def test_a_folder_in_which_others_may_write_is_refused(tmp_path: Path, opened: ExitStack):
    listens(tmp_path / "run", opened)
    for mode in (0o720, 0o702, 0o1777):
        (tmp_path / "run").chmod(mode)
        assert f"others may write to that folder, whose mode is {mode:04o}" in refusal(tmp_path / "run")
    (tmp_path / "run").chmod(0o755)
    with supervisor_owner.opened(tmp_path / "run"):
        pass


@as_root
def test_a_folder_of_another_user_is_refused_wherever_its_socket_leads(tmp_path: Path, opened: ExitStack):
    listens(tmp_path / "run", opened)
    (tmp_path / "hers").mkdir(mode=0o700)
    (tmp_path / "hers" / "control.sock").symlink_to(tmp_path / "run" / "control.sock")
    os.chown(tmp_path / "hers", MALLORY, MALLORY)
    assert f"the folder belongs to user id {MALLORY}, not root, and would get" in refusal(tmp_path / "hers")


@as_root
def test_a_process_of_another_user_is_refused_in_a_folder_of_ours(shared: Path, opened: ExitStack):
    (shared / "run").mkdir()
    (shared / "run").chmod(0o777)
    mallory_listens(shared / "run", opened)
    (shared / "run").chmod(0o755)
    assert f": it belongs to user id {MALLORY}, not root, and would get" in refusal(shared / "run")


@as_root
def test_root_hands_nothing_of_its_own_to_a_users_supervisor_behind_its_service(tmp_path: Path, opened: ExitStack):
    listens(tmp_path / "users" / f"{ALICE}.0123456789ab", opened)
    listens(tmp_path / "users" / "0.0123456789ab", opened)
    assert f"belongs to user id {ALICE}, not root" in refusal(tmp_path / "users" / f"{ALICE}.0123456789ab")
    with supervisor_owner.opened(tmp_path / "users" / "0.0123456789ab"):
        pass


@as_root
def test_a_user_hands_a_job_to_roots_service_and_to_nobody_elses(
    tmp_path: Path, opened: ExitStack, monkeypatch: pytest.MonkeyPatch
):
    listens(tmp_path / "run", opened)
    monkeypatch.setattr(os, "geteuid", lambda: ALICE)
    with supervisor_owner.opened(tmp_path / "run"):
        pass
    os.chown(tmp_path / "run", MALLORY, MALLORY)
    assert f"belongs to user id {MALLORY}, not user id {ALICE} or root" in refusal(tmp_path / "run")


@as_root
def test_a_user_without_an_id_in_a_container_is_nobody_in_particular(
    tmp_path: Path, opened: ExitStack, monkeypatch: pytest.MonkeyPatch
):
    """Even if this user is shown with that id, too. Elsewhere, the number is a user's."""
    listens(tmp_path / "run", opened)
    os.chown(tmp_path / "run", UNMAPPED, UNMAPPED)
    assert f"belongs to user id {UNMAPPED}, not root" in refusal(tmp_path / "run")
    monkeypatch.setattr(socket_user, "_in_user_namespace", lambda: True)
    for own in (0, ALICE, UNMAPPED):
        monkeypatch.setattr(os, "geteuid", lambda own=own: own)
        assert "a user without an id in this container" in refusal(tmp_path / "run")
    monkeypatch.setenv("HOLDFAST_TRUST_UNMAPPED", "1")
    with supervisor_owner.opened(tmp_path / "run"):
        pass
    monkeypatch.setattr(socket_user, "_in_user_namespace", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: ALICE)
    assert f"belongs to user id {UNMAPPED}, not user id {ALICE} or root" in refusal(tmp_path / "run")


@as_root
def test_in_a_real_container_the_administrator_says_that_such_a_user_is_trusted(shared: Path, opened: ExitStack):
    inside = ["unshare", "-U", "--map-user=12345"]
    if not shutil.which("unshare") or subprocess.run([*inside, "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs user namespaces")
    (shared / "run").mkdir()
    os.chown(shared / "run", MALLORY, MALLORY)
    (shared / "run").chmod(0o755)
    mallory_listens(shared / "run", opened)
    command = [*inside, sys.executable, "-c", OPEN, str(shared / "run")]
    for trust, told in (("", "set HOLDFAST_TRUST_UNMAPPED=1"), ("1", "opened")):
        environment = {**os.environ, "HOLDFAST_TRUST_UNMAPPED": trust}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert told in done.stdout, done
