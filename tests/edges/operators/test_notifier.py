"""A command and a URL get events, and nothing waits for one that hangs, fails or does not exist."""

from __future__ import annotations

import http.server
import json
import logging
import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.config.event_hooks import EventHooks
from supervisor.edges.operators import notify_process
from supervisor.edges.operators.notifier import EventHandler, Notifier, notifying
from supervisor.ports.reports import RecordedEvent
from tests.e2e.launch import wait_until


def event(number: int = 1, kind: str = "worker_failed", reason: str = "rank 1 failed") -> RecordedEvent:
    return RecordedEvent("train", number, 10**18, kind, reason, cycle=2, node="n0", rank=1)


@contextmanager
def server(
    status: int = 200, delay: threading.Event | None = None, location: str = ""
) -> Generator[tuple[str, list[dict[str, object]]]]:
    """Yields its URL, and the list of posts and GETs. `delay`: it answers nobody before that is set."""
    posted: list[dict[str, object]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            posted.append({"got": self.path})
            self.send_response(200)
            self.end_headers()

        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if delay is not None:
                delay.wait(60)
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{serving.server_port}/hook", posted
        finally:
            if delay is not None:
                delay.set()
            serving.shutdown()
            thread.join()


def test_the_command_gets_each_event_as_json_and_in_variables(tmp_path: Path) -> None:
    log = tmp_path / "log"
    hooks = EventHooks(
        f'cat >> {log}; echo "$HOLDFAST_EVENT_KIND/$HOLDFAST_EVENT_RANK/$HOLDFAST_EVENT_REASON" >> {log}'
    )
    with notifying(hooks) as notifier:
        handler = EventHandler(notifier)
        for each in (event(1), event(2, "workers_started"), event(3, "job_failed", "it's $HOME; `id`")):
            record = logging.LogRecord("holdfast.jobs", logging.INFO, "", 0, "", (), None)
            record.event = each
            handler.emit(record)
        handler.emit(logging.LogRecord("holdfast", logging.INFO, "", 0, "no event", (), None))
    lines = log.read_text().splitlines()
    assert [json.loads(lines[0])["kind"], json.loads(lines[2])["kind"]] == ["worker_failed", "job_failed"]
    assert lines[1] == "worker_failed/1/rank 1 failed"
    assert lines[3] == "job_failed/1/it's $HOME; `id`"
    assert len(lines) == 4  # what every healthy run goes through is not notable


def test_the_url_gets_it_as_json_with_a_text_for_chats() -> None:
    with server() as (url, posted), notifying(EventHooks(url=url, kinds="all")) as notifier:
        notifier.tell(event(1, "workers_started", "all workers of cycle 0 have started"))
        notifier.close()
        assert posted[0]["kind"] == "workers_started"
        assert posted[0]["text"] == "job train: all workers of cycle 0 have started"


def test_a_command_that_hangs_and_a_dead_server_delay_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The end is bounded, too: undelivered events are reported, and the command is killed with what it started."""
    held = tmp_path / "held"
    os.mkfifo(held)
    with (
        open(os.open(held, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as reader,
        server(delay=threading.Event()) as (url, posted),
    ):
        notifier = Notifier(EventHooks(f"exec > {held}; echo runs; sleep 600 & sleep 600", url))
        began_s = time.monotonic()
        for number in range(1000):
            notifier.tell(event(number, reason="x" * 1000))
        assert time.monotonic() - began_s < 2
        notifier.close()
        assert time.monotonic() - began_s < 20
        assert len(posted) == 1
        assert reader.read(100) == b"runs\n"
        wait_until(lambda: reader.read(100) == b"", timeout_s=5, what="the end of the command and of its child")
    err = capfd.readouterr().err
    assert "--on-event did not receive" in err
    assert "--on-event-url did not receive" in err


def test_failures_are_said_once_and_the_next_event_is_told_all_the_same(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    with server(status=500) as (url, posted), notifying(EventHooks(f"echo x >> {log}; exit 3", url)) as notifier:
        for number in range(3):
            notifier.tell(event(number))
        notifier.close()
        assert len(posted) == 3
    assert log.read_text() == "x\n" * 3
    err = capfd.readouterr().err
    assert err.count("--on-event: the command ended with exit code 3 at worker_failed") == 1
    assert err.count("--on-event-url: the server answered 500") == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_the_message_names_the_host_alone(status: int) -> None:
    """urllib follows with a GET, without the event, and takes its answer for a success."""
    line = json.dumps({"job_id": "j", "reason": "r", "kind": "job_failed"}).encode()
    with server() as (other, got_there), server(status, location=f"{other}?secret=7") as (url, posted):
        said = notify_process.post(url, line, timeout_s=5)
    place = other.removesuffix("/hook")
    assert said.startswith(f"the server answered {status} ")
    assert said.endswith(f", a redirect to {place}; give the URL that it leads to")
    assert [each["kind"] for each in posted] == ["job_failed"]
    assert got_there == []


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ("gopher://there/secret", "gopher://there"),
        ("//there:9/x", "http://there:9"),
        ("http://[", "a place that is not a URL"),
        ("http://u:secret@there\x1b/", "http://there?"),
    ],
)
def test_odd_redirects_are_named_without_what_could_be_a_secret(location: str, place: str) -> None:
    line = json.dumps({"job_id": "j", "reason": "r"}).encode()
    with server(302, location=location) as (url, _):
        said = notify_process.post(url, line, timeout_s=5)
    assert said.endswith(f", a redirect to {place}; give the URL that it leads to")


def test_a_late_command_is_killed_with_what_it_started(tmp_path: Path) -> None:
    said = notify_process.run_command("sleep 600 & sleep 600", b'{"kind": "job_failed"}', timeout_s=0.2)
    assert said == "the command was killed: it ran for more than 0.2 s at job_failed"


LINE = json.dumps({"job_id": "j", "reason": "r"}).encode()


def test_nobody_answers_at_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    said = notify_process.post("http://127.0.0.1:9/", LINE, timeout_s=5)
    assert said.startswith("cannot post the event: [Errno ")
    assert said.endswith("; if only a proxy leads there, set HTTP_PROXY for the command that has --on-event-url")


def test_a_dead_proxy_is_named_by_its_variable_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its address may contain a password."""
    monkeypatch.setenv("http_proxy", "http://me:hunter2@127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    said = notify_process.post("http://chat.example.org/hook", LINE, timeout_s=5)
    assert said.startswith("cannot post the event: [Errno ")
    assert said.endswith("; check the proxy that HTTP_PROXY names, or put the host into NO_PROXY")
    assert "hunter2" not in said


def test_a_notifier_that_was_killed_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    notifier = Notifier(EventHooks("true"))
    process = notifier._process  # pyright: ignore[reportPrivateUsage]
    assert process is not None
    process.kill()
    process.wait()
    for number in range(3):
        notifier.tell(event(number))
    notifier.close()
    assert capfd.readouterr().err.count("events are no longer delivered") == 1
