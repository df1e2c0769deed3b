"""How are a user's command and URL notified of events without anything waiting for them?

A separate process notifies them (notify_process.py); this end only writes to its pipe, and drops events that the pipe
does not take.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from supervisor.config.event_hooks import EventHooks
from supervisor.edges.machine.own_process import standard_streams
from supervisor.edges.operators import notify_process
from supervisor.edges.operators.event_json import event_document
from supervisor.ports.reports import RecordedEvent

UNSENT_BYTES_MAX = 1 << 20  # in the memory of a supervisor with a slow notifier
END_GRACE_S = 1.0  # on top of the process's own time to end


class Notifier:
    """The pipe to the process. Methods do not block, except `close`, which is bounded. For one thread at a time."""

    def __init__(self, hooks: EventHooks) -> None:
        self._hooks = hooks
        self._unsent = b""
        self._dropped = 0
        self._process = _start()
        if self._process is not None:
            os.set_blocking(self._pipe, False)
            self._write(json.dumps({"command": hooks.command, "url": hooks.url}).encode() + b"\n")

    def tell(self, event: RecordedEvent) -> None:
        if self._process is None or not self._hooks.wants(event.kind):
            return
        line = json.dumps(event_document(event)).encode() + b"\n"
        if len(self._unsent) + len(line) > UNSENT_BYTES_MAX:
            self._dropped += 1
            return
        self._write(line)

    def close(self) -> None:
        """Returns once the last event was delivered, or its time is up."""
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        if self._unsent or self._dropped:
            standard_streams.say(
                f"holdfast: warning: {self._dropped or 'some'} events were not delivered: --on-event hangs"
            )
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(notify_process.END_TIMEOUT_S + END_GRACE_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @property
    def _pipe(self) -> int:
        assert self._process is not None
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def _write(self, data: bytes) -> None:
        self._unsent += data
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._pipe, self._unsent) :]
        except BlockingIOError:
            return  # It is sent with the next event.
        except OSError as error:
            standard_streams.say(f"holdfast: warning: events are no longer delivered: {error.strerror}")
            self._unsent = b""
            self.close()


class EventHandler(logging.Handler):
    """Passes events in the log to the notifier, in the log's own thread."""

    def __init__(self, notifier: Notifier) -> None:
        super().__init__()
        self._notifier = notifier

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if isinstance(event, RecordedEvent):
            self._notifier.tell(event)


@contextmanager
def notifying(hooks: EventHooks) -> Generator[Notifier]:
    """Yields the notifier, and waits a bounded time for the delivery of the last event."""
    notifier = Notifier(hooks)
    try:
        yield notifier
    finally:
        notifier.close()


def _start() -> subprocess.Popen[bytes] | None:
    command = [sys.executable, "-I", "-S", str(Path(notify_process.__file__))]
    try:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, start_new_session=True)
    except OSError as error:
        standard_streams.say(f"holdfast: warning: cannot start the process that runs --on-event: {error.strerror}")
        return None
