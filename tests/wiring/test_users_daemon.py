"""Which settings of a node's service reach the supervisors of its users?"""

from __future__ import annotations

import errno
import os
import pwd
import signal
import socket
import stat
import threading
from pathlib import Path

import anyio
import pytest

from supervisor.config.daemon_settings import DaemonSettings, parse_daemon
from supervisor.edges.machine.folders import socket_dir
from supervisor.edges.machine.folders.cordon_file import CordonFile
from supervisor.edges.machine.own_process import fd_store, unix_listener
from supervisor.edges.machine.own_process.sd_notify import Notifier
from supervisor.edges.machine.processes.logins import Logins
from supervisor.edges.machine.processes.peer_identity import ROOT, Identity
from supervisor.edges.operators.traces import otlp
from supervisor.edges.users import connection_dispatcher
from supervisor.edges.users.user_admission import Admission
from supervisor.edges.users.user_folders import UserFolders
from supervisor.edges.users.user_supervisors import UserSupervisors
from supervisor.errors import ConfigurationError, ExhaustedError
from supervisor.wiring import users_daemon
from supervisor.wiring.users_daemon import arguments_of, control_socket
from tests.edges.workers.worker_side import until

ALICE = Identity(54321, 54321, ())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may serve other users")
def test_recoveries_of_all_users_are_traced_and_roots_jobs_alone_are_measured():
    flags = ["--otlp-traces", "http://collector:4318", "--metrics", "localhost:9464"]
    settings = parse_daemon(["--users", "all", *flags], environ={})
    of_alice, of_root = arguments_of(ALICE, settings), arguments_of(ROOT, settings)
    assert of_alice[-2:] == ["--otlp-traces", "http://collector:4318"]
    assert of_root == [*of_alice, "--metrics", "localhost:9464"]
    assert parse_daemon(of_alice, environ={}).otlp_traces == "http://collector:4318"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may serve other users")
def test_the_supervisor_of_roots_jobs_listens_where_the_service_was_told_to():
    tls = ["--tls-cert", "/c", "--tls-key", "/k", "--tls-ca", "/a"]
    flags = ["--metrics", "[::]:9464", "--listen", "[fd00::7]:9443", *tls]
    settings = parse_daemon(["--users", "all", *flags], environ={})
    of_root = parse_daemon(arguments_of(ROOT, settings), environ={})
    assert (of_root.metrics, of_root.listen) == (settings.metrics, settings.listen) == (("::", 9464), ("fd00::7", 9443))


def test_a_socket_that_a_service_for_root_alone_has_left_is_opened_to_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / socket_dir.CONTROL_SOCKET
    with unix_listener.listening(path, mode=0o600, backlog=1) as left:
        monkeypatch.setattr(fd_store, "take_kept", lambda: {fd_store.CONTROL: os.dup(left.fileno())})
        with control_socket(tmp_path) as listener:
            assert (listener.getsockname(), stat.S_IMODE(path.stat().st_mode)) == (str(path), 0o666)


def test_a_socket_that_finds_no_room_is_no_wrong_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """After that, systemd would not start the service again."""

    def bind(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(f"{connection_dispatcher.__name__}.bind", bind)
    with pytest.raises(ExhaustedError, match="No space left on device; free space"), control_socket(tmp_path):
        pass


def test_a_collector_that_no_user_could_reach_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch):
    otlp.check_for_users("")
    with pytest.raises(ConfigurationError, match="its address contains a password, which users could read"):
        otlp.check_for_users("http://me:hunter2@collector:4318")
    monkeypatch.setattr(otlp, "find_spec", dict[str, str]().get)
    with pytest.raises(ConfigurationError, match=r"http://x: opentelemetry\.sdk is not installed"):
        otlp.check_for_users("http://x")
    monkeypatch.setattr(otlp, "find_spec", str)
    otlp.check_for_users("http://x")


async def test_a_cordon_on_a_node_without_a_writable_disk_outlives_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Its unit has a new /tmp at each start; the folder of sockets stays."""

    def none(_: str | None) -> tuple[Path, ...]:
        return ()

    monkeypatch.setattr(users_daemon.state_dir, "own_places", none)
    settings = parse_daemon(["--users", "all"], environ={})
    sockets, gone = tmp_path / "sockets", tmp_path / "gone"
    sockets.mkdir()

    def next_service() -> CordonFile:
        return users_daemon._cordon_file(sockets, gone, settings)  # pyright: ignore[reportPrivateUsage]

    await next_service().keep("its disk is read-only")
    assert "may not outlive this node's next reboot" in caplog.text
    assert next_service().read() == "its disk is read-only"
    await next_service().keep("")
    assert next_service().read() == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may serve other users")
async def test_the_end_of_the_service_waits_for_no_reload(tmp_path: Path):
    """The user database, which a reload asks, does not answer."""
    settings = parse_daemon(["--users", "all", "--state-dir", str(tmp_path / "state")], environ={})
    begun, may_return = threading.Event(), threading.Event()

    def reread() -> DaemonSettings:
        begun.set()
        assert may_return.wait(30)
        return settings

    folders = UserFolders(tmp_path, tmp_path / "state")
    admission = Admission(settings.user_service.users)
    ended, handling = anyio.Event(), signal.getsignal(signal.SIGHUP)

    async def serve(listener: socket.socket) -> None:
        service = users_daemon._Service(  # pyright: ignore[reportPrivateUsage]
            settings, reread, folders, admission, listener, (tmp_path, tmp_path / "state")
        )
        await service.serve()
        ended.set()

    try:
        with control_socket(tmp_path) as listener, anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(serve, listener)
                await until(lambda: signal.getsignal(signal.SIGHUP) is not handling)
                for number in (signal.SIGHUP, signal.SIGTERM):
                    os.kill(os.getpid(), number)
                    await until(begun.is_set)
                await ended.wait()
    finally:
        may_return.set()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may serve other users")
@pytest.mark.parametrize(("stop_timeout_s", "jobs_s"), [(700.0, 680.0), (None, 70.0)])
async def test_jobs_have_as_long_for_their_end_as_the_unit_of_the_service_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_timeout_s: float | None, jobs_s: float
):
    """A job with a --workers-stop-timeout of ten minutes was killed after 70 s, whatever TimeoutStopSec= was."""
    settings = parse_daemon(["--users", "all", "--state-dir", str(tmp_path / "state")], environ={})
    folders, given_s, told = UserFolders(tmp_path, tmp_path / "state"), list[float](), list[str]()

    async def end_all(users: UserSupervisors, within_s: float) -> None:
        given_s.append(within_s)

    monkeypatch.setattr(UserSupervisors, "end_all", end_all)
    monkeypatch.setattr(users_daemon, "stop_timeout_s", lambda: stop_timeout_s)
    monkeypatch.setattr(Notifier, "status", lambda _, text: told.append(text))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    handling = signal.getsignal(signal.SIGTERM)
    with control_socket(tmp_path) as listener, anyio.fail_after(20):
        admission = Admission(settings.user_service.users)
        service = users_daemon._Service(  # pyright: ignore[reportPrivateUsage]
            settings, lambda: settings, folders, admission, listener, (tmp_path, tmp_path / "state")
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.serve)
            await until(lambda: signal.getsignal(signal.SIGTERM) is not handling)
            os.kill(os.getpid(), signal.SIGTERM)
    assert given_s == [jobs_s]
    assert told == [f"ending the jobs of all users: they have {jobs_s:g} s"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may serve other users")
async def test_a_user_database_that_does_not_answer_delays_no_supervisor_that_waits_for_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Their jobs end if the service is away for too long."""
    asked, may_answer = threading.Event(), threading.Event()

    def wait(name: str) -> object:
        asked.set()
        assert may_answer.wait(30)
        raise KeyError(name)

    reached, is_ready = anyio.Event(), anyio.Event()

    async def find_again(_: UserSupervisors) -> None:
        reached.set()

    def ready(_: Notifier, status: str) -> None:
        is_ready.set()

    monkeypatch.setattr(pwd, "getpwnam", wait)
    monkeypatch.setattr(users_daemon, "Logins", lambda: Logins(tmp_path / "subuid"))
    monkeypatch.setattr(UserSupervisors, "find_again", find_again)
    monkeypatch.setattr(Notifier, "ready", ready)
    (tmp_path / "subuid").write_text("somebody:100000:65536\n")
    state = ["--state-dir", str(tmp_path / "state"), "--socket-dir", str(tmp_path / "run")]
    settings = parse_daemon(["--users", "somebody", *state], environ={})
    try:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(users_daemon.serve_users, settings, lambda: settings)
                await reached.wait()
                await is_ready.wait()
                await until(asked.is_set)
                os.kill(os.getpid(), signal.SIGTERM)
    finally:
        may_answer.set()
