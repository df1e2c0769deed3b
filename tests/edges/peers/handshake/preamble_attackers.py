"""Plays strangers who keep connections to a leader before the handshake, in a process of their own.

Arguments: port, own address, user, how many connections, what each of them says: "idle" nothing, "half" a part of a
proof, "slow" a byte per second, "letter" a kind without a proof, "hello" a kind and the beginning of a TLS
handshake. Who is closed comes back after a second. Prints a line once all have connected for the first time.
"""

from __future__ import annotations

import os
import resource
import select
import socket
import ssl
import sys
import time

AGAIN_S = 1.0
KIND, PROVEN_KIND = b"d", b"D"
SLOWLY = PROVEN_KIND + bytes(31)


def client_hello() -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(incoming, outgoing).do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError


class Strangers:
    def __init__(self, port: int, host: str, count: int, what: str) -> None:
        self._port = port
        self._host = host
        self._what = what
        self._says = {"half": SLOWLY[:7], "letter": KIND, "hello": KIND + client_hello()}.get(what, b"")
        self._epoll = select.epoll()
        self._by_number: dict[int, socket.socket] = {}
        self._due = [time.monotonic()] * count
        self._slow_at_s = 0.0
        self._said: dict[int, int] = {}

    def play(self) -> None:
        is_told = False
        while True:
            now_s = time.monotonic()
            self._due.sort()
            while self._due and self._due[0] <= now_s:
                self._due.pop(0)
                self._connect()
            if not is_told:
                is_told = True
                print("all have connected", flush=True)
            if self._what == "slow" and now_s >= self._slow_at_s:
                self._slow_at_s = now_s + 1
                for number, sock in list(self._by_number.items()):
                    self._say_slowly(number, sock)
            for number, _ in self._epoll.poll(0.2, 4096):
                self._read(number)

    def _connect(self) -> None:
        sock = socket.socket()
        sock.bind((self._host, 0))
        sock.settimeout(5)
        try:
            sock.connect(("127.0.0.1", self._port))
            if self._says:
                sock.send(self._says)
        except OSError:
            sock.close()
            self._due.append(time.monotonic() + AGAIN_S)
            return
        sock.setblocking(False)
        self._by_number[sock.fileno()] = sock
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _say_slowly(self, number: int, sock: socket.socket) -> None:
        said = self._said.get(number, 0)
        try:
            sock.send(SLOWLY[said : said + 1])
        except OSError:
            return
        self._said[number] = min(said + 1, len(SLOWLY) - 1)

    def _read(self, number: int) -> None:
        try:
            is_open = bool(self._by_number[number].recv(65536))
        except OSError:
            is_open = False
        if not is_open:
            self._epoll.unregister(number)
            self._by_number.pop(number).close()
            self._said.pop(number, None)
            self._due.append(time.monotonic() + AGAIN_S)


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    strangers = Strangers(int(sys.argv[1]), sys.argv[2], int(sys.argv[4]), sys.argv[5])
    if int(sys.argv[3]) != os.getuid():
        os.setuid(int(sys.argv[3]))
    strangers.play()
