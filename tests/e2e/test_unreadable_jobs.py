"""What two real nodes of a job send each other, as whoever can capture packets sees it: with a token, no word of it."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.test_many_nodes import SCRIPT
from tests.e2e.test_many_nodes_daemons import Job, nodes

ALL_PROTOCOLS = 3  # Linux's ETH_P_ALL
PACKET_BYTES_MAX = 256 * 1024
BUFFER_BYTES = 32 * 1024 * 1024
LOOK_S = 0.1


class Capture:
    """Every packet of the loopback interface that contains the word, and how many there were at a port."""

    def __init__(self, word: bytes) -> None:
        self._word = word
        self.found: list[bytes] = []
        self.bytes_to: dict[int, int] = {}
        self.is_over = False

    def run(self, packets: socket.socket) -> None:
        while not self.is_over:
            try:
                packet = packets.recv(PACKET_BYTES_MAX)
            except TimeoutError:
                continue
            port = int.from_bytes(packet[36:38], "big")  # of TCP over IPv4 without options
            self.bytes_to[port] = self.bytes_to.get(port, 0) + len(packet)
            if self._word in packet:
                self.found.append(packet)


@contextmanager
def captured(word: str) -> Generator[Capture]:
    try:
        packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    except PermissionError:
        pytest.skip("NOT TESTED: only root may capture packets")
    with packets:
        packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        packets.bind(("lo", 0))
        packets.settimeout(LOOK_S)
        capture = Capture(word.encode())
        thread = threading.Thread(target=capture.run, args=(packets,))
        thread.start()
        try:
            yield capture
        finally:
            capture.is_over = True
            thread.join()


@pytest.mark.parametrize("has_token", [True, False])
def test_output_stacks_orders_and_the_jobs_name_are_not_on_the_wire(tmp_path: Path, has_token: bool):
    word = f"planted{secrets.token_hex(4)}"
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    with nodes(tmp_path, 2) as (a, b):
        body = "\n".join(f"    {line}" for line in SCRIPT.strip().splitlines())
        (tmp_path / "train.py").write_text(f"def {word}():\n{body}\nprint('{word}', flush=True)\n{word}()\n")
        with captured(word) as capture:
            job = Job(tmp_path, word, [a, b], "2", "60", conf=f"token_file={token}" if has_token else "")
            job.until_running(0, 4)
            assert word in a.holdfast("logs", job.job_id, "--rank", "3")
            assert word in a.holdfast("stacks", job.job_id, "--rank", "3")
            b.holdfast("restart", job.job_id)
            job.until_running(1, 4)
            job.let_end()
            assert job.exit_codes() == [0, 0]
        assert capture.bytes_to[job.port] > 2000
        assert bool(capture.found) == (not has_token)
