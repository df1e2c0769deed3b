"""Who may connect to the control socket of a node's service, and who is refused?

Root's process asks the kernel who connects, and hands the connection to that user's supervisor. It reads nothing from a
connection but to refuse it: of another user, or of one whose supervisor cannot be reached.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from supervisor.edges.machine.own_process import accepting
from supervisor.edges.machine.own_process.side_threads import SideThreads
from supervisor.edges.machine.own_process.unix_listener import listening
from supervisor.edges.machine.processes.connection_rate_limit import ConnectionRateLimit
from supervisor.edges.machine.processes.peer_identity import Identity, Limits, identity_of, limits_of_peer, uid_of
from supervisor.edges.users.user_admission import Admission
from supervisor.errors import ExhaustedError, HoldfastError, NotPermittedError

BACKLOG = 4096  # the kernel may reduce it to net.core.somaxconn
WAITING_OF_ONE_MAX = 32  # connections of one login that are being handed over; more are closed at once
REFUSED_MAX = 8  # connections being refused; more are closed at once
REFUSED_OF_ONE_MAX = 2  # of one login
LOOK_UP_S = 5.0  # between two searches for names of --users that this node did not know
LOOK_UP_TIMEOUT_S = 10.0  # from when a name is asked for; then the user is refused
MODE = 0o666  # the kernel says who connects

HandOver = Callable[[socket.socket, Identity, Limits], Awaitable[None]]
Refuse = Callable[[socket.socket, HoldfastError], Awaitable[None]]

_log = logging.getLogger("holdfast.users")


class ConnectionDispatcher:
    """One listening socket for all users."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        admission: Admission,
        login_of: Callable[[int], int],
        hand_over: HandOver,
        refuse: Refuse,
    ) -> None:
        """`login_of`: see Logins.of."""
        self._listener = listener
        self.admission = admission
        self._login_of = login_of
        self._hand_over = hand_over
        self._refuse = refuse
        self._waiting: Counter[int] = Counter()
        self._rate_limit = ConnectionRateLimit()
        self._refused: Counter[int] = Counter()
        self._looking_up = anyio.Lock()
        self._look_ups = SideThreads(stuck_max=1)
        self._look_up_at_s = 0.0

    async def run(self) -> None:
        """Serves until cancelled."""
        async with anyio.create_task_group() as tasks:
            async for client in accepting.connections(self._listener):
                self._admit(client, tasks)

    def _admit(self, client: socket.socket, tasks: TaskGroup) -> None:
        try:
            login = self._login_of(uid_of(client))
            now_s = anyio.current_time()
            if self._waiting[login] >= WAITING_OF_ONE_MAX or not self._rate_limit.allows(login, now_s):
                client.close()
                return
            identity = identity_of(client)
        except OSError as error:
            _log.warning("a connection was closed: the kernel does not say who opened it: %s", error)
            client.close()
            return
        self._waiting[login] += 1
        tasks.start_soon(self._serve, client, identity, login)

    async def _serve(self, client: socket.socket, identity: Identity, login: int) -> None:
        try:
            with client:
                refusal = await self._not_admitted(identity) or await self._handed_over(client, identity)
                if refusal is not None:
                    await self._answer(client, refusal, login)
        finally:
            self._waiting[login] -= 1
            if not self._waiting[login]:
                del self._waiting[login]

    async def _not_admitted(self, identity: Identity) -> HoldfastError | None:
        """Returns why the user is not served. It may be one whom this node did not know so far."""
        if self.admission.refusal(identity) and (self.admission.unknown or self.admission.unanswered):
            async with self._looking_up:
                if anyio.current_time() >= self._look_up_at_s:
                    look_up = partial(self.admission.look_up, LOOK_UP_TIMEOUT_S)
                    with contextlib.suppress(OSError):  # no thread
                        await self._look_ups.call(look_up, timeout_s=math.inf, discard=bool)
                    self._look_up_at_s = anyio.current_time() + LOOK_UP_S
        why_not = self.admission.refusal(identity)
        if why_not and (names := self.admission.unanswered):  # A job that waits for the service must not end by this.
            return ExhaustedError(
                f"cannot answer user id {identity.uid}: the user database has not answered about {', '.join(names)} of "
                "--users; try again, and check that getent answers"
            )
        return NotPermittedError(why_not) if why_not else None

    async def _handed_over(self, client: socket.socket, identity: Identity) -> HoldfastError | None:
        """Hands the connection over. Returns why that failed: the caller's exit code depends on its kind."""
        try:
            limits = limits_of_peer(client)
        except OSError as error:
            return NotPermittedError(
                f"cannot answer user id {identity.uid}: its limits are not known: {error}; ask from this node itself"
            )
        try:
            await self._hand_over(client, identity, limits)
        except HoldfastError as error:
            _log.warning("%s", error)
            return error
        return None

    async def _answer(self, client: socket.socket, refusal: HoldfastError, login: int) -> None:
        if self._refused.total() >= REFUSED_MAX or self._refused[login] >= REFUSED_OF_ONE_MAX:
            return
        self._refused[login] += 1
        try:
            await self._refuse(client, refusal)
        finally:
            self._refused[login] -= 1
            if not self._refused[login]:
                del self._refused[login]


def bind(path: Path) -> socket.socket:
    """Binds the control socket, to which everybody may connect. Raises OSError."""
    path.unlink(missing_ok=True)
    return listening(path, mode=MODE, backlog=BACKLOG)
