"""How are events given to a user's command, or posted to a URL without redirects? By a process that nothing waits for.

It runs as a file, with only the standard library. stdin: one line of settings, then a line of JSON for each event; its
end is the job's end. The command and the URL each have a thread and a bounded queue, so a dead one never delays the
other.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import urllib.request

QUEUE_EVENTS_MAX = 256  # for a slow listener; beyond it the oldest are dropped
COMMAND_TIMEOUT_S = 30.0
POST_TIMEOUT_S = 10.0
END_TIMEOUT_S = 5.0  # after the last event, to deliver the rest
VARIABLES = ("kind", "job_id", "reason", "cycle", "iteration", "rank", "node", "at")

Send = Callable[[bytes], str]  # returns why it failed, "" if it did not

_changing = threading.Lock()  # of _running; held from the end on, so no other command starts
_running: list[subprocess.Popen[bytes]] = []


class EventDelivery:
    """Notifies one listener of one event after another."""

    def __init__(self, flag: str, send: Send) -> None:
        self._flag = flag
        self._send = send
        self._waiting: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._is_ending = False
        self._dropped = 0
        self._last_problem = ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> None:
        with self._changed:
            if len(self._waiting) >= QUEUE_EVENTS_MAX:
                self._waiting.popleft()
                self._dropped += 1
            self._waiting.append(line)
            self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._is_ending = True
            self._changed.notify()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def report(self) -> None:
        """Reports events that were not delivered."""
        lost = self._dropped + len(self._waiting) + self._thread.is_alive()
        if lost:
            say(f"{self._flag} did not receive {lost} events: it was too slow")

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_ending)
                if not self._waiting:
                    return
                line = self._waiting.popleft()
            problem = self._send(line)
            if problem and problem != self._last_problem:  # a persistent problem is reported once
                say(f"{self._flag}: {problem}")
            self._last_problem = problem


def run_command(command: str, line: bytes, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """Runs it with the event as JSON on stdin and in variables. A late command is killed with its process group."""
    event = cast("dict[str, object]", json.loads(line))
    try:
        with _changing:
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=subprocess.PIPE,
                stdout=sys.stderr.fileno(),
                env={**os.environ, **variables(event)},
                start_new_session=True,
            )
            _running.append(process)
    except OSError as error:
        return f"the command cannot be started: {error.strerror}"
    with process:
        try:
            process.communicate(line, timeout=timeout_s)
            is_late = False
        except subprocess.TimeoutExpired:
            is_late = True
            _kill(process)
            process.wait()
    with _changing:
        _running.remove(process)
    if is_late:
        return f"the command was killed: it ran for more than {timeout_s:g} s at {event['kind']}"
    return f"the command ended with exit code {process.returncode} at {event['kind']}" if process.returncode else ""


def kill_running_command() -> None:
    """Kills the command that runs, with its process group. No other one starts."""
    _changing.acquire()
    for process in _running:
        _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def variables(event: Mapping[str, object]) -> dict[str, str]:
    """Returns HOLDFAST_EVENT_KIND and the other variables; "" for fields that the event does not have."""
    values = {name: event.get(name) for name in VARIABLES}
    return {
        f"HOLDFAST_EVENT_{name.upper()}": "" if value is None else str(value).replace("\0", "")
        for name, value in values.items()
    }


def opener_without_redirects() -> urllib.request.OpenerDirector:
    """Returns an opener to which a redirect is an error: its target would get the headers, but no document."""
    import urllib.request

    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.HTTPDefaultErrorHandler,
    ):
        opener.add_handler(handler())
    return opener


def post(url: str, line: bytes, timeout_s: float = POST_TIMEOUT_S) -> str:
    """Posts the event as JSON, with its sentence as `text`, which chat services show.

    A redirect is not followed: urllib would fetch the other place without the event, and call that a success.
    """
    import http.client
    import urllib.error
    import urllib.request

    event = cast("dict[str, object]", json.loads(line))
    body = json.dumps({**event, "text": f"job {event['job_id']}: {event['reason']}"}).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "holdfast"}
    try:
        with opener_without_redirects().open(urllib.request.Request(url, body, headers), timeout=timeout_s):
            return ""
    except urllib.error.HTTPError as error:
        with error:
            said = _printable(f"the server answered {error.code} {error.reason}")
            to = error.headers.get("Location") if 300 <= error.code < 400 else None
        return said if to is None else f"{said}, a redirect to {_place(url, to)}; give the URL that it leads to"
    except OSError as error:
        return _printable(f"cannot post the event: {getattr(error, 'reason', None) or error}; {_remedy(url)}")
    except (ValueError, http.client.HTTPException) as error:  # either may quote the URL, or what a stranger has sent
        return f"cannot post the event: {type(error).__name__}; {_remedy(url)}"


def _remedy(url: str) -> str:
    """Returns what to check; never a proxy's address, which may contain a password."""
    from urllib.parse import urlsplit
    from urllib.request import getproxies, proxy_bypass

    try:
        parts = urlsplit(url)
        variable = f"{parts.scheme.upper()}_PROXY"
        has_proxy = parts.scheme in getproxies() and not proxy_bypass(parts.netloc)
    except ValueError:
        return "check the URL"
    if has_proxy:
        return f"check the proxy that {variable} names, or put the host into NO_PROXY"
    proxy = f"if only a proxy leads there, set {variable} for the command that has --on-event-url"
    return f"check the URL and the network; {proxy}"


def _place(url: str, to: str) -> str:
    """Returns the host alone: the rest of such a URL is often a secret."""
    from urllib.parse import urljoin, urlsplit

    try:
        parts = urlsplit(urljoin(url, to))
        place = f"{parts.scheme}://{parts.hostname or ''}" + (f":{parts.port}" if parts.port else "")
    except ValueError:
        return "a place that is not a URL"
    return _printable(place)


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def say(text: str) -> None:
    with suppress(OSError, ValueError):
        os.write(2, f"holdfast: warning: {text}\n".encode(errors="backslashreplace"))


def main() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # our parent may block some signals for itself
    settings = cast("dict[str, str]", json.loads(sys.stdin.buffer.readline()))
    command, url = settings["command"], settings["url"]
    deliveries: list[EventDelivery] = []
    if command:
        deliveries.append(EventDelivery("--on-event", lambda line: run_command(command, line)))
    if url:
        deliveries.append(EventDelivery("--on-event-url", lambda line: post(url, line)))
    for line in sys.stdin.buffer:
        for delivery in deliveries:
            delivery.put(line)
    for delivery in deliveries:
        delivery.end()
    for delivery in deliveries:
        delivery.join(END_TIMEOUT_S / len(deliveries))
    kill_running_command()
    for delivery in deliveries:
        delivery.report()
    os._exit(0)  # does not wait for calls that hang


if __name__ == "__main__":
    main()
