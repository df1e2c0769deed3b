"""How does the supervisor of one of several users get its clients from root's process, and when does it end, idle?"""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio

from supervisor.edges.operators.control_gate import ControlGate
from supervisor.edges.users import user_link_messages as messages
from supervisor.edges.users.user_link import HandoverReceiver
from supervisor.ports.timed_waits import pause
from supervisor.queries.job_service import JobService

IDLE_S = 60.0  # without jobs and clients; then it asks root's process whether it may end

_log = logging.getLogger("holdfast.users")


async def serve_user_supervisor(
    handover_fd: int,
    *,
    gate: ControlGate,
    job_service: JobService,
    end: Callable[[], None],
    make_room: Callable[[], None],
    stays: bool,
    cordons_node: bool,
    idle_s: float = IDLE_S,
) -> None:
    """Serves until cancelled. `stays`: it is needed even without jobs.

    `cordons_node`: it is the supervisor of root's own jobs, through which operators cordon the node for all users.
    """

    def hear(message: messages.ToUser) -> None:
        match message:
            case messages.Cordon() if receiver.has_said_cordon:
                _log.debug("%s is older than what was said here", message)
            case messages.Cordon(reason):
                if reason:
                    job_service.cordon(reason)
                else:
                    job_service.uncordon()
            case messages.Leave() | messages.End():
                end()
            case messages.MakeRoom():
                make_room()
            case _:
                _log.debug("%s has no meaning here", message)

    async def tell_cordons() -> None:
        while True:
            receiver.say_cordon(await job_service.next_cordon())

    receiver = HandoverReceiver(handover_fd, take=gate.admit, hear=hear)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receiver.run)
        if cordons_node:
            tasks.start_soon(tell_cordons)
        while not stays:
            await pause(idle_s, why="nobody tells that nobody has come for a while")
            if not (gate.connections or job_service.live_jobs() or job_service.expected.job_ids()):
                receiver.say_idle()
