"""A server that answers each connection with bytes that a test chooses, slowly, or not at all."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Callable, Generator

from supervisor.edges.peers.transport.cluster_tls import TlsFiles


class Hostile:
    def __init__(self, port: int, scheme: str) -> None:
        self.url = f"{scheme}://127.0.0.1:{port}"
        self.requests: list[bytes] = []


def says(answer: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(answer)


def json_of(text: str, status: str = "200 OK") -> Callable[[socket.socket], None]:
    body = text.encode()
    return says(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status.encode(), len(body), body))


def endless(first: bytes, more: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.sendall(first)
        while True:
            connection.sendall(more)

    return answer


def silent(connection: socket.socket) -> None:
    while connection.recv(1024):
        pass


@contextlib.contextmanager
def hostile(answer: Callable[[socket.socket], None], tls: TlsFiles | None = None) -> Generator[Hostile]:
    """Reads a request, answers, and closes the connection. `tls`: of an https server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Hostile(listener.getsockname()[1], "https" if tls else "http")
        secured = _secured(tls) if tls else None
        threads: list[threading.Thread] = []

        def meet(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                connection.settimeout(20)
                with secured.wrap_socket(connection, server_side=True) if secured else connection as told:
                    server.requests.append(_request(told))
                    answer(told)

        def listen() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threads.append(threading.Thread(target=meet, args=(connection,), daemon=True))
                    threads[-1].start()

        accepting = threading.Thread(target=listen, daemon=True)
        accepting.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(5)
            for thread in threads:
                thread.join(5)


def _secured(tls: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    return context


def _request(connection: socket.socket) -> bytes:
    """Reads a request with its body, which may come later than its head."""
    request = connection.recv(65536)
    head, _, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    missing = int(length[1]) - len(body) if length else 0
    while missing > 0 and (more := connection.recv(65536)):
        request, missing = request + more, missing - len(more)
    return request
