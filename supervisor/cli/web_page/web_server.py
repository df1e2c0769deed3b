"""Who may see the web page, and what does each path answer? Only web_control.py changes a job."""

from __future__ import annotations

import asyncio
import hmac
import json
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from importlib import resources
from pathlib import Path

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from supervisor.cli.report import rendered, whole_life
from supervisor.cli.supervisor_discovery import Supervisors
from supervisor.cli.web_page.page_contents import Known, PageContents
from supervisor.cli.web_page.web_control import Control, refusal, refuse_all
from supervisor.cli.web_page.web_sessions import Sessions
from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.folders import socket_dir, state_dir
from supervisor.edges.machine.folders.inotify import DirectoryWatch
from supervisor.edges.machine.own_process.kernel_error_remedies import NoThreadError
from supervisor.edges.machine.own_process.threads import in_thread
from supervisor.edges.operators.cross_origin_check import page_elsewhere
from supervisor.errors import HoldfastError, NotFoundError
from supervisor.ports.timed_waits import pause

STREAMS_MAX = 32
ALIVE_S = 15.0  # a line that says nothing: a reader that has gone is noticed
GATHER_S = 0.2
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
FILES = {  # They say nothing about jobs: everybody may see them.
    "/": ("index.html", "text/html"),
    "/site.css": ("site.css", "text/css"),
    "/session.js": ("session.js", "text/javascript"),
    "/ranks.js": ("ranks.js", "text/javascript"),
    "/site.js": ("site.js", "text/javascript"),
    "/report.js": ("report.js", "text/javascript"),
}
Handler = Callable[[Request], Awaitable[Response]]


class Site:
    """The pages, and the contents of all of them."""

    def __init__(self, arguments: Namespace, token: str) -> None:
        self._arguments = arguments
        self._token = token
        self._sessions = Sessions(Clock().now_s)
        self._control = Control(arguments) if arguments.control else None
        self._changed = anyio.Event()  # a new one after each change
        self._is_over = False
        self._streams = 0
        self._loop = asyncio.get_running_loop()
        self._contents = PageContents(arguments, self._on_change)

    def app(self) -> Starlette:
        routes = [Route(path, self._file) for path in FILES]
        routes.append(Route("/session", self._guarded(self._sign_in), methods=["POST"]))
        routes.append(Route("/stream", self._guarded(self._stream)))
        routes.append(Route("/report/{job_id:path}", self._report_or_its_page))
        routes.append(Route("/job/{job_id:path}/{act}", self._guarded(self._act), methods=["POST"]))
        return Starlette(routes=routes)

    async def look_for_jobs(self) -> None:
        """Looks now, and whenever a supervisor appears or writes to a journal, until cancelled."""
        watch = DirectoryWatch()
        try:
            while True:
                for folder in self._folders():
                    with suppress(OSError):  # It is gone, or no watches are left: its jobs are seen at another look.
                        watch.add(folder)
                with suppress(NoThreadError):  # Then they are seen at another look.
                    await in_thread(self._contents.look_again)
                await anyio.wait_readable(watch)
                await pause(GATHER_S, why="what is written in one go is looked at once; a new socket listens by then")
                watch.take()
        finally:
            watch.close()

    def _folders(self) -> list[Path]:
        """Returns the folders of the journals, and those in which sockets of a node's supervisors appear."""
        folders = list(state_dir.places(self._arguments.state_dir))
        for candidate in socket_dir.candidates(self._arguments.socket_dir):
            folders += [candidate.path.parent, candidate.path]
        return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]

    def _on_change(self) -> None:
        """Wakes the streams; may be called in any thread."""
        with suppress(RuntimeError):  # The loop has ended, and this thread has not heard of it.
            self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    # --- who may see it

    def _guarded(self, answer: Handler) -> Handler:
        """Lets holders of the token or of a session in, unless a page of another address asks for them.

        Both come in the header Authorization, which no browser adds by itself: it sends cookies to every port of a
        host, also to a server of somebody else.
        """

        async def guarded(request: Request) -> Response:
            status, why = self._refused(request)
            if not status:
                return await answer(request)
            if request.method in ("GET", "HEAD"):
                return PlainTextResponse(f"cannot show jobs: {why}\n", status, headers=HEADERS)
            return refusal(status, f"cannot act on jobs: {why}")

        return guarded

    def _refused(self, request: Request) -> tuple[int, str]:
        """Returns a status and why; 0 for a request that is answered."""
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if scheme != "Session" and not (scheme == "Bearer" and self._is_token(secret)):
            return 401, "the token is missing or wrong; open the address that holdfast web has printed"
        if page := page_elsewhere(request.headers):
            return 403, f"{page} asks; open the address that holdfast web has printed"
        if scheme == "Session" and not self._sessions.is_open(secret, host):
            return 401, "the session has ended; open the address that holdfast web has printed"
        if scheme == "Session" and request.method == "POST" and origin is None:
            return 403, "a session is for the page, whose requests have the header Origin; send the token as a Bearer"
        return 0, ""

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self._token.encode())

    # --- what is answered

    async def _file(self, request: Request) -> Response:
        return _page_file(*FILES[request.url.path], policy=POLICY)

    async def _sign_in(self, request: Request) -> Response:
        """Gives the page a session for the token, so that it need not keep the token."""
        secret = self._sessions.begin(request.headers.get("host", ""))
        return JSONResponse({"session": secret, "control": self._control is not None}, headers=HEADERS)

    async def _act(self, request: Request) -> Response:
        return refuse_all(request) if self._control is None else await self._control.answer(request)

    async def _report_or_its_page(self, request: Request) -> Response:
        """Returns the report. A browser that opens the page sends no header of ours: it gets one that requests it."""
        if "authorization" not in request.headers:
            return _page_file("report.html", "text/html", policy=_report_policy())
        return await self._guarded(self._report)(request)

    async def _report(self, request: Request) -> Response:
        job_id = request.path_params["job_id"]

        def write() -> str:
            with Supervisors(self._arguments, say=lambda _: None) as supervisors:
                return rendered(whole_life(supervisors.find(job_id, verb="report on"), supervisors), ".html")

        try:
            page = await in_thread(write)
        except (HoldfastError, NoThreadError) as error:
            return PlainTextResponse(f"{error}\n", 404 if isinstance(error, NotFoundError) else 503, headers=HEADERS)
        return Response(page, media_type="text/html", headers=HEADERS)

    async def _stream(self, request: Request) -> Response:
        if self._streams >= STREAMS_MAX:
            return PlainTextResponse(f"cannot show jobs: {STREAMS_MAX} pages are open already\n", 503, headers=HEADERS)
        updates = self._updates(lambda: not self._refused(request)[0])
        return StreamingResponse(updates, media_type="text/event-stream", headers=HEADERS)

    async def _updates(self, is_permitted: Callable[[], bool]) -> AsyncIterator[str]:
        """Sends everything first, then the changes, as fast as this reader takes them."""
        known = Known()
        self._streams += 1
        try:
            with self._contents.reading():
                while not self._is_over and is_permitted():
                    changed = self._changed  # What happens from here on rings it.
                    yield f"data: {json.dumps(self._contents.updates(known))}\n\n"
                    while not changed.is_set():
                        with anyio.move_on_after(ALIVE_S):
                            await changed.wait()
                        if not is_permitted():
                            return
                        if not changed.is_set():
                            yield ":\n\n"
        finally:
            self._streams -= 1

    def close(self) -> None:
        """Ends the streams, so that the server need not wait for them."""
        self._is_over = True
        self._ring()


def _report_policy() -> str:
    """Permits what the report needs, too: it takes the place of the page that has asked for it."""
    from supervisor.report.page import policy

    permitted = policy().replace("script-src", "script-src 'self'").replace("style-src", "style-src 'self'")
    return f"{permitted}; connect-src 'self'; frame-ancestors 'none'"


def _page_file(name: str, kind: str, *, policy: str) -> Response:
    text = (resources.files("supervisor.cli.web_page") / "page" / name).read_text("utf-8")
    return Response(text, media_type=kind, headers={**HEADERS, "Content-Security-Policy": policy})
