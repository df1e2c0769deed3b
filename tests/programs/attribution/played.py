"""An HTTP server that keeps its requests and answers as a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Played:
    """`answers`: the JSON text or broken bytes for each request; the last one repeats."""

    url: str = ""
    status: int = 200
    answers: list[bytes] = field(default_factory=lambda: [b"{}"])
    heard: list[Any] = field(default_factory=list[Any])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    came: threading.Event = field(default_factory=threading.Event)


@contextmanager
def played() -> Generator[Played]:
    state = Played()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            state.heard.append(json.loads(body))
            state.headers.append(dict(self.headers.items()))
            answer = state.answers.pop(0) if len(state.answers) > 1 else state.answers[0]
            self.send_response(state.status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
            state.came.set()

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join(10)
