"""Does the service of several users go on where a limit of the machine, or its own, is reached?"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from supervisor.edges.users.user_supervisor_limit import SUPERVISORS_OF_ONE_MAX
from tests.e2e import many_users
from tests.e2e.hangs import has_v1, v1_cgroup
from tests.e2e.launch import SCRIPTS
from tests.e2e.many_users import Service

USERS = range(54321, 54327)
WHO_AM_I = str(SCRIPTS / "who_am_i.py")
ASK = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); sys.exit(not s.recv(1))"
HOLDFAST = (sys.executable, "-m", "supervisor")

pytestmark = [
    pytest.mark.skipif(bool(many_users.missing()), reason=many_users.missing()),
    pytest.mark.timeout(90),
]


@pytest.fixture
def service() -> Iterator[Service]:
    with many_users.service("--users", "all") as running:
        yield running


def test_a_user_with_too_many_supervisors_may_try_again(service: Service) -> None:
    user, path = USERS[0], service.socket_dir / "control.sock"
    for number in range(SUPERVISORS_OF_ONE_MAX):
        asked = service.run(user, sys.executable, "-c", ASK, str(path), groups=(60_000 + number,))
        assert asked.returncode == 0, asked.stderr
    refused = service.holdfast(user, "run", WHO_AM_I, groups=(59_999,))
    assert "has 8 supervisors on this node; wait until one of them" in refused.stderr
    assert refused.returncode == 75


@pytest.mark.skipif(not has_v1("pids"), reason="needs a writable cgroup v1 pids controller")
def test_without_room_for_a_thread_it_refuses_and_goes_on(service: Service) -> None:
    """An answer from the file system that needed a thread ended the service for everybody."""
    assert service.process is not None
    pid = service.process.pid
    with v1_cgroup("pids", f"holdfast-test-{os.getpid()}") as group:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "pids.max").write_text((group / "pids.current").read_text())
        asking = [service.started(user, *HOLDFAST, "run", WHO_AM_I) for user in USERS]
        answers = [(each.communicate(timeout=many_users.END_S), each.returncode) for each in asking]
        assert service.process.poll() is None, service.errors.read_text()
        assert [code for _, code in answers] == [75] * len(USERS), answers
        for (_, error), _ in answers:
            assert "raise the limit on processes" in error
            assert "Traceback" not in error
        os.kill(pid, signal.SIGHUP)  # read the settings again: that needs a thread
        (group / "pids.max").write_text("max")
        answer = service.holdfast(USERS[0], "status")
        assert answer.returncode == 0, answer.stderr
    assert "Traceback" not in service.errors.read_text()
