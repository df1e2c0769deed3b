"""Which address does each iteration's store get, and is everything restored?"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from worker_client import job_nodes
from worker_client.inprocess.call.rank_variables import STORE_NAME, RankVariables
from worker_client.inprocess.state import State

WAIT_S = 20.0


class Exchange:
    """Gives the others' values, and keeps this rank's."""

    def __init__(self, others: Mapping[int, str]) -> None:
        self.others = dict(others)
        self.given: list[tuple[str, str]] = []

    def __call__(self, name: str, value: str) -> Mapping[int, str]:
        self.given.append((name, value))
        return self.others | {1: value}


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "20000"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)


def entered(own: RankVariables, exchange: Exchange, *, call: int = 1, iteration: int = 1, active_rank: int = 1) -> str:
    """Returns MASTER_PORT of this iteration."""
    state = State(1, 2, active_rank=active_rank, active_world_size=2)
    state.iteration = iteration
    own.enter(state, call, exchange)
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == (str(active_rank), "2")
    return os.environ["MASTER_PORT"]


def test_without_a_launchers_store_the_address_is_the_scripts_own_affair():
    exchange = Exchange({})
    assert entered(RankVariables(), exchange) == "20000"
    assert exchange.given == []


def test_later_iterations_and_calls_use_the_store_of_active_rank_0(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    own, exchange = RankVariables(), Exchange({0: "31234"})
    assert entered(own, exchange, iteration=0) == "20000"
    assert exchange.given == []
    assert entered(own, exchange, iteration=1) == "31234"
    assert entered(own, exchange, call=2, iteration=0) == "31234"
    assert exchange.given == [(STORE_NAME, "")] * 2
    own.restore()
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["MASTER_PORT"]) == ("3", "4", "20000")


def test_active_rank_0_serves_it(monkeypatch: pytest.MonkeyPatch):
    made: list[tuple[object, ...]] = []

    def store(host: str, port: int, *, is_master: bool, wait_for_workers: bool) -> SimpleNamespace:
        made.append((host, port, is_master, wait_for_workers))
        if port == 20034:
            raise RuntimeError("the port is in use")
        return SimpleNamespace(port=port or 31002)

    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setitem(sys.modules, "torch.distributed", SimpleNamespace(is_available=lambda: True, TCPStore=store))  # pyright: ignore
    own, exchange = RankVariables(), Exchange({0: ""})
    assert entered(own, exchange, active_rank=0, iteration=2) == "20035"
    assert entered(own, exchange, active_rank=0) == "31002"
    assert [port for _, port, _, _ in made] == [20035, 20034, 0]
    assert {(host, is_master, waits) for host, _, is_master, waits in made} == {("127.0.0.1", True, False)}


def test_without_a_port_above_the_launchers_any_free_one_is_used(monkeypatch: pytest.MonkeyPatch):
    import torch  # here: else each worker of the suite would load it

    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_PORT", "65530")
    monkeypatch.setitem(sys.modules, "torch.distributed", torch.distributed)
    own = RankVariables()
    port = int(entered(own, Exchange({0: ""}), active_rank=0))
    assert 0 < port <= 65535
    assert port != 65530
    with socket.create_connection(("127.0.0.1", port), WAIT_S):
        pass
    own.restore()


@pytest.fixture
def on_two_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """This node is not that of MASTER_ADDR."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "10.1.0.1")
    monkeypatch.setattr(job_nodes, "own_address", {"10.1.0.1": "10.1.0.2"}.__getitem__)


@pytest.mark.usefixtures("on_two_nodes")
def test_the_address_moves_with_active_rank_0_to_another_node(monkeypatch: pytest.MonkeyPatch):
    made: list[tuple[object, ...]] = []

    def store(host: str, port: int, **_: object) -> SimpleNamespace:
        made.append((host, port))
        return SimpleNamespace(port=port)

    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setitem(sys.modules, "torch.distributed", SimpleNamespace(is_available=lambda: True, TCPStore=store))  # pyright: ignore
    own, exchange = RankVariables(), Exchange({0: ""})
    assert entered(own, exchange, active_rank=0) == "20034"
    assert made == [("10.1.0.2", 20034)]
    assert exchange.given == [(STORE_NAME, "20034 10.1.0.2")]
    assert os.environ["MASTER_ADDR"] == "10.1.0.2"
    exchange.others = {0: "31234 10.1.0.1"}  # it is back on the node of MASTER_ADDR
    assert entered(own, exchange) == "31234"
    assert os.environ["MASTER_ADDR"] == "10.1.0.1"
    exchange.others = {0: "31234 10.1.0.7"}
    assert (entered(own, exchange), os.environ["MASTER_ADDR"]) == ("31234", "10.1.0.7")
    with own.as_launched():
        assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("10.1.0.1", "20000")
    own.restore()
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("10.1.0.1", "20000")


@pytest.mark.usefixtures("on_two_nodes")
def test_on_the_node_of_master_addr_that_address_is_given(monkeypatch: pytest.MonkeyPatch):
    """Ranks on a node that came later may have been launched with another address."""
    monkeypatch.setattr(job_nodes, "own_address", {"10.1.0.1": ""}.__getitem__)
    own, exchange = RankVariables(), Exchange({})
    entered(own, exchange, active_rank=0)
    assert exchange.given == [(STORE_NAME, " 10.1.0.1")]


@pytest.mark.usefixtures("on_two_nodes")
def test_without_a_launchers_store_the_scripts_own_is_where_active_rank_0_is():
    own, exchange = RankVariables(), Exchange({})
    assert (entered(own, exchange, iteration=0), exchange.given) == ("20000", [])
    assert entered(own, exchange, active_rank=0) == "20000"
    assert exchange.given == [(STORE_NAME, " 10.1.0.2")]
    assert os.environ["MASTER_ADDR"] == "10.1.0.2"


@pytest.mark.usefixtures("on_two_nodes")
def test_others_are_served_only_where_a_store_of_the_scripts_own_may_be_missing(monkeypatch: pytest.MonkeyPatch):
    def serves() -> bool:
        return not isinstance(RankVariables().serving_others(), contextlib.nullcontext)

    assert not serves(), "the script has no torch.distributed"
    monkeypatch.setitem(sys.modules, "torch.distributed", SimpleNamespace())  # pyright: ignore
    assert serves()
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert not serves(), "the launcher serves it"
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert not serves(), "a rank of this node serves it itself"


def test_a_server_that_has_died_leaves_the_old_address(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert entered(RankVariables(), Exchange({})) == "20000"


def test_what_was_not_there_is_not_there_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RANK")
    own = RankVariables()
    own.enter(State(0, 1), 1, Exchange({}))
    assert os.environ["RANK"] == "None"
    own.restore()
    assert "RANK" not in os.environ
