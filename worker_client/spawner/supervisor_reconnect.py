"""What is kept here for a returning supervisor, and how does it connect?

The texts are the supervisor's own; nothing here reads them. Reports are kept until the supervisor confirms that the
state it left here includes them. What the workers taught is kept longer: what was loading it ends with its supervisor.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from typing import NamedTuple

from holdfast_wire import framing, socket_user, spawner_link
from holdfast_wire.spawner_link import HandOverPages, HoldPages, Keep, Kept, Learned, Ready, Report, WelcomeBack
from holdfast_wire.spawner_settings import SpawnerSettings

from .held_progress_pages import Pages
from .kept_state_file import KeptFile
from .supervisor_link import Link

BACKLOG = 16
LEARNED_CHARS_MAX = 64 * 1024  # the first message to a supervisor must not wait for its reader


class Returned(NamedTuple):
    """The link to a returning supervisor, and the first messages to it."""

    fd: int
    messages: tuple[spawner_link.Message, ...]


def listen(return_fd: int) -> None:
    """Lets a supervisor connect from now on; the kernel shows it which process listens."""
    if return_fd < 0:
        return
    os.set_inheritable(return_fd, False)
    listener = socket.socket(fileno=return_fd)
    try:
        listener.listen(BACKLOG)
    finally:
        listener.detach()


class SupervisorReconnect:
    """What is kept for a returning supervisor. Does nothing if none can return."""

    def __init__(self, settings: SpawnerSettings) -> None:
        self.fd = settings.return_fd
        self._is_private = settings.private
        self._timeout_s = settings.supervisor_return_timeout_s
        self._job_id = settings.job_id
        self._claim_fds = settings.claim_fds
        self._watch_fd = settings.watch_fd
        self._texts: dict[str, str] = {}
        self._coming: dict[str, str] = {}  # of a message whose last part has not come
        self._file = KeptFile(settings.keep_path)
        self._reports: deque[Report] = deque()
        self._taken = 0
        self._ready: Ready | None = None
        self._learned: Learned | None = None  # the last with steps
        self._pages = Pages() if self.is_possible else None

    @property
    def is_possible(self) -> bool:
        return self.fd >= 0

    @property
    def wait_s(self) -> float:
        """How long to wait for another supervisor, once this one is lost. Without the texts, none can go on."""
        return 0.0 if self._is_private or (self.is_possible and not self._texts) else self._timeout_s

    def note(self, report: Report) -> None:
        """Keeps a report for the next supervisor; the caller sends it to the current one."""
        if not self.is_possible:
            return
        if isinstance(report, Ready):
            self._ready = report
        if isinstance(report, Learned) and sum(map(len, report.steps)) in range(1, LEARNED_CHARS_MAX):
            self._learned = report
        self._reports.append(report)

    def keep(self, message: Keep) -> None:
        self._coming |= message.texts
        if message.more:
            return
        if self._pages is not None:
            self._pages.be_served(time.monotonic_ns())
        changed, self._coming = self._coming, {}
        self._texts |= changed
        for name in [name for name, text in changed.items() if not text]:
            del self._texts[name]
        self._file.note(changed)
        while self._reports and self._taken < message.taken:
            self._reports.popleft()
            self._taken += 1

    def take_pages(self, message: spawner_link.Message, link: Link) -> None:
        """Holds pages for the next supervisor, or hands them over to this one. Ignores all other messages."""
        if self._pages is not None and isinstance(message, HoldPages):
            self._pages.hold(message, link.arrived)
        elif self._pages is not None and isinstance(message, HandOverPages):
            self._pages.hand_over(link)

    def drop_page(self, cycle: int, local_rank: int) -> None:
        """Drops what is held of a worker that has ended."""
        if self._pages is not None:
            self._pages.drop(cycle, local_rank)

    def drop_pages(self, cycle: int) -> None:
        if self._pages is not None:
            self._pages.drop_cycle(cycle)

    def lose_supervisor(self, link: Link) -> None:
        """Notes that the supervisor is gone; saves what it left."""
        while link.arrived:  # with a message that was cut off
            os.close(link.arrived.pop())
        if self._pages is not None:
            self._pages.lose_supervisor(time.monotonic_ns())
        self.save()

    def accept(self, *, is_awaited: bool) -> Returned | None:
        """Returns the returning supervisor; None if it is refused, because another is there or it may not connect."""
        listener = socket.socket(fileno=self.fd)
        try:
            connection, _ = listener.accept()
        except OSError:
            return None
        finally:
            listener.detach()
        if not is_awaited or self._ready is None or not _may_come_in(connection):
            connection.close()
            return None
        watched = (self._watch_fd,) if self._watch_fd >= 0 else ()
        learned = None if self._learned in self._reports else self._learned
        known = os.getpid(), self._job_id, self._ready, len(self._texts), self._taken
        welcome = WelcomeBack(*known, watched=bool(watched), learned=learned)
        frame = framing.encode(spawner_link.encode(welcome), frame_bytes_max=framing.SPAWNER_FRAME_BYTES_MAX)
        try:
            socket.send_fds(connection, [frame], (*self._claim_fds, *watched))
        except OSError:
            connection.close()
            return None
        self._coming = {}
        texts = (Kept(name, text) for name, text in self._texts.items())
        return Returned(connection.detach(), (*texts, *self._reports))

    def save(self) -> None:
        """Saves the texts for a supervisor that finds neither its predecessor nor this process. Ignores failures."""
        reports = [spawner_link.encode(_without_values(report)).decode() for report in self._reports]
        cgroup = self._ready.cgroup if self._ready is not None else ""
        self._file.save(self._texts, {"taken": self._taken, "reports": reports, "cgroup": cgroup})


def _without_values(report: Report) -> Report:
    """Returns the report without values of variables that the script has set: they are never written to a file."""
    return report._replace(steps=()) if isinstance(report, Learned) else report


def _may_come_in(connection: socket.socket) -> bool:
    """Returns whether the peer is root or this process's user."""
    return socket_user.is_this_user_or_root(socket_user.credentials(connection).uid)
