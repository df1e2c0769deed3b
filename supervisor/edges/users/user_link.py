"""How does root's process hand a client's connection to the supervisor of its user and learn the result?"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable

import anyio

from supervisor.edges.machine.own_process import accepting
from supervisor.edges.machine.processes.connection_rate_limit import ConnectionRateLimit
from supervisor.edges.users import user_link_messages as messages
from supervisor.edges.users.user_folders import UserFolder
from supervisor.edges.users.user_link_messages import MESSAGE_BYTES_MAX, ToUser

TAKE_TIMEOUT_S = 30.0  # for a supervisor that is still starting, on a busy node
STUCK_TIMEOUT_S = 90.0  # without an answer to any connection; systemd's watchdog, if there is one, is sooner
LEAVE_TIMEOUT_S = 20.0  # for one that was let go, and has no job
UNTAKEN_MAX = 64  # connections that it has not taken yet; it gets no more, so none of them fills the socket
STRAYS_AT_ONCE_MAX, STRAYS_PER_S = 64.0, 1.0  # messages that answer nothing; an idle one sends one a minute


class UserLink:
    """Root's end of one connection to a hand-over socket."""

    def __init__(self, folder: UserFolder, *, on_cordon: Callable[[str], None] | None = None) -> None:
        """Connects. `on_cordon` None: its cordons are ignored. Raises OSError if nobody listens there."""
        self._on_cordon = on_cordon
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            self._socket.connect(str(folder.handover_socket))
        except OSError:
            self._socket.close()
            raise
        self._sending = anyio.Lock()
        self._given = 0
        self._untaken: dict[int, anyio.Event] = {}
        self._strays = ConnectionRateLimit(STRAYS_AT_ONCE_MAX, STRAYS_PER_S)
        self._hearing = anyio.CancelScope()
        self.ended = anyio.Event()
        self.was_let_go = False  # it ends because nobody needs it
        self.fault = ""  # why it is served no longer, although it has not gone

    @property
    def has_ended(self) -> bool:
        return self.ended.is_set()

    async def give(self, client: socket.socket) -> bool:
        """Hands a connection over. Returns False if the supervisor has gone, or is stuck, and did not take it."""
        if self.was_let_go:
            await self.ended.wait()  # then the next connection certainly finds nobody
            return False
        if len(self._untaken) >= UNTAKEN_MAX:
            return False
        self._given += 1
        number, is_sent = self._given, False
        taken = self._untaken[number] = anyio.Event()
        self._expect(STUCK_TIMEOUT_S)
        try:
            with anyio.move_on_after(TAKE_TIMEOUT_S):
                is_sent = await self._send(messages.Take(number), client.fileno())
                if is_sent:
                    await taken.wait()
                    return not self.has_ended
            return False
        finally:
            if not is_sent:
                self._untaken.pop(number, None)

    async def tell(self, message: ToUser) -> bool:
        """Sends a message. Returns False if the supervisor has gone, or is stuck."""
        with anyio.move_on_after(TAKE_TIMEOUT_S):
            return await self._send(message)
        return False

    def tell_at_once(self, message: ToUser) -> None:
        """Sends the last message of this process."""
        if not self.has_ended:
            try:
                self._socket.send(messages.encode(message))
            except OSError:
                return  # it continues without us, and our successor connects to it

    async def hear(self) -> None:
        """Receives messages until the supervisor has gone, or shows a `fault`."""
        try:
            with self._hearing:
                await self._receive()
            if self._hearing.cancelled_caught:
                self.fault = "it was let go, and stays" if self.was_let_go else "it takes no connection"
        finally:
            self.ended.set()
            for waiting in self._untaken.values():
                waiting.set()
            anyio.notify_closing(self._socket)
            self._socket.close()

    async def _receive(self) -> None:
        """Receives one message a turn, so that one user's messages delay nobody else's."""
        while not self.fault:
            await anyio.wait_readable(self._socket)
            try:
                data = self._socket.recv(MESSAGE_BYTES_MAX)
            except (BlockingIOError, InterruptedError):
                continue
            except OSError:
                return
            if not data:
                return
            await self._act(data)

    async def _act(self, data: bytes) -> None:
        match messages.read_by_root(data):
            case messages.Taken(number) if number in self._untaken:
                self._untaken.pop(number).set()
                if not self.was_let_go:
                    self._hearing.deadline = math.inf
                if self._untaken:
                    self._expect(STUCK_TIMEOUT_S)
            case messages.Idle(taken) if taken == self._given and not self.was_let_go:
                self.was_let_go = True  # nothing came since
                self._expect(LEAVE_TIMEOUT_S)
                await self._send(messages.Leave())
            case messages.Cordon(reason) if self._on_cordon is not None:
                self._on_cordon(reason)
            case _:
                if not self._strays.allows(0, anyio.current_time()):
                    self.fault = "it sends messages without end"

    def _expect(self, timeout_s: float) -> None:
        """Bounds the time until the supervisor does what was asked first."""
        self._hearing.deadline = min(self._hearing.deadline, anyio.current_time() + timeout_s)

    async def _send(self, message: ToUser, *descriptors: int) -> bool:
        async with self._sending:
            while not self.has_ended:
                try:
                    if descriptors:
                        socket.send_fds(self._socket, [messages.encode(message)], descriptors)
                    else:
                        self._socket.send(messages.encode(message))
                except (BlockingIOError, InterruptedError):
                    try:
                        await anyio.wait_writable(self._socket)
                    except anyio.ClosedResourceError:
                        return False
                except OSError:
                    return False
                else:
                    return True
        return False


class HandoverReceiver:
    """The user's end: takes over connections and handles the requests of root's process."""

    def __init__(
        self, listener_fd: int, *, take: Callable[[socket.socket], None], hear: Callable[[ToUser], None]
    ) -> None:
        os.set_inheritable(listener_fd, False)
        self._listener = socket.socket(fileno=listener_fd)
        self._listener.setblocking(False)
        self._take = take
        self._hear = hear
        self._link: socket.socket | None = None
        self._taken = 0
        self._cordon: messages.Cordon | None = None  # the last one that was said

    async def run(self) -> None:
        """Runs until cancelled. The newest connection counts, because root's process may have been restarted."""
        with self._listener:
            async with anyio.create_task_group() as tasks:
                async for link in accepting.connections(self._listener):
                    tasks.start_soon(self._serve, link)

    @property
    def has_said_cordon(self) -> bool:
        """Returns whether this end has reported a cordon or its end: root's process never knows a newer one."""
        return self._cordon is not None

    def say_cordon(self, reason: str) -> None:
        """Reports a cordon, or its end, and again to each later process of root."""
        self._cordon = messages.Cordon(reason)
        self.say(self._cordon)

    def say(self, message: messages.Idle | messages.Cordon | messages.Taken) -> None:
        """Sends a message. Never blocks, never raises."""
        if self._link is not None:
            try:
                self._link.send(messages.encode(message))
            except OSError:
                return  # root's process is away; it asks again when it is back

    def say_idle(self) -> None:
        self.say(messages.Idle(self._taken))

    async def _serve(self, link: socket.socket) -> None:
        self._link, self._taken = link, 0
        if self._cordon is not None:
            self.say(self._cordon)
        with link:
            while True:
                await anyio.wait_readable(link)
                try:
                    data, descriptors, _, _ = socket.recv_fds(link, MESSAGE_BYTES_MAX, 1)
                except (BlockingIOError, InterruptedError):
                    continue
                except OSError:
                    break
                if not data:
                    break
                self._act(messages.read_by_user(data), descriptors)
        if self._link is link:
            self._link = None

    def _act(self, message: ToUser | None, descriptors: list[int]) -> None:
        for each in descriptors:
            os.set_inheritable(each, False)  # recv_fds does not pass on the flag for that
        clients = [socket.socket(fileno=each) for each in descriptors]
        if isinstance(message, messages.Take) and clients:
            self._taken = message.number
            clients[0].setblocking(False)
            self._take(clients[0])
            self.say(messages.Taken(message.number))
            return
        for each in clients:
            each.close()
        if message is not None:
            self._hear(message)
