"""Does the service's HTTP interface do what its clients expect? A real process, asked over real sockets."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from supervisor.edges.operators.http_server import CONNECTIONS_MAX
from tests.etcd_server import free_ports
from tests.programs.attribution.played import played
from tests.programs.attribution.test_submitted_logs import FAILED

SERVE = "import sys; from supervisor.cli import main; sys.exit(main())"


@contextmanager
def served(folder: Path, *more: str) -> Generator[str]:
    (port,) = free_ports(1)
    command = [
        sys.executable,
        "-c",
        SERVE,
        "attribution",
        "--app-log-dir",
        str(folder),
        "--listen",
        f"127.0.0.1:{port}",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "LLM_API_KEY_FILE"}
    with subprocess.Popen([*command, *more], stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            assert re.search(rf"serving http://127.0.0.1:{port} ", line), line + process.stderr.read()
            yield f"http://127.0.0.1:{port}"
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()


def asked(url: str, body: dict[str, object] | None = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_a_log_is_submitted_and_judged_and_the_result_exported(tmp_path: Path) -> None:
    path = tmp_path / "train_cycle0.log"
    path.write_text(FAILED)
    with played() as listener, served(tmp_path, "--export-url", listener.url) as url:
        assert asked(f"{url}/healthz") == (200, {"status": "ok"})
        assert asked(f"{url}/logs?log_path={path}")[0] == 404
        submission: dict[str, object] = {
            "log_path": str(path),
            "analysis_intent": "terminal",
            "user": "u",
            "job_id": "7",
        }
        assert asked(f"{url}/logs", submission) == (202, {"status": "pending", "log_path": str(path)})
        status, found = asked(f"{url}/logs?log_path={path}&wait=true")
        assert status == 200
        assert found["status"] == "completed"
        reason = "rank 0: ValueError: x at a.py:3"
        assert found["recommendation"] == {"action": "RESTART", "reason": reason, "source": "rules"}
        assert (found["user"], found["job_id"]) == ("u", "7")
        assert asked(f"{url}/stats")[1] == {"logs": 1, "waiting": 0, "advice": {"RESTART": 1}}
        assert list(asked(f"{url}/jobs")[1]) == ["7"]
        assert asked(f"{url}/inflight")[1] == []
        assert listener.came.wait(20)
        assert listener.heard[0]["recommendation"]["reason"] == reason


def test_a_model_is_asked_where_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(FAILED)
    (tmp_path / "key").write_text("k\n")
    told = '{"action": "STOP", "reason": "says the model"}'
    with played() as model:
        model.answers = [json.dumps({"choices": [{"message": {"content": told}}]}).encode()]
        more = ("--llm-base-url", model.url, "--llm-model", "m", "--llm-api-key-file", str(tmp_path / "key"))
        with served(tmp_path, *more) as url:
            asked(f"{url}/logs", {"log_path": str(tmp_path / "log")})
            _, found = asked(f"{url}/logs?log_path={tmp_path / 'log'}&wait=true")
    assert found["recommendation"] == {"action": "STOP", "reason": "says the model", "source": "rules and model"}


def test_what_is_no_request_or_not_allowed_is_refused(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        assert asked(f"{url}/logs", {"log_path": "/etc/passwd"})[0] == 403
        status, answer = asked(f"{url}/logs", {"analysis_intent": "terminal"})
        assert (status, "log_path" in answer["error"]) == (400, True)
        assert asked(f"{url}/logs", {"log_path": str(tmp_path / "x"), "analysis_intent": "at once"})[0] == 400
        assert asked(f"{url}/logs?log_path=/etc/passwd")[0] == 403


def test_logs_that_are_huge_sparse_or_no_files_delay_no_other(tmp_path: Path) -> None:
    """Eight of them, twice as many as are read at the same time."""
    odd: list[Path] = []
    for number in range(4):
        odd.append(tmp_path / f"sparse{number}.log")
        with odd[-1].open("wb") as file:
            file.truncate(30 << 30)
        odd.append(tmp_path / f"fifo{number}.log")
        os.mkfifo(odd[-1])
    (tmp_path / "train_cycle0.log").write_text(FAILED)
    with served(tmp_path) as url:
        for each in odd:
            assert asked(f"{url}/logs", {"log_path": str(each)})[0] == 202
        begun_s = time.monotonic()
        assert asked(f"{url}/logs", {"log_path": str(tmp_path / "train_cycle0.log")})[0] == 202
        _, found = asked(f"{url}/logs?log_path={tmp_path / 'train_cycle0.log'}&wait=true")
        assert found["status"] == "completed"
        assert time.monotonic() - begun_s < 5
        _, sparse = asked(f"{url}/logs?log_path={odd[0]}&wait=true")
        assert sparse["recommendation"]["action"] == "UNKNOWN"
        assert "bytes were not examined" in sparse["recommendation"]["reason"]
        _, fifo = asked(f"{url}/logs?log_path={odd[1]}&wait=true")
        assert (fifo["status"], "it is not a regular file" in fifo["error"]) == ("failed", True)


def test_a_path_that_no_file_can_have_is_no_fault_of_the_service(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        for path in (f"{tmp_path}/a\0b", "\0", "x" * 5_000, f"{tmp_path}/{'x/' * 2_100}"):
            assert asked(f"{url}/logs", {"log_path": path})[0] == 400
            assert asked(f"{url}/logs?log_path={quote(path)}")[0] == 400
        bodies = [
            b'{"log_path": "a", "x": ' + b"[" * 30_000 + b"]" * 30_000 + b"}", b"[" * 60_000, b'{"log_path": "\xff"}',
            rb'{"log_path": "\ud800"}', rb'{"log_path": "\udc80 "}', b'{"log_path": -1}', b'{"log_path": null}', b"{}",
            b'{"log_path": "a", "user": 1e999}', b'{"log_path": "a", "analysis_intent": -1}', b"\xff\xfe", b"", b"-1",
        ]  # fmt: skip
        for body in bodies:
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"{url}/logs", body, timeout=60)
            with refused.value as answer:
                assert (answer.code, "error" in json.load(answer)) == (400, True), body[:40]
        long_name = f"{tmp_path}/{'x' * 300}"  # no file has it, but the path is one
        assert asked(f"{url}/logs", {"log_path": long_name, "user": "\0"})[0] == 202
        _, found = asked(f"{url}/logs?log_path={long_name}&wait=true")
        assert (found["status"], "File name too long" in found["error"]) == ("failed", True)


ASKS_AS = """
import encodings.idna, os, sys, urllib.error, urllib.request
os.setuid(int(sys.argv[1]))
try:
    with urllib.request.urlopen(sys.argv[2], sys.argv[3].encode() or None, timeout=60) as answer:
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""


def asked_as(uid: int, url: str, body: str = "") -> str:
    return subprocess.check_output([sys.executable, "-c", ASKS_AS, str(uid), url, body], text=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_at_a_loopback_address_another_user_has_nothing_read_and_learns_nothing(tmp_path: Path) -> None:
    path = tmp_path / "train_cycle0.log"
    path.write_text(FAILED)
    with served(tmp_path) as url:
        assert asked_as(0, f"{url}/logs", json.dumps({"log_path": str(path)})).startswith("202 ")
        assert asked(f"{url}/logs?log_path={path}&wait=true")[1]["status"] == "completed"
        submission = json.dumps({"log_path": str(tmp_path / "other.log")})
        for asking, body in ((f"{url}/logs", submission), (f"{url}/logs?log_path={path}", ""), (f"{url}/jobs", "")):
            answer = asked_as(54321, asking, body)
            assert answer.startswith("403 "), answer
            assert "this connection belongs to uid 54321; start one of your own" in answer
        assert asked(f"{url}/stats")[1]["logs"] == 1


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"Origin": "http://evil.example"}, "a page of 'http://evil.example' asks, and this service is for programs"),
        ({"Origin": "null"}, "a page of 'null' asks"),
        ({"Sec-Fetch-Site": "cross-site"}, "a page of another address asks"),
        ({"Host": "evil.example:50050"}, "'evil.example:50050' is not a name of this machine"),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, "'evil.example' is not a name of this machine"),
    ],
)
def test_no_page_in_a_browser_submits_a_log_or_reads_a_result(
    headers: dict[str, str], why: str, tmp_path: Path
) -> None:
    (tmp_path / "log").write_text(FAILED)
    body = json.dumps({"log_path": str(tmp_path / "log")}).encode()
    with served(tmp_path) as url:
        for data, path in ((body, "/logs"), (None, f"/logs?log_path={tmp_path / 'log'}"), (None, "/jobs")):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(urllib.request.Request(url + path, data, headers), timeout=60)
            with refused.value as answer:
                assert (answer.code, why in json.load(answer)["error"]) == (403, True)
        assert asked(f"{url}/stats")[1]["logs"] == 0
        port = url.rpartition(":")[2]
        assert asked(f"http://localhost:{port}/healthz")[0] == 200


def test_callers_who_wait_keep_no_other_from_an_answer(tmp_path: Path) -> None:
    path, key = tmp_path / "log", tmp_path / "key"
    path.write_text(FAILED)
    key.write_text("k")
    with socket.create_server(("127.0.0.1", 0)) as silent, ExitStack() as closing:
        model = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with served(tmp_path, "--llm-base-url", model, "--llm-model", "m", "--llm-api-key-file", str(key)) as url:
            assert asked(f"{url}/logs", {"log_path": str(path)})[0] == 202
            port = int(url.rpartition(":")[2])
            waiting: list[socket.socket] = []
            for _ in range(CONNECTIONS_MAX):
                waiting.append(closing.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)))
                waiting[-1].send(f"GET /logs?log_path={path}&wait=true HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            answer = HTTPResponse(waiting[0])  # It has waited longest.
            answer.begin()
            assert b'"status":"pending"' in answer.read()
            assert asked(f"{url}/healthz")[0] == 200
            assert asked(f"{url}/inflight")[1] == [str(path)]
