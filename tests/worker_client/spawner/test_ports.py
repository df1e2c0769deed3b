"""Which port does a store get, and what is said if it can't have it?"""

from __future__ import annotations

import os
import socket
from itertools import pairwise
from pathlib import Path

import pytest

from worker_client.spawner import ports


def local_range() -> tuple[int, int]:
    low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return int(low), int(high)


def free_range(count: int) -> range:
    """Returns ports that no other process of this machine has: other tests run beside this one."""
    for first in range(10_000, local_range()[0] - count, count):
        if all(map(is_free, range(first, first + count))):
            return range(first, first + count)
    pytest.fail(f"this machine has no {count} neighbouring ports that are free")


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


class TestPorts:
    def test_a_chosen_port_and_its_neighbours_lie_outside_the_range_of_clients(self) -> None:
        low, high = local_range()
        for _ in range(50):
            fd, port = ports.listen("127.0.0.1", 0)
            os.close(fd)
            assert port >= 1024
            assert port + ports.NEIGHBOURS < low or port > high
            assert port + ports.NEIGHBOURS <= 65535

    def test_ports_of_jobs_differ(self) -> None:
        assert len({ports.choose("127.0.0.1") for _ in range(20)}) > 15

    def test_no_job_gets_a_port_on_which_the_script_of_another_counts(self) -> None:
        found = sorted({ports.choose("127.0.0.1") for _ in range(100)})
        assert min(after - before for before, after in pairwise(found)) > ports.NEIGHBOURS

    def test_the_neighbours_are_free(self, monkeypatch: pytest.MonkeyPatch) -> None:
        port = ports.choose("127.0.0.1")
        with socket.create_server(("127.0.0.1", port + 40)):
            monkeypatch.setattr(ports, "_candidates", lambda: [port, port + 41])
            assert ports.choose("127.0.0.1") == port + 41

    def test_a_range_that_leaves_no_room_is_used_all_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ports, "_local_port_range", lambda: (1024, 65535))
        assert 1024 <= ports.choose("127.0.0.1") <= 65535 - ports.NEIGHBOURS

    def test_a_range_is_kept_to_the_last_port(self) -> None:
        first = ports.choose("127.0.0.1")
        within = range(first, first + ports.NEIGHBOURS + 1)
        assert ports.choose("127.0.0.1", within) == first
        with pytest.raises(ports.NoPortError, match=r"no 65 neighbouring ports of .* \(room for 0 stores\)"):
            ports.choose("127.0.0.1", within[:-1])

    def test_a_range_has_room_for_as_many_stores_as_it_says(self) -> None:
        within = free_range(3 * (ports.NEIGHBOURS + 1) + 5)
        first, last = within[0], within[-1]
        held: list[socket.socket] = []
        try:
            found: set[int] = set()
            while len(found) < 3:
                fd, port = ports.listen("127.0.0.1", 0, within)
                held.append(socket.socket(fileno=fd))
                assert first <= port
                assert port + ports.NEIGHBOURS <= last
                found.add(port)
            with pytest.raises(
                ports.NoPortError,
                match=rf"^cannot serve a store on 127.0.0.1: .* of {first}-{last} are free \(room for 3 stores",
            ):
                ports.listen("127.0.0.1", 0, within)
        finally:
            for each in held:
                each.close()

    def test_an_ipv6_address(self) -> None:
        fd, port = ports.listen("::1", 0)
        with socket.create_connection(("::1", port)):
            os.close(fd)
