"""What does `holdfast daemon` serve besides its jobs, and which signals does it handle?"""

from __future__ import annotations

import logging
import os
import signal as signals
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import anyio

from supervisor.config.daemon_settings import DaemonSettings
from supervisor.config.launch_values import join_endpoint
from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.folders import socket_dir, state_dir
from supervisor.edges.machine.folders.cordon_file import CordonFile
from supervisor.edges.machine.own_process import fd_store, sd_notify
from supervisor.edges.machine.own_process import signals as signal_edge
from supervisor.edges.machine.own_process.threads import in_thread_or_here
from supervisor.edges.machine.processes.job_claims import JobClaims, claim_folders
from supervisor.edges.operators import control_api
from supervisor.edges.operators.control_api import ControlApi
from supervisor.edges.operators.control_gate import NODE_CONNECTIONS_MAX, ControlGate
from supervisor.edges.operators.metrics import exporter
from supervisor.edges.operators.metrics.event_counters import EventCounterHandler, EventCounters
from supervisor.edges.operators.traces import otlp
from supervisor.engine.output_plan import Console
from supervisor.wiring.supervisor import Running, open_supervisor, peers_of_jobs, registered, sweep
from supervisor.wiring.supervisor_paths import SupervisorPaths
from supervisor.wiring.supervisor_return import make_room

_log = logging.getLogger("holdfast")


async def serve_node(settings: DaemonSettings, log_handlers: Sequence[logging.Handler] = ()) -> int:
    """Runs the node's supervisor until SIGTERM or SIGINT. Returns the exit code."""
    folder = socket_dir.service_dir_for_daemon(settings.socket_dir)
    socket_dir.make(folder)
    paths = _paths(settings, folder)
    notifier = sd_notify.Notifier()
    listener = _tcp_listener(settings)
    counters = EventCounters()
    handlers = (*log_handlers, EventCounterHandler(counters), *otlp.handlers(settings.otlp_traces))
    # Root's process keeps the cordon of a supervisor that it started. Such a supervisor never asks for the user's home,
    # which may be on a server that does not answer: the user's jobs need not use it.
    is_started_by_root = settings.user_service.handover_fd >= 0
    file = None if is_started_by_root else _cordon_file(settings, paths)
    async with open_supervisor(
        paths,
        claims=JobClaims(claim_folders({})) if is_started_by_root else None,
        log_handlers=handlers,
        open_peers=peers_of_jobs,
        keep_cordon=file.keep if file is not None else None,
    ) as running:
        running.journal.start()
        if file is not None:
            await _stay_cordoned(running, file)
        if running.returning is not None:
            await running.returning.run(running.tasks)
        api = ControlApi(running.counter, running.journal, for_users=settings.user_service.handover_fd >= 0)
        if listener is not None:
            await running.tasks.start(api.serve_tcp, listener)
        gate = _gate(running, api)
        await running.tasks.start(gate.run)
        await running.tasks.start(
            partial(
                exporter.run, running.counter, counters, clock=Clock(), address=settings.metrics,
                path=folder / exporter.METRICS_SOCKET,
            )
        )  # fmt: skip
        stopped = anyio.Event()
        leave = partial(_make_room, running, notifier)

        def on_signal(number: int) -> None:
            if number == signals.SIGUSR1:
                leave()
            stopped.set()

        await running.tasks.start(signal_edge.receive, ("SIGTERM", "SIGINT", "SIGUSR1"), on_signal)
        if settings.user_service.handover_fd >= 0:
            from supervisor.wiring.user_supervisor_service import (
                serve_user_supervisor,  # Late: a service of one user has none.
            )

            stays = settings.listen is not None or settings.metrics is not None
            running.tasks.start_soon(
                partial(
                    serve_user_supervisor, settings.user_service.handover_fd, gate=gate,
                    job_service=running.job_service,
                    end=stopped.set, make_room=leave, stays=stays, cordons_node=not os.geteuid(),
                )
            )  # fmt: skip
        running.tasks.start_soon(notifier.keep_watchdog)
        running.tasks.start_soon(sweep)
        if gate.listener is not None:
            notifier.store(gate.listener.fileno(), fd_store.CONTROL)
        notifier.ready(f"serving {folder}")
        _log.info("supervisor %s serves %s", os.getpid(), folder)
        with registered(folder, is_daemon=True) if settings.is_of_one_job else nullcontext():
            await stopped.wait()
            notifier.stopping("ending the jobs")
            await running.job_service.end_all("the node's supervisor was stopped")
    notifier.close()
    return 0


def _paths(settings: DaemonSettings, folder: Path) -> SupervisorPaths:
    state = state_dir.choose(settings.state_dir, folder)
    return SupervisorPaths(
        folder,
        state.path,
        Console(present=False),
        private=False,
        supervisor_return_timeout_s=settings.supervisor_return_timeout_s,
        log_limits=settings.log_limits,
        warning=state.warning,
    )


def _cordon_file(settings: DaemonSettings, paths: SupervisorPaths) -> CordonFile:
    places = dict.fromkeys((*state_dir.own_places(settings.state_dir), paths.state_dir))
    return CordonFile(*places, stand_in=state_dir.made_stand_in)


async def _stay_cordoned(running: Running, file: CordonFile) -> None:
    """Keeps the node cordoned: whatever the reason for this start, only an operator lifts the cordon."""
    reason = await in_thread_or_here(file.read)
    if reason:
        running.job_service.cordon(reason)
        _log.warning("this node is still cordoned (%s): holdfast uncordon lets it take jobs", reason)


def _tcp_listener(settings: DaemonSettings) -> control_api.SecureListener | None:
    if settings.listen is None or settings.tls is None:
        return None
    return control_api.secure_listener(
        join_endpoint(*settings.listen),
        certificate=settings.tls.certificate,
        key=settings.tls.key,
        client_authority=settings.tls.authority,
    )


def _gate(running: Running, api: ControlApi) -> ControlGate:
    path = running.paths.control_socket
    return ControlGate(
        socket_path=path,
        load=lambda: api,
        eager=True,
        connections_max=NODE_CONNECTIONS_MAX,
        listener=fd_store.kept_listener(fd_store.take_kept(), fd_store.CONTROL, path),
    )


def _make_room(running: Running, notifier: sd_notify.Notifier) -> None:
    notifier.stopping("leaving the jobs to the next supervisor")
    make_room(running.journal)
