"""How does a node's service serve several users, and which rights does each of its processes have?

This process runs as root. It admits clients and starts one supervisor for each user, as that user. It runs no jobs,
keeps no records of them, and reads nothing that a user wrote but a few calls that it refuses. Root's own jobs have such
a supervisor, too.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal as signals
import socket
import stat
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path

import anyio

from supervisor.config import daemon_settings as flags
from supervisor.config.daemon_settings import DaemonSettings
from supervisor.config.launch_values import join_endpoint
from supervisor.config.user_service import UserShares
from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.folders import socket_claim, socket_dir, state_dir
from supervisor.edges.machine.folders.cordon_file import CordonFile
from supervisor.edges.machine.logs.supervisor_log import SupervisorLog
from supervisor.edges.machine.own_process import fd_store, kernel_error_remedies, sd_notify
from supervisor.edges.machine.own_process import signals as signal_edge
from supervisor.edges.machine.own_process.side_threads import SideThreads, StuckError
from supervisor.edges.machine.own_process.threads import in_thread_if_any, in_thread_or_here
from supervisor.edges.machine.processes.logins import Logins
from supervisor.edges.machine.processes.peer_identity import ROOT, Identity, Limits, limits_of
from supervisor.edges.operators.refused_peer import refuse
from supervisor.edges.operators.traces import otlp
from supervisor.edges.users import connection_dispatcher, user_process
from supervisor.edges.users.connection_dispatcher import ConnectionDispatcher
from supervisor.edges.users.supervisor_processes import SupervisorProcesses
from supervisor.edges.users.user_admission import Admission, what_is_unknown
from supervisor.edges.users.user_folders import Record, UserFolder, UserFolders
from supervisor.edges.users.user_process import StartedSupervisor, start_supervisor
from supervisor.edges.users.user_supervisors import UserSupervisors, end_timeout_s
from supervisor.edges.users.user_units import UserUnits, stop_timeout_s
from supervisor.errors import ConfigurationError, HoldfastError

NICE = -10  # a user who floods the socket with connections must not delay the others
REREAD_TIMEOUT_S = 60.0  # for the settings' file and for the user database, which may not answer
REREADS_STUCK_MAX = 2

_log = logging.getLogger("holdfast.users")


async def serve_users(settings: DaemonSettings, reread: Callable[[], DaemonSettings]) -> int:
    """Serves until SIGTERM or SIGINT, or until SIGUSR1, which leaves the jobs to the next service. Returns the exit
    code.

    `reread` returns the settings again at SIGHUP.
    """
    if settings.event_hooks.are_set:
        raise ConfigurationError(
            "cannot use --on-event with --users: jobs belong to their users, who give it to holdfast run; remove it"
        )
    otlp.check_for_users(settings.otlp_traces)
    folder = socket_dir.service_dir_for_daemon(settings.socket_dir)
    states = state_dir.find(settings.state_dir)
    log = SupervisorLog(state_dir.default_log_dir(states))
    log.open()
    with contextlib.suppress(OSError):  # root in a container may not; in a unit it is set already
        os.setpriority(os.PRIO_PROCESS, 0, min(NICE, os.getpriority(os.PRIO_PROCESS, 0)))
    try:
        folders = UserFolders(folder, states)
        await in_thread_or_here(folders.make)
        admission = Admission(settings.user_service.users)
        with socket_claim.held(folder), control_socket(folder) as listener:
            await _Service(settings, reread, folders, admission, listener, (folder, states)).serve()
    finally:
        log.close()
    return 0


class _Service:
    """The running service, once its folders exist."""

    def __init__(
        self,
        settings: DaemonSettings,
        reread: Callable[[], DaemonSettings],
        folders: UserFolders,
        admission: Admission,
        listener: socket.socket,
        places: tuple[Path, Path],
    ) -> None:
        """`places`: the folders of sockets and of states."""
        self._settings = settings
        self._reread = reread
        self._folders = folders
        self._admission = admission
        self._listener = listener
        self._folder, self._states = places
        self._notifier = sd_notify.Notifier()
        service = settings.user_service
        self._units = UserUnits(service.unit, service.shares) if service.unit else None
        self._threads = SideThreads(stuck_max=REREADS_STUCK_MAX)
        self._reload_asked = anyio.Event()
        self._reloading = anyio.CancelScope()  # the first signal that ends the service waits for no reload
        self._ended_by = 0

    async def serve(self) -> None:
        if self._units is None and self._settings.user_service.shares != UserShares():
            _log.warning(
                "what users use is not limited: %s says which unit of systemd's starts their supervisors; see "
                "deploy/users",
                flags.USER_UNIT.flag,
            )
        async with anyio.create_task_group() as tasks:
            kept = _cordon_file(self._folder, self._states, self._settings)
            cordon = await in_thread_or_here(kept.read)
            logins = Logins()
            users = UserSupervisors(
                self._folders, SupervisorProcesses(self), tasks, login_of=logins.of,
                count_of_login=logins.count, cordon=cordon, keep_cordon=kept.keep,
            )  # fmt: skip
            dispatcher = ConnectionDispatcher(
                self._listener, admission=self._admission, login_of=logins.of, hand_over=users.hand_over, refuse=refuse
            )
            await tasks.start(signal_edge.receive, ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"), self._on_signal)
            await users.find_again()
            if _of_operators(self._settings):
                users.begin(ROOT, limits_of(os.getpid()))
            tasks.start_soon(in_thread_if_any, self._apply_shares)
            tasks.start_soon(dispatcher.run)
            tasks.start_soon(self._notifier.keep_watchdog)
            tasks.start_soon(self._look_up_names)
            self._notifier.store(self._listener.fileno(), fd_store.CONTROL)
            self._say_ready()
            _log.info("service %s lets in %s", os.getpid(), ", ".join(self._settings.user_service.users))
            with self._reloading:
                await self._reload_when_asked(dispatcher)
            if self._ended_by == signals.SIGUSR1:
                self._notifier.stopping("leaving the jobs to the next service")
                users.make_room()
                os._exit(0)  # the control socket stays, with the clients that wait in it
            self._notifier.stopping("ending the jobs of all users")
            within_s = end_timeout_s(await in_thread_or_here(stop_timeout_s))
            self._notifier.status(f"ending the jobs of all users: they have {within_s:g} s")
            await users.end_all(within_s)
            tasks.cancel_scope.cancel()

    async def _look_up_names(self) -> None:
        """Looks up the names of --users beside the service: jobs that wait for it must not wait for the database."""
        look_up = partial(self._admission.look_up, REREAD_TIMEOUT_S)
        with contextlib.suppress(OSError):  # no thread
            await self._threads.call(look_up, timeout_s=math.inf, discard=bool)
        for word in self._admission.unknown:
            _log.warning("%s; until then, it is looked up again when a user is refused", what_is_unknown(word))
        for word in self._admission.unanswered:
            _log.warning(
                "cannot look up %s of --users: the user database has not answered; users are asked to try again until "
                "it does; check that getent answers", word,
            )  # fmt: skip

    def _say_ready(self) -> None:
        self._notifier.ready(f"serving {', '.join(self._settings.user_service.users)}")

    def _on_signal(self, number: int) -> None:
        if number == signals.SIGHUP:
            self._reload_asked.set()
        elif not self._ended_by:
            self._ended_by = number
            self._reloading.cancel()

    async def _reload_when_asked(self, dispatcher: ConnectionDispatcher) -> None:
        while True:
            await self._reload_asked.wait()
            self._reload_asked = anyio.Event()
            await self._reload(dispatcher)

    async def _reload(self, dispatcher: ConnectionDispatcher) -> None:
        """Applies admission and shares at once; other settings apply to supervisors that start later."""
        self._notifier.reloading(Clock())
        try:
            settings, admission = await self._threads.call(self._read_again, timeout_s=REREAD_TIMEOUT_S, discard=bool)
            dispatcher.admission = admission
            self._settings = settings
            await self._threads.call(self._apply_shares, timeout_s=math.inf, discard=bool)
            _log.info("read the settings again: lets in %s", ", ".join(settings.user_service.users))
        except StuckError as error:
            _log.error(
                "cannot read the settings again: %s; they stay as they were; check that getent passwd answers", error
            )
        except (HoldfastError, OSError) as error:  # such as no thread
            _log.error("%s; the settings stay as they were", error)
        self._say_ready()

    def _read_again(self) -> tuple[DaemonSettings, Admission]:
        """Reads the settings and looks up their users. Blocks on the user database. Raises HoldfastError."""
        settings = self._reread()
        otlp.check_for_users(settings.otlp_traces)
        admission = Admission(settings.user_service.users)
        admission.look_up()
        admission.check_known()
        return settings, admission

    def _apply_shares(self) -> None:
        """Limits the users whose supervisors were started with other settings, too. Blocks."""
        if self._units is not None:
            uids = [record.identity.uid for record in self._folders.recorded()]
            self._units.set_shares(self._settings.user_service.shares, uids)

    def start(self, identity: Identity, limits: Limits, folder: UserFolder) -> StartedSupervisor:
        arguments = arguments_of(identity, self._settings)
        if self._units is not None:
            return StartedSupervisor(None, self._units.start(identity, limits, folder, arguments))
        return start_supervisor(identity, limits, folder, arguments)

    def kill(self, record: Record) -> None:
        (self._units or user_process).kill(record)

    def kill_all(self, record: Record) -> None:
        (self._units or user_process).kill_all(record)


def _cordon_file(folder: Path, states: Path, settings: DaemonSettings) -> CordonFile:
    """Returns the file of the node's cordon. Where no state can be written, it is beside the sockets.

    The unit keeps that folder until the node reboots. Its /tmp, another stand-in, is a new one at each start.
    """
    noted = (folder,) if CordonFile(folder).read() else ()
    places = dict.fromkeys((states, *state_dir.own_places(settings.state_dir), *noted))
    return CordonFile(*places, stand_in=lambda: folder)


def arguments_of(identity: Identity, settings: DaemonSettings) -> list[str]:
    """Returns the flags for the supervisor of one user, who can read them."""
    arguments = [
        flags.RETURN_TIMEOUT.flag, str(settings.supervisor_return_timeout_s),
        flags.LOG_JOBS_MAX.flag, str(settings.log_limits.jobs_max),
        flags.LOG_GIB_MAX.flag, str(settings.log_limits.gib_max),
    ]  # fmt: skip
    if settings.otlp_traces:
        arguments += [flags.OTLP_TRACES.flag, settings.otlp_traces]
    return arguments + (_of_operators(settings) if identity == ROOT else [])


def _of_operators(settings: DaemonSettings) -> list[str]:
    """Returns the flags for what the supervisor of root's own jobs serves to the node's operators."""
    arguments: list[str] = []
    for flag, address in ((flags.LISTEN.flag, settings.listen), (flags.METRICS.flag, settings.metrics)):
        if address is not None:
            arguments += [flag, join_endpoint(*address)]
    if settings.tls is not None:
        tls = settings.tls
        arguments += [
            flags.TLS_CERT.flag, tls.certificate, flags.TLS_KEY.flag, tls.key, flags.TLS_CA.flag, tls.authority
        ]  # fmt: skip
    return arguments


@contextlib.contextmanager
def control_socket(folder: Path) -> Generator[socket.socket]:
    """Yields the socket that systemd kept, else a new one; removes its file at the end."""
    path = folder / socket_dir.CONTROL_SOCKET
    listener = fd_store.kept_listener(fd_store.take_kept(), fd_store.CONTROL, path)
    try:
        if listener is None:
            listener = connection_dispatcher.bind(path)
        elif stat.S_IMODE(path.stat().st_mode) != connection_dispatcher.MODE:
            path.chmod(connection_dispatcher.MODE)  # a service for root alone has bound it
    except OSError as error:
        otherwise = "choose another directory with --socket-dir"
        raise kernel_error_remedies.refusal(f"listen on {path}", error, otherwise=otherwise) from error
    with listener:
        yield listener
    path.unlink(missing_ok=True)
