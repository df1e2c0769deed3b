"""Do the ranks of several nodes learn where their supervisors meet, and does the store stay until the last one has?"""

from __future__ import annotations

import threading

import pytest

from worker_client.inprocess.exception import InternalError
from worker_client.inprocess.private_supervisor.node_meeting import NodeMeeting

TIMEOUT_S = 10.0


class Store:
    """The part of torch's stores that a meeting needs, for threads."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self.values[key] = value
            self._changed.notify_all()

    def add(self, key: str, amount: int) -> int:
        with self._changed:
            self.values[key] = str(int(self.values.get(key, "0")) + amount)
            return int(self.values[key])

    def wait(self, keys: list[str]) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: all(key in self.values for key in keys), TIMEOUT_S):
                raise RuntimeError("wait timeout\nwith a trace")

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self.values[key].encode()


def environment(rank: int, world_size: int = 3, local: int = 1) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(local)}


def meet_all(store: Store, where: str, world_size: int = 3) -> list[str]:
    """Plays three nodes; returns their actions, in order, once all have met."""
    order: list[str] = []

    def meet(rank: int) -> None:
        meeting = NodeMeeting(environment(rank, world_size), "job", lambda: store)
        if rank == 0:
            meeting.publish(where)
        order.append(f"rank {rank} knows {meeting.leader or where} in {meeting.attempt}")
        meeting.conclude()
        if rank == 0:
            order.append("closed")

    threads = [threading.Thread(target=meet, args=(rank,), daemon=True) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert order.pop() == "closed", "rank 0 waits for the last"
    (attempt,) = {each.rpartition(" ")[2] for each in order}
    return sorted(each.removesuffix(f" in {attempt}") for each in order)


def test_all_learn_of_the_leader_and_rank_0_waits_for_the_last() -> None:
    store = Store()
    assert meet_all(store, "here") == [f"rank {rank} knows here" for rank in range(3)]
    assert all(key.startswith("holdfast/meeting/job/") for key in store.values)


def test_what_earlier_starts_of_the_job_have_left_in_the_store_misleads_nobody() -> None:
    """The store of torchrun's agent outlives the ranks. A rank of the previous start has asked and got no answer."""
    store = Store()
    meet_all(store, "there")
    store.add("holdfast/meeting/job/asked", 1)
    assert meet_all(store, "here") == [f"rank {rank} knows here" for rank in range(3)]


def test_ranks_on_the_node_of_rank_0_need_no_word_of_the_leader() -> None:
    store = Store()
    first = threading.Thread(target=lambda: NodeMeeting(environment(0, 2, 2), "job", lambda: store))
    first.start()
    assert NodeMeeting(environment(1, 2, 2), "job", lambda: store).leader == ""
    first.join(TIMEOUT_S)


def test_a_store_that_fails_is_an_error_that_says_what_to_do() -> None:
    def fail() -> Store:
        raise RuntimeError("connection refused\nwith a trace")

    with pytest.raises(InternalError, match="nodes together: connection refused; check that all ranks reach MASTER_A"):
        NodeMeeting(environment(1), "job", fail)


def test_nodes_with_different_numbers_of_ranks_are_refused() -> None:
    with pytest.raises(InternalError, match="3 ranks can't run on nodes with 2 ranks each"):
        NodeMeeting(environment(0, 3, 2), "job", Store)
