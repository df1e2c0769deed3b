"""How does root's process hand a client's connection to the supervisor of its user and learn the result?"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import anyio

from supervisor.edges.users import door_words as words
from supervisor.edges.users.door_words import WORD_BYTES_MAX, ToUser
from supervisor.edges.users.user_folders import UserFolder

TAKE_TIMEOUT_S = 30.0  # for a supervisor that is still starting, on a busy node


class UserLink:
    """Root's end of one connection to a door."""

    def __init__(self, folder: UserFolder) -> None:
        """Connects. Raises OSError if nobody has the door open."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            self._socket.connect(str(folder.door))
        except OSError:
            self._socket.close()
            raise
        self._given = 0
        self._taken: dict[int, anyio.Event] = {}
        self.ended = anyio.Event()
        self.was_let_go = False  # it ends because nobody needs it
        self.on_cordon: Callable[[str], None] | None = None  # None: its cordons are ignored

    @property
    def has_ended(self) -> bool:
        return self.ended.is_set()

    async def give(self, client: socket.socket) -> bool:
        """Hands a connection over. Returns False if the supervisor has gone, or is stuck, and did not take it."""
        if self.was_let_go:
            await self.ended.wait()  # then the next connection to the door certainly finds nobody
            return False
        self._given += 1
        taken = self._taken[self._given] = anyio.Event()
        number = self._given
        try:
            with anyio.move_on_after(TAKE_TIMEOUT_S):
                if await self._send(words.Take(number), client.fileno()):
                    await taken.wait()
                    return not self.has_ended
            return False
        finally:
            self._taken.pop(number, None)

    async def tell(self, word: ToUser) -> None:
        """Sends a message. Never raises: a supervisor that has gone does not need it."""
        with anyio.move_on_after(TAKE_TIMEOUT_S):
            await self._send(word)

    def tell_at_once(self, word: ToUser) -> None:
        """Sends the last message of this process."""
        if not self.has_ended:
            try:
                self._socket.send(words.encode(word))
            except OSError:
                return  # it continues without us, and our successor connects to it

    async def hear(self) -> None:
        """Receives messages until the supervisor has gone."""
        try:
            while not self.has_ended:
                await anyio.wait_readable(self._socket)
                try:
                    data = self._socket.recv(WORD_BYTES_MAX)
                except (BlockingIOError, InterruptedError):
                    continue
                except OSError:
                    return
                if not data:
                    return
                await self._act(data)
        finally:
            self.ended.set()
            for waiting in self._taken.values():
                waiting.set()
            self._socket.close()

    async def _act(self, data: bytes) -> None:
        match words.read_by_root(data):
            case words.Taken(number) if number in self._taken:
                self._taken[number].set()
            case words.Idle(taken) if taken == self._given:
                self.was_let_go = True  # nothing came since
                await self._send(words.Leave())
            case words.Cordon(reason) if self.on_cordon is not None:
                self.on_cordon(reason)
            case _:
                return

    async def _send(self, word: ToUser, *descriptors: int) -> bool:
        while not self.has_ended:
            try:
                if descriptors:
                    socket.send_fds(self._socket, [words.encode(word)], descriptors)
                else:
                    self._socket.send(words.encode(word))
            except (BlockingIOError, InterruptedError):
                await anyio.wait_writable(self._socket)
            except OSError:
                return False
            else:
                return True
        return False


class OwnDoor:
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

    async def run(self) -> None:
        """Runs until cancelled. The newest connection counts, because root's process may have been restarted."""
        with self._listener:
            async with anyio.create_task_group() as tasks:
                while True:
                    await anyio.wait_readable(self._listener)
                    try:
                        link, _ = self._listener.accept()
                    except OSError:
                        continue
                    link.setblocking(False)
                    tasks.start_soon(self._serve, link)

    def say(self, word: words.Idle | words.Cordon | words.Taken) -> None:
        """Sends a message. Never blocks, never raises."""
        if self._link is not None:
            try:
                self._link.send(words.encode(word))
            except OSError:
                return  # root's process is away; it asks again when it is back

    def say_idle(self) -> None:
        self.say(words.Idle(self._taken))

    async def _serve(self, link: socket.socket) -> None:
        self._link, self._taken = link, 0
        with link:
            while True:
                await anyio.wait_readable(link)
                try:
                    data, descriptors, _, _ = socket.recv_fds(link, WORD_BYTES_MAX, 1)
                except (BlockingIOError, InterruptedError):
                    continue
                except OSError:
                    break
                if not data:
                    break
                self._act(words.read_by_user(data), descriptors)
        if self._link is link:
            self._link = None

    def _act(self, word: ToUser | None, descriptors: list[int]) -> None:
        for each in descriptors:
            os.set_inheritable(each, False)  # recv_fds does not pass on the flag for that
        clients = [socket.socket(fileno=each) for each in descriptors]
        if isinstance(word, words.Take) and clients:
            self._taken = word.number
            clients[0].setblocking(False)
            self._take(clients[0])
            self.say(words.Taken(word.number))
            return
        for each in clients:
            each.close()
        if word is not None:
            self._hear(word)
