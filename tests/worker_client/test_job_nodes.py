"""Does a rank know that its job is on several nodes, and its node's address?"""

from __future__ import annotations

import socket

import pytest

from worker_client import job_nodes


@pytest.mark.parametrize(
    ("environment", "local", "is_spread"),
    [
        ({}, 1, False),
        ({"WORLD_SIZE": "4"}, 4, False),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, 2, True),
        ({"WORLD_SIZE": "4", "SLURM_NNODES": "4"}, 1, True),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "none"}, 4, False),
    ],
)
def test_the_launcher_says_how_many_are_where(environment: dict[str, str], local: int, is_spread: bool):
    assert job_nodes.local_world_size(environment) == local
    assert job_nodes.has_other_nodes(environment) is is_spread


@pytest.mark.parametrize("master_addr", ["127.0.0.1", "127.0.0.9", "localhost", "name.invalid"])
def test_the_address_of_this_node_itself_or_one_that_is_unknown_stays_as_launched(master_addr: str):
    assert job_nodes.own_address(master_addr) == ""


def test_elsewhere_it_is_the_address_that_leads_to_the_master(monkeypatch: pytest.MonkeyPatch):
    class Probe(socket.socket):
        def connect(self, address: object, /) -> None:
            assert address == ("10.1.0.1", job_nodes.ANY_PORT)

        def getsockname(self) -> tuple[str, int]:
            return "10.1.0.2", 40000

    monkeypatch.setattr(socket, "socket", Probe)
    assert job_nodes.own_address("10.1.0.1") == "10.1.0.2"
