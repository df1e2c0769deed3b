"""What can the attribution service be asked over HTTP, and what does it answer?

POST /logs {"log_path", "analysis_intent": "progressive"|"terminal", "user", "job_id"} submits a log;
GET /logs?log_path=… returns the result. Also: /healthz, /stats, /jobs, /inflight.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import anyio
import msgspec
from anyio.abc import TaskStatus
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from supervisor.config.redaction import redacted_url
from supervisor.edges.machine.own_process.side_threads import SideThreads
from supervisor.edges.machine.processes.tcp_peer_user import stranger_at
from supervisor.edges.operators import http_server
from supervisor.edges.operators.cross_origin_check import is_name_of_here, page_elsewhere
from supervisor.edges.operators.http_connection_limit import as_it_is
from supervisor.errors import ExhaustedError, InvalidRequestError
from supervisor.programs.attribution.posting import post_json
from supervisor.programs.attribution.submitted_logs import Analyses, Asked, Opinion, Result
from supervisor.programs.attribution.work_queue import WorkQueue

WAIT_S = 30.0
WAITING_MAX = 16  # callers: less than connections, so that others are answered meanwhile
BODY_BYTES_MAX = 65_536
PATH_BYTES_MAX = 4_095  # Linux's PATH_MAX without its final zero
EXPORT_TIMEOUT_S = 10.0
EXPORT_QUEUE_MAX = 256
EXPORTS_STUCK_MAX = 4
STOP_TIMEOUT_S = 4.0  # less than its supervisor waits for it to end

_log = logging.getLogger("holdfast.attribution")
_Answer = Callable[[Request], Awaitable[Response]]


class Submission(msgspec.Struct, frozen=True):
    log_path: str
    analysis_intent: Literal["progressive", "terminal"] = "terminal"
    user: str = ""
    job_id: str = ""


class Recommendation(msgspec.Struct, frozen=True):
    action: str
    reason: str
    source: str


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a GET; only the `status` "completed" has a recommendation."""

    status: str
    log_path: str
    user: str = ""
    job_id: str = ""
    analysis_intent: str = ""
    result: dict[str, object] | None = None
    recommendation: Recommendation | None = None
    error: str = ""


async def serve(
    folder: Path,
    opinion: Opinion | None,
    listeners: Sequence[socket.socket],
    stopped: anyio.Event,
    *,
    export_url: str = "",
    is_private: bool = False,
    login_of: Callable[[int], int] = as_it_is,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until stopped; then still analyses and exports what was submitted, for a limited time.

    No log outside `folder` is read. `opinion`: a model's about a judgement; None: there is no model.

    With `is_private`, which is for loopback addresses, it answers only this process's user, and root, and only by a
    name that means this machine. `login_of`: see http_server.serve.
    """
    exporter = _Exporter(export_url)
    analyses = Analyses(folder, opinion, take=exporter.take if export_url else None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(exporter.run)
        tasks.start_soon(analyses.run)
        async with anyio.create_task_group() as serving:
            await serving.start(
                partial(http_server.serve, Service(analyses, is_private=is_private).app, listeners, login_of=login_of)
            )
            task_status.started()
            await stopped.wait()
            serving.cancel_scope.cancel()
        with anyio.move_on_after(STOP_TIMEOUT_S):
            await analyses.idle()
            await exporter.line.emptied()
        tasks.cancel_scope.cancel()


def outcome_of(path: str, result: Result | None, problem: str, *, is_due: bool) -> Outcome:
    if result is None or is_due:
        status = "pending" if is_due else "failed" if problem else "unknown"
        return Outcome(status, path, error=problem)
    asked, judgement = result.asked, result.judgement
    details: dict[str, object] = msgspec.to_builtins(judgement)
    return Outcome(
        "completed",
        path,
        user=asked.user,
        job_id=asked.job_id,
        analysis_intent="terminal" if asked.is_terminal else "progressive",
        result=details,
        recommendation=Recommendation(judgement.advice, judgement.reason, result.source),
    )


def _json(status: int, document: object) -> Response:
    return Response(msgspec.json.encode(document) + b"\n", status, media_type="application/json")


def _why_no_path(text: str) -> str:
    """Returns why no file can have this path; "" if one can."""
    if "\0" in text:
        return "cannot read log_path: it has a zero byte; write the path of a log"
    if len(text.encode()) > PATH_BYTES_MAX:
        return f"cannot read log_path: it has more than {PATH_BYTES_MAX} bytes; write the path of a log"
    return ""


class Service:
    """What is answered, as a web application."""

    def __init__(self, analyses: Analyses, *, is_private: bool) -> None:
        self._analyses = analyses
        self._is_private = is_private
        self._waits = _Waits()

    def app(self) -> Starlette:
        answers: dict[tuple[str, str], _Answer] = {
            ("POST", "/logs"): self.submit,
            ("GET", "/logs"): self.tell,
            ("GET", "/healthz"): self._healthy,
            ("GET", "/stats"): self._stats,
            ("GET", "/jobs"): self._jobs,
            ("GET", "/inflight"): self._in_flight,
        }
        there = ", ".join(" ".join(each) for each in answers)

        async def elsewhere(request: Request, error: Exception) -> Response:
            status = error.status_code if isinstance(error, HTTPException) else 404
            return _json(status, {"error": f"cannot {request.method} {request.url.path}: ask for {there}"})

        return Starlette(
            routes=[Route(path, self._guarded(each), methods=[method]) for (method, path), each in answers.items()],
            exception_handlers={404: elsewhere, 405: elsewhere},
        )

    def _guarded(self, answer: _Answer) -> _Answer:
        async def guarded(request: Request) -> Response:
            if why := self._refusal(request):
                return _json(403, {"error": f"cannot answer: {why}"})
            return await answer(request)

        return guarded

    def _refusal(self, request: Request) -> str:
        """Returns why the client is refused; "" if it is not. It answers programs: no page has a reason to ask."""
        if page := page_elsewhere(request.headers):
            return f"{page} asks, and this service is for programs; use curl"
        if not self._is_private:
            return ""
        if whose := _stranger(request):
            return (
                f"this is a service for uid {os.geteuid()}, and this connection belongs to {whose}; start one of your "
                "own"
            )
        host = request.headers.get("host", "")
        if not is_name_of_here(host):
            return f"{host!r} is not a name of this machine; write its address, or localhost"
        return ""

    async def submit(self, request: Request) -> Response:
        try:
            body = await _body(request)
            asked = msgspec.json.decode(body, type=Submission)
        except ClientDisconnect:
            return Response(status_code=400)
        except OverflowError as error:
            return _json(413, {"error": str(error)})
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return _json(400, {"error": f"cannot read the request: {error}"})
        if why_not := _why_no_path(asked.log_path):
            return _json(400, {"error": why_not})
        is_terminal = asked.analysis_intent == "terminal"
        try:
            await self._analyses.submit(Asked(asked.log_path, is_terminal, asked.user, asked.job_id))
        except InvalidRequestError as error:
            return _json(403, {"error": str(error)})
        except ExhaustedError as error:
            return _json(503, {"error": str(error)})
        return _json(202, {"status": "pending", "log_path": asked.log_path})

    async def tell(self, request: Request) -> Response:
        wanted = request.query_params.get("log_path", "")
        if why_not := _why_no_path(wanted):
            return _json(400, {"error": why_not})
        try:
            path = await self._analyses.place(wanted)
        except InvalidRequestError as error:
            return _json(403, {"error": str(error)})
        except ExhaustedError as error:
            return _json(503, {"error": str(error)})
        log = self._analyses.logs.get(path)
        if log is None:
            return _json(404, Outcome("unknown", wanted, error="this log was not submitted"))
        if log.is_due and request.query_params.get("wait", "false") == "true":
            await self._waits.wait(log.changed)
        return _json(200, outcome_of(wanted, log.result, log.problem, is_due=log.is_due))

    async def _healthy(self, _: Request) -> Response:
        return _json(200, {"status": "ok"})

    async def _stats(self, _: Request) -> Response:
        results = [log.result for log in self._analyses.logs.values() if log.result is not None]
        advice = Counter(result.judgement.advice for result in results)
        return _json(200, {"logs": len(self._analyses.logs), "waiting": self._analyses.waiting, "advice": advice})

    async def _jobs(self, _: Request) -> Response:
        found: dict[str, list[Outcome]] = {}
        for path, log in self._analyses.logs.items():
            outcome = outcome_of(path, log.result, log.problem, is_due=log.is_due)
            found.setdefault(outcome.job_id, []).append(outcome)
        return _json(200, found)

    async def _in_flight(self, _: Request) -> Response:
        return _json(200, [path for path, log in self._analyses.logs.items() if log.is_due])


def _stranger(request: Request) -> str:
    """Returns whose process asks; "": this process's user's, or root's."""
    if request.client is None:
        return "a client without an address"
    try:
        return stranger_at((request.client.host, request.client.port), request.scope["server"])
    except OSError as error:
        return str(error)


async def _body(request: Request) -> bytes:
    """Raises OverflowError if it is too long."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            raise OverflowError(f"cannot read the request: its body has more than {BODY_BYTES_MAX} bytes")
    return body


class _Waits:
    """The callers that wait for results. Of too many, the one that has waited longest is told that it is pending."""

    def __init__(self) -> None:
        self._scopes: OrderedDict[anyio.CancelScope, None] = OrderedDict()

    async def wait(self, changed: anyio.Event) -> None:
        """Waits for WAIT_S at most."""
        if len(self._scopes) >= WAITING_MAX:
            self._scopes.popitem(last=False)[0].cancel()
        with anyio.move_on_after(WAIT_S) as scope:
            self._scopes[scope] = None
            try:
                await changed.wait()
            finally:
                self._scopes.pop(scope, None)


class _Exporter:
    """Posts each result to one URL. If that does not answer, only the export suffers."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._shown = redacted_url(url)
        self._threads = SideThreads(stuck_max=EXPORTS_STUCK_MAX)
        self.line: WorkQueue[bytes] = WorkQueue(most=EXPORT_QUEUE_MAX)

    async def take(self, result: Result) -> None:
        if self.line.is_full:
            _log.warning("cannot export a result: %d already wait for %s", EXPORT_QUEUE_MAX, self._shown)
            return
        self.line.put(msgspec.json.encode(outcome_of(result.asked.path, result, "", is_due=False)))

    async def run(self) -> None:
        await self.line.serve(self._post)

    async def _post(self, document: bytes) -> None:
        post = partial(post_json, self._url, document, EXPORT_TIMEOUT_S)
        try:
            await self._threads.call(post, timeout_s=EXPORT_TIMEOUT_S, discard=len)
        except (OSError, ValueError) as error:
            _log.warning("cannot export a result to %s: %s", self._shown, str(error).replace(self._url, self._shown))
