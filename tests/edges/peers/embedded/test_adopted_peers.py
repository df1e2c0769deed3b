"""What do the private supervisors of several nodes know of each other, and does a successor know the same?"""

from __future__ import annotations

import socket
from pathlib import Path

import anyio
import pytest

from supervisor.config.job_spec import JobSpec
from supervisor.core.cluster.cluster_messages import NodeJoined, NodeSilent, Reported
from supervisor.edges.peers.embedded.adopted_peers import ANYWHERE, meet
from supervisor.edges.peers.questions.request_router import refuse
from supervisor.errors import ConfigurationError

LIMIT_S = 30.0


def test_the_leader_makes_up_a_secret_which_the_others_and_its_successor_share(tmp_path: Path):
    kept = tmp_path / "meeting.json"
    leader = meet(kept, "", "job", 2, 0, "127.0.0.1")
    assert leader.leads
    assert kept.stat().st_mode & 0o777 == 0o600
    assert meet(kept, "", "job", 2, 0, "127.0.0.1") == leader
    other = meet(tmp_path / "other.json", leader.text(), "job", 2, 1, "127.0.0.1")
    assert (other.leads, other.leader) == (False, leader.leader)
    assert meet(tmp_path / "other.json", "", "job", 2, 1, "127.0.0.1") == other
    assert leader.node < other.node
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", leader.leader.port))


def test_each_job_has_a_secret_of_its_own(tmp_path: Path):
    first, second = (meet(tmp_path / name, "", "job", 2, 0, "127.0.0.1") for name in ("a", "b"))
    assert first.leader.secret != second.leader.secret
    assert len(first.leader.secret) == 64


def test_a_name_is_told_as_it_is_and_served_at_every_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bound: list[tuple[str, int]] = []
    bind = socket.socket.bind
    monkeypatch.setattr(socket.socket, "bind", lambda own, address: (bound.append(address), bind(own, address)))  # pyright: ignore
    assert meet(tmp_path / "kept", "", "job", 2, 0, "node17").leader.host == "node17"
    assert bound == [(ANYWHERE, 0)]


def test_a_node_that_was_told_nothing_says_so(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="their leader is not known here"):
        meet(tmp_path / "kept", "", "job", 2, 1, "127.0.0.1")
    with pytest.raises(ConfigurationError, match="cannot meet the supervisors of the other nodes"):
        meet(tmp_path / "kept", "{", "job", 2, 1, "127.0.0.1")


def test_the_job_begins_once_all_nodes_are_there(tmp_path: Path):
    part = meet(tmp_path / "kept", "", "job", 3, 0, "127.0.0.1").part_of(JobSpec("job", ("train.py",)))
    assert (part.restart.min_nodes, part.restart.max_restarts) == (3, 0)


def nobody(event: object) -> None:
    del event


async def test_a_node_that_meets_another_leader_begins_again(tmp_path: Path):
    """Nothing of its conversation with the first leader counts for the second."""
    leader = meet(tmp_path / "leader", "", "job", 2, 0, "127.0.0.1")
    node = meet(tmp_path / "node", leader.text(), "job", 2, 1, "127.0.0.1")
    orphaned, up, came, over = anyio.Event(), anyio.Event(), anyio.Event(), anyio.Event()

    async def lead_at_first() -> None:
        async with leader.open_peers(lambda _: came.set(), refuse, nobody_else):
            up.set()
            await came.wait()
        over.set()

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lead_at_first)
            await up.wait()
            async with node.open_peers(nobody, refuse, orphaned.set) as peers:
                peers.report("job", NodeJoined(node.node, -1))
                await over.wait()
                async with leader.open_peers(nobody, refuse, nobody_else):
                    await orphaned.wait()


async def test_a_leader_to_which_a_nodes_successor_comes_begins_again(tmp_path: Path):
    leader = meet(tmp_path / "leader", "", "job", 2, 0, "127.0.0.1")
    node = meet(tmp_path / "node", leader.text(), "job", 2, 1, "127.0.0.1")
    orphaned, came = anyio.Event(), anyio.Event()
    reports: list[object] = []
    with anyio.fail_after(LIMIT_S):

        def post(event: object) -> None:
            reports.append(event)
            came.set()

        async with leader.open_peers(post, refuse, orphaned.set):
            async with node.open_peers(nobody, refuse, nobody_else) as peers:
                peers.report("job", NodeJoined(node.node, -1))
                await came.wait()
            async with node.open_peers(nobody, refuse, nobody_else):
                await orphaned.wait()
    told = [type(each.report) for each in reports if isinstance(each, Reported)]
    assert [each for each in told if each is not NodeSilent] == [NodeJoined]


def nobody_else() -> None:
    raise AssertionError("another one should begin again")
