"""Does a listener learn of each pair once, and of a connection that ended?"""

from __future__ import annotations

import os
import socket
import struct

import pytest

from worker_client.inprocess.releasing.gloo_waits import hang_up

WAIT_S = 10.0


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0"])
def test_each_pair_of_a_listener_is_broken(host: str):
    try:
        listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError:
        pytest.skip("no IPv6 here")
    listener.settimeout(WAIT_S)
    with listener:
        assert hang_up([(listener.fileno(), os.fstat(listener.fileno()).st_ino)], 3) == 1
        numbers: list[int] = []
        for _ in range(3):
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(WAIT_S)
                numbers += struct.unpack("=q", connection.recv(8, socket.MSG_WAITALL))
                assert connection.recv(1) == b""
    assert sorted(numbers) == [0, 1, 2]


def test_what_does_not_listen_any_more_is_left_alone():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = (listener.fileno(), os.fstat(listener.fileno()).st_ino)
        with socket.create_connection(listener.getsockname()) as client:
            assert hang_up([(client.fileno(), os.fstat(client.fileno()).st_ino)], 3) == 0
    assert hang_up([place], 3) == 0
