"""What must still be sent to the supervisor?

Any thread leaves notes here without waiting. The channel's thread takes the next one once the socket has taken the
previous one. So the backlog is bounded whatever the supervisor does: the newest limits replace all earlier ones, and
the number of frames of a wrapped call is limited. A rank that exceeds that limit loses its connection once the
supervisor reads again, but no information: the next connection begins with the whole current state.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Callable

from worker_client.timeouts import Limits
from worker_client.workload_control import WorkloadControlRequest

CONTROL_REQUESTS_MAX = 16
CALL_FRAMES_MAX = 64  # frames of a wrapped call that wait to be sent


class Watch(enum.Enum):
    """What a rank without a shared page must send at once."""

    CHANGED = enum.auto()


class LeaseQuestion:
    """Asks how long this rank's lease holds. Answered once it does."""

    __slots__ = ("left_ns",)

    def __init__(self) -> None:
        self.left_ns = 0  # from the question on; 0: it did not hold then, or there is no answer yet


Request = tuple[int, WorkloadControlRequest | LeaseQuestion]  # with the number that the answer has
Note = Watch | bytes | Limits | Request


class OverfullError(Exception):
    """Raised when too many frames wait: the current state must be sent again, on another connection."""


class Outbox:
    """The notes of one channel. Its lock is never held over a system call."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` makes the channel's thread check for notes."""
        self._wake = wake
        self._lock = threading.RLock()  # for a signal handler of the script in the middle of a call
        self._is_watch_new = False
        self._frames: deque[bytes] = deque()
        self._is_overfull = False
        self._limits: Limits | None = None
        self._requests: dict[int, tuple[WorkloadControlRequest | LeaseQuestion, threading.Event]] = {}  # unanswered
        self._unsent_requests: deque[int] = deque()
        self._requests_made = 0
        self._is_all_sent = False
        self._waiting: list[threading.Event] = []  # of those who wait until it is

    # --- called by any thread ---

    def tell_watch(self) -> None:
        self._is_watch_new = True
        self._wake()

    def say(self, frame: bytes) -> None:
        with self._lock:
            self._is_all_sent = False
            if len(self._frames) < CALL_FRAMES_MAX:
                self._frames.append(frame)
            else:
                self._is_overfull = True
        self._wake()

    def tell_limits(self, limits: Limits) -> None:
        with self._lock:
            self._limits = limits
        self._wake()

    def request(self, request: WorkloadControlRequest | LeaseQuestion) -> threading.Event | None:
        """Returns an event that is set once the supervisor has answered; None if too many requests already wait."""
        accepted = threading.Event()  # Python code, in which handlers may run: not while the lock is held
        with self._lock:
            if len(self._requests) >= CONTROL_REQUESTS_MAX:
                return None
            self._requests_made += 1
            self._requests[self._requests_made] = request, accepted
            self._unsent_requests.append(self._requests_made)
        self._wake()
        return accepted

    def withdraw(self, request: WorkloadControlRequest | LeaseQuestion) -> None:
        """Forgets a request whose answer nobody waits for any more."""
        with self._lock:
            for number, (each, _) in list(self._requests.items()):  # A handler may add one meanwhile.
                if each is request:
                    self._requests.pop(number, None)

    def wait_sent(self, timeout_s: float) -> bool:
        """Blocks until the kernel has all frames, at most `timeout_s`; returns whether it has."""
        sent = threading.Event()
        with self._lock:
            if self._is_all_sent:
                return True
            self._waiting.append(sent)
        return sent.wait(timeout_s)

    # --- called by the channel's thread ---

    def take(self) -> Note | None:
        """Takes the next message. Raises OverfullError."""
        with self._lock:
            if self._is_overfull:
                raise OverfullError(f"cannot send: more than {CALL_FRAMES_MAX} frames of a wrapped call wait")
            if self._is_watch_new:
                self._is_watch_new = False
                return Watch.CHANGED
            if self._frames:
                return self._frames.popleft()
            if self._limits is not None:
                limits, self._limits = self._limits, None
                return limits
            while self._unsent_requests:
                request_id = self._unsent_requests.popleft()
                if request_id in self._requests:
                    return request_id, self._requests[request_id][0]
            return None

    @property
    def has_requests(self) -> bool:
        """Whether a caller waits for an answer."""
        return bool(self._unsent_requests)

    def answered(self, request_id: int, left_ns: int = 0) -> None:
        with self._lock:
            known = self._requests.pop(request_id, None)
        if known is None:
            return
        request, answered = known
        if isinstance(request, LeaseQuestion):
            request.left_ns = left_ns
        answered.set()

    def taken(self) -> None:
        """Notes that the kernel has everything taken from here."""
        with self._lock:
            if not self._frames:
                self._end_waits()

    def start_over(self) -> None:
        """Starts over when a connection ends or begins: the owner repeats its state, and requests are sent again."""
        with self._lock:
            self._frames.clear()
            self._is_overfull = False
            self._is_all_sent = False
            self._unsent_requests = deque(self._requests)

    def give_up(self) -> None:
        """Gives up: nothing more is sent, and waiting callers are released."""
        with self._lock:
            self._end_waits()

    def _end_waits(self) -> None:
        self._is_all_sent = True
        while self._waiting:
            self._waiting.pop().set()
