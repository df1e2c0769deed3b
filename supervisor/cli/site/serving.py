"""Who may see the web page, and what does each path answer? Only control.py changes a job."""

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
from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from supervisor.cli.report import rendered, whole_life
from supervisor.cli.site.board import Board, Known
from supervisor.cli.site.control import Control, refusal, refuse_all
from supervisor.cli.supervisors import Supervisors
from supervisor.edges.machine.folders import socket_dir, state_dir
from supervisor.edges.operators.inotify import DirectoryWatch
from supervisor.errors import HoldfastError, NotFoundError
from supervisor.pauses import pause

COOKIE = "holdfast_web"
STREAMS_MAX = 32
ALIVE_S = 15.0  # a line that says nothing: a reader that has gone is noticed
GATHER_S = 0.2
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
READ_ONLY = '<meta name="control" content="">'  # With a token in it, the page shows what can be done to a job.
FILES = {
    "/": ("index.html", "text/html"),
    "/site.css": ("site.css", "text/css"),
    "/ranks.js": ("ranks.js", "text/javascript"),
    "/site.js": ("site.js", "text/javascript"),
}


class Site:
    """The pages, and the one board behind them."""

    def __init__(self, arguments: Namespace, token: str) -> None:
        self._arguments = arguments
        self._token = token
        self._control = Control(arguments, token) if arguments.control else None
        self._changed = anyio.Event()  # a new one after each change
        self._is_over = False
        self._streams = 0
        self._loop = asyncio.get_running_loop()
        self.board = Board(arguments, self._on_change)

    def app(self) -> Starlette:
        routes = [Route(path, self._guarded(self._file)) for path in FILES]
        routes.append(Route("/stream", self._guarded(self._stream)))
        routes.append(Route("/report/{job_id}", self._guarded(self._report)))
        routes.append(Route("/job/{job_id}/{act}", self._guarded(self._act), methods=["POST"]))
        return Starlette(routes=routes)

    async def look_for_jobs(self) -> None:
        """Looks now, and whenever a supervisor appears or writes to a journal, until cancelled."""
        watch = DirectoryWatch()
        try:
            while True:
                for folder in self._folders():
                    with suppress(OSError):  # It is gone, or no watches are left: its jobs are seen at another look.
                        watch.add(folder)
                await to_thread.run_sync(self.board.look_again)
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

    def _guarded(self, answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            given = request.query_params.get("token")
            if given is not None and self._is_right(given):
                response = RedirectResponse(request.url.path, 303, headers=HEADERS)
                response.set_cookie(COOKIE, self._token, httponly=True, samesite="strict")
                return response
            bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not self._is_right(request.cookies.get(COOKIE, "")) and not self._is_right(bearer):
                verb = "show" if request.method in ("GET", "HEAD") else "act on"
                why = (
                    f"cannot {verb} jobs: the token is missing or wrong; open the address that holdfast web has printed"
                )
                return PlainTextResponse(f"{why}\n", 401, headers=HEADERS) if verb == "show" else refusal(401, why)
            return await answer(request)

        return guarded

    def _is_right(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._token.encode())

    # --- what is answered

    async def _file(self, request: Request) -> Response:
        name, kind = FILES[request.url.path]
        text = (resources.files("supervisor.cli.site") / "page" / name).read_text("utf-8")
        if name == "index.html" and self._control is not None:
            text = text.replace(READ_ONLY, READ_ONLY.replace('""', f'"{self._control.page_token}"'))
        return Response(text, media_type=kind, headers={**HEADERS, "Content-Security-Policy": POLICY})

    async def _act(self, request: Request) -> Response:
        return refuse_all(request) if self._control is None else await self._control.answer(request)

    async def _report(self, request: Request) -> Response:
        job_id = request.path_params["job_id"]

        def write() -> str:
            with Supervisors(self._arguments, say=lambda _: None) as supervisors:
                return rendered(whole_life(supervisors.find(job_id, verb="report on"), supervisors), ".html")

        try:
            page = await to_thread.run_sync(write)
        except HoldfastError as error:
            return PlainTextResponse(f"{error}\n", 404 if isinstance(error, NotFoundError) else 503, headers=HEADERS)
        return Response(page, media_type="text/html", headers=HEADERS)

    async def _stream(self, request: Request) -> Response:
        if self._streams >= STREAMS_MAX:
            return PlainTextResponse(f"cannot show jobs: {STREAMS_MAX} pages are open already\n", 503, headers=HEADERS)
        return StreamingResponse(self._news(), media_type="text/event-stream", headers=HEADERS)

    async def _news(self) -> AsyncIterator[str]:
        """Sends everything first, then the changes, as fast as this reader takes them."""
        known = Known()
        self._streams += 1
        try:
            with self.board.reading():
                while not self._is_over:
                    changed = self._changed  # What happens from here on rings it.
                    yield f"data: {json.dumps(self.board.news(known))}\n\n"
                    while not changed.is_set():
                        with anyio.move_on_after(ALIVE_S):
                            await changed.wait()
                        if not changed.is_set():
                            yield ":\n\n"
        finally:
            self._streams -= 1

    def close(self) -> None:
        """Ends the streams, so that the server need not wait for them."""
        self._is_over = True
        self._ring()
