"""How does a node's service serve several users, and which rights does each part of it have?

This process is root's. It lets clients in and starts one supervisor for each user, as that user; it runs no job, keeps
no record of one, and reads nothing that a user wrote. Root's own jobs have such a supervisor, too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal as signals
import socket
from collections.abc import Generator
from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread

from supervisor.config import daemon_settings as flags
from supervisor.config.daemon_settings import DaemonSettings
from supervisor.edges.machine.folders import socket_claim, socket_dir, state_dir
from supervisor.edges.machine.logs.supervisor_log import SupervisorLog
from supervisor.edges.machine.own_process import fd_store, sd_notify
from supervisor.edges.machine.own_process import signals as signal_edge
from supervisor.edges.machine.processes.peer_identity import ROOT, Identity, Limits, limits_of
from supervisor.edges.operators.refused_peer import refuse
from supervisor.edges.users import front_door
from supervisor.edges.users.admission import Admission
from supervisor.edges.users.front_door import FrontDoor
from supervisor.edges.users.user_cgroups import UserCgroups, delegated_cgroup
from supervisor.edges.users.user_folders import UserFolder, UserFolders
from supervisor.edges.users.user_process import StartedSupervisor, start_supervisor
from supervisor.edges.users.user_supervisors import UserSupervisors
from supervisor.errors import ConfigurationError

_log = logging.getLogger("holdfast.users")


async def serve_users(settings: DaemonSettings) -> int:
    """Until SIGTERM or SIGINT, or SIGUSR1, which leaves the jobs to the next service. Returns the exit code."""
    folder = socket_dir.service_dir_for_daemon(settings.socket_dir)
    states = state_dir.find(settings.state_dir)
    log = SupervisorLog(state_dir.default_log_dir(states))
    log.open()
    try:
        folders = UserFolders(folder, states)
        await to_thread.run_sync(folders.make)
        admission = await to_thread.run_sync(Admission, settings.user_service.users)
        with socket_claim.held(folder), _control_socket(folder) as listener:
            await _serve(settings, folders, admission, listener)
    finally:
        log.close()
    return 0


async def _serve(settings: DaemonSettings, folders: UserFolders, admission: Admission, listener: socket.socket) -> None:
    notifier = sd_notify.Notifier()
    cgroups = UserCgroups(settings.user_service.shares, delegated_cgroup())
    if cgroups.fault:
        _log.warning("users have no control groups of their own, and no limits in them: %s", cgroups.fault)
    async with anyio.create_task_group() as tasks:
        users = UserSupervisors(folders, partial(_start, settings, cgroups), tasks)
        door = FrontDoor(listener, admission=admission, hand_over=users.hand_over, refuse=refuse)
        stopped = anyio.Event()
        makes_room = False

        def on_signal(number: int) -> None:
            nonlocal makes_room
            makes_room = number == signals.SIGUSR1
            stopped.set()

        await tasks.start(signal_edge.receive, ("SIGTERM", "SIGINT", "SIGUSR1"), on_signal)
        await users.find_again()
        await _start_operators(settings, users)
        tasks.start_soon(door.run)
        tasks.start_soon(notifier.keep_watchdog)
        notifier.store(listener.fileno(), fd_store.CONTROL)
        notifier.ready(f"serving {', '.join(settings.user_service.users)}")
        _log.info("service %s lets in %s", os.getpid(), ", ".join(settings.user_service.users))
        await stopped.wait()
        if makes_room:
            notifier.stopping("leaving the jobs to the next service")
            users.make_room()
            os._exit(0)  # The control socket stays, with those who wait in it.
        notifier.stopping("ending the jobs of all users")
        await users.end_all()
        tasks.cancel_scope.cancel()


def _start(
    settings: DaemonSettings, cgroups: UserCgroups, identity: Identity, limits: Limits, folder: UserFolder
) -> StartedSupervisor:
    arguments = [
        flags.RETURN_TIMEOUT.flag, str(settings.supervisor_return_timeout_s),
        flags.LOG_JOBS_MAX.flag, str(settings.log_limits.jobs_max),
        flags.LOG_GIB_MAX.flag, str(settings.log_limits.gib_max),
    ]  # fmt: skip
    if identity.uid == 0:
        arguments += _of_operators(settings)
    return start_supervisor(identity, limits, folder, cgroups, arguments)


def _of_operators(settings: DaemonSettings) -> list[str]:
    """What the supervisor of root's own jobs serves for those who look after the node."""
    arguments: list[str] = []
    for flag, address in ((flags.LISTEN.flag, settings.listen), (flags.METRICS.flag, settings.metrics)):
        if address is not None:
            arguments += [flag, f"{address[0]}:{address[1]}"]
    if settings.tls is not None:
        tls = settings.tls
        arguments += [
            flags.TLS_CERT.flag, tls.certificate, flags.TLS_KEY.flag, tls.key, flags.TLS_CA.flag, tls.authority
        ]  # fmt: skip
    return arguments


async def _start_operators(settings: DaemonSettings, users: UserSupervisors) -> None:
    if _of_operators(settings):
        await users.begin(ROOT, limits_of(os.getpid()))


@contextlib.contextmanager
def _control_socket(folder: Path) -> Generator[socket.socket]:
    """The one that systemd has kept, else a fresh one; its file goes with us."""
    path = folder / socket_dir.CONTROL_SOCKET
    listener = fd_store.kept_listener(fd_store.take_kept(), fd_store.CONTROL, path)
    if listener is None:
        try:
            listener = front_door.bind(path)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {path}: {error.strerror or error}; choose another directory with --socket-dir"
            ) from error
    with listener:
        yield listener
    path.unlink(missing_ok=True)
