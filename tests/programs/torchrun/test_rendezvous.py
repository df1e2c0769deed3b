"""Does our backend answer torchrun as torch's interface requires? Real handlers and stores, as threads of a process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousTimeoutError,
)

import holdfast_torchrun
from supervisor.errors import ConfigurationError
from supervisor.programs.torchrun import agent
from tests.e2e.launch import wait_until

LIMIT_S = 30.0


class Torchruns:
    """The handlers of one job; each plays the torchrun of a node."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._pool = ThreadPoolExecutor(16)
        self.handlers: list[RendezvousHandler] = []
        self._has_ended = False

    def start(self, number: int, nnodes: str, **config: object) -> RendezvousHandler:
        low, _, high = nnodes.partition(":")
        parameters = RendezvousParameters(
            "holdfast", f"127.0.0.1:{self.port}", "job", int(low), int(high or low), f"127.0.0.{number}", **config
        )
        self.handlers.append(holdfast_torchrun.create(parameters))
        return self.handlers[-1]

    def join(self, handler: RendezvousHandler) -> Future[RendezvousInfo]:
        return self._pool.submit(handler.next_rendezvous)

    def round_of(self, *handlers: RendezvousHandler) -> list[RendezvousInfo]:
        return [future.result(LIMIT_S) for future in [self.join(each) for each in handlers]]

    def until_led(self) -> None:
        def answers() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        wait_until(answers, timeout_s=LIMIT_S, what="a leader")

    def end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        for future in [self._pool.submit(each.shutdown) for each in self.handlers]:
            future.result(LIMIT_S)
        self._pool.shutdown()


@pytest.fixture
def torchruns() -> Generator[Torchruns]:
    started = Torchruns()
    yield started
    started.end()


def place(info: RendezvousInfo) -> tuple[str, int]:
    assert info.bootstrap_store_info is not None
    return info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port


def until(condition: Callable[[], object], what: str) -> None:
    wait_until(lambda: bool(condition()), timeout_s=LIMIT_S, what=what)


def test_all_agree_and_share_a_store_that_is_fresh_each_round_and_only_at_its_address(torchruns: Torchruns):
    first, second = torchruns.start(2, "2"), torchruns.start(3, "2")
    a, b = torchruns.round_of(first, second)
    assert [(each.rank, each.world_size) for each in (a, b)] == [(0, 2), (1, 2)]
    assert place(a) == place(b)
    assert place(a)[0] == "127.0.0.2"
    a.store.set("key", "of round 0")
    assert b.store.get("key") == b"of round 0"
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", place(a)[1])), "the store is served at more than one address"
    again_a, again_b = torchruns.round_of(first, second)
    assert place(again_a) == place(again_b) != place(a)
    assert not again_b.store.check(["key"])
    assert (first.get_backend(), first.get_run_id(), first.use_agent_store) == ("holdfast", "job", True)
    assert not first.is_closed()


def test_workers_can_keep_a_store_of_their_own(torchruns: Torchruns, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    first, second = torchruns.start(2, "2"), torchruns.start(3, "2")
    a, b = torchruns.round_of(first, second)
    assert not first.use_agent_store
    assert place(a) == place(b)
    with socket.socket() as probe:
        assert probe.connect_ex(place(a)), "nobody listens there before rank 0 does"


@pytest.mark.parametrize("kind", [socket.gaierror, ConfigurationError])
def test_names_are_looked_up_once(torchruns: Torchruns, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]):
    """The second is that of a node without an IPv4 route, while the endpoint's name is not known yet."""
    first, second = torchruns.start(2, "2"), torchruns.start(3, "2")
    torchruns.round_of(first, second)

    async def unknown(options: object) -> str:
        raise kind("Temporary failure in name resolution")

    monkeypatch.setattr(agent, "_ip_of", unknown)
    torchruns.round_of(first, second)
    other_job = Torchruns()
    with pytest.raises(RendezvousStateError, match=r"cannot serve the store .* name resolution; check --local-addr"):
        other_job.start(4, "1").next_rendezvous()
    other_job.end()


def test_a_member_that_comes_again_and_one_that_is_late_are_waited_for_by_the_others(torchruns: Torchruns):
    first, second = torchruns.start(2, "1:2", last_call_timeout="0"), torchruns.start(3, "1:2", last_call_timeout="0")
    (alone,) = torchruns.round_of(first)
    assert alone.world_size == 1
    late = torchruns.join(second)
    until(first.num_nodes_waiting, "a node that waits")
    assert not late.done()
    assert torchruns.join(first).result(LIMIT_S).world_size == late.result(LIMIT_S).world_size == 2
    assert first.num_nodes_waiting() == second.num_nodes_waiting() == 0
    again = torchruns.join(second)
    until(first.num_nodes_waiting, "a member that comes again")
    assert torchruns.join(first).result(LIMIT_S).world_size == again.result(LIMIT_S).world_size == 2


def test_a_job_that_ends_well_is_closed_for_all_and_a_surplus_node_ends_well(torchruns: Torchruns):
    first, second, third = torchruns.start(2, "2"), torchruns.start(3, "2"), torchruns.start(4, "2")
    torchruns.round_of(first, second)
    surplus = torchruns.join(third)
    until(lambda: _knows_of(torchruns, 3), "the third node")
    first.set_closed()
    assert first.is_closed(), "without a moment in which it is not"
    with pytest.raises(RendezvousClosedError, match="cannot join job job: this node has closed the rendezvous"):
        first.next_rendezvous()
    with pytest.raises(RendezvousGracefulExitError, match="has closed the rendezvous"):
        surplus.result(LIMIT_S)
    until(second.is_closed, "the close")
    assert second.num_nodes_waiting() == 0, "its workers may go on to their end"
    with pytest.raises(RendezvousClosedError, match=r"cannot join job job: node 127\.0\.0\.2/"):
        second.next_rendezvous()


def test_a_job_that_has_failed_on_one_node_ends_on_all(torchruns: Torchruns):
    first, second = torchruns.start(2, "2"), torchruns.start(3, "2")
    torchruns.round_of(first, second)
    try:
        raise ChildFailedError("train.py", {0: ProcessFailure(0, 1234, 1, "no error file")})
    except ChildFailedError:
        assert second.shutdown()
    until(first.num_nodes_waiting, "the end of the other's job")
    with pytest.raises(
        RendezvousClosedError, match=r"127.0.0.3/\d+ has closed .*: its workers have failed, and it has"
    ):
        first.next_rendezvous()


def test_the_end_of_an_agent_by_an_error_of_its_own_is_told_too(torchruns: Torchruns):
    first, second = torchruns.start(2, "2"), torchruns.start(3, "2")
    torchruns.round_of(first, second)
    try:
        raise ValueError("no\nroom")
    except ValueError:
        assert second.shutdown()
        assert second.shutdown(), "a second time is nothing"
    until(first.is_closed, "the close")
    with pytest.raises(RendezvousClosedError, match=r"ValueError: no$"):
        first.next_rendezvous()


def test_too_few_nodes_are_a_timeout_and_no_leader_is_a_lost_connection(torchruns: Torchruns):
    alone = torchruns.start(2, "2", join_timeout="0.2")
    with pytest.raises(
        RendezvousTimeoutError, match=r"1 of at least 2 nodes have joined \(127.0.0.2/\d+\) within 0.2 s"
    ):
        alone.next_rendezvous()
    alone.shutdown()
    follower = torchruns.start(3, "2", join_timeout="0.2", is_host="0")
    with pytest.raises(RendezvousConnectionError, match=f"127.0.0.1:{torchruns.port} is lost: connection refused"):
        follower.next_rendezvous()


def test_nodes_that_disagree_are_a_wrong_state(torchruns: Torchruns):
    first = torchruns.start(2, "2:2")
    waiting = torchruns.join(first)
    torchruns.until_led()
    other = torchruns.start(3, "1:2", is_host="0")
    with pytest.raises(RendezvousStateError, match="min_nodes is 1 here and 2 on the other nodes"):
        other.next_rendezvous()
    assert other.shutdown(), "this closes nothing for the others"
    second = torchruns.join(torchruns.start(4, "2"))
    assert waiting.result(LIMIT_S).world_size == second.result(LIMIT_S).world_size == 2


def test_a_wrong_token_is_refused_at_once(torchruns: Torchruns, tmp_path: Path):
    files = [tmp_path / "a", tmp_path / "b"]
    for path in files:
        path.write_text(f"a secret of this test {path.name}")
        path.chmod(0o600)
    torchruns.join(torchruns.start(2, "2", token_file=str(files[0])))
    torchruns.until_led()
    with pytest.raises(RendezvousConnectionError, match="refuses this node: it does not know the job's token"):
        torchruns.start(3, "2", token_file=str(files[1])).next_rendezvous()


def test_a_lost_leader_is_followed_by_another_and_stops_workers_only_where_others_could_go_on(torchruns: Torchruns):
    fixed, leader = torchruns.start(3, "2"), torchruns.start(2, "2")
    lead = torchruns.join(leader)
    torchruns.until_led()
    torchruns.join(fixed).result(LIMIT_S)
    lead.result(LIMIT_S)
    _kill(leader)
    again = torchruns.join(torchruns.start(4, "2"))
    infos = [each.result(LIMIT_S) for each in (torchruns.join(fixed), again)]
    assert sorted(each.rank for each in infos) == [0, 1]


def _knows_of(torchruns: Torchruns, count: int) -> bool:
    touches = [each._agent._touch for each in cast("list[Any]", torchruns.handlers)]
    peers = [each._peers for each in touches if each is not None]
    return any(len(each._state.known) == count for each in peers if hasattr(each, "_state"))


def _kill(handler: Any) -> None:  # noqa: ANN401 (a test looks behind the interface)
    """Ends its thread without a message, as for a killed process."""
    agent = handler._agent
    agent._loop.call_soon_threadsafe(agent._stop)
    agent._thread.join(LIMIT_S)
    agent._thread = None


def test_a_signal_ends_the_wait(torchruns: Torchruns):
    """torchrun's handler raises in the main thread, which waits for the rendezvous."""
    import os
    import signal

    def handler(number: int, frame: object) -> None:
        raise SignalException("asked to end", signal.Signals(number))

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        waiting = torchruns.start(2, "2")
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(SignalException):
            waiting.next_rendezvous()
    finally:
        signal.signal(signal.SIGUSR1, before)
