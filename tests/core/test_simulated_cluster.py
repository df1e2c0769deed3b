"""Three nodes and their coordinator under random faults and delays. A failure names its seed."""

from __future__ import annotations

import pytest

from supervisor.core.cluster import coordinator
from supervisor.core.facts import JobState
from tests.core.simulated_cluster import Cluster, Record

SEEDS_PER_TEST = 100


def check_one_end(world: Cluster, record: Record) -> None:
    assert record.complaints == []
    heard = {name: each for name, each in record.verdicts.items() if not world.nodes[name].is_lost}
    assert [len(each) for each in heard.values()] == [1] * len(heard)
    assert len({each[0] for each in heard.values()}) == 1, "the verdict is the same on all nodes"
    assert not any(rank.alive for each in world.nodes.values() for rank in each.ranks), "left behind"


def check_cycles(world: Cluster, record: Record) -> None:
    by_cycle: dict[int, list[tuple[str, int, tuple[str, int]]]] = {}
    for name, action in record.spawned:
        part = (name, action.assignment.group_rank, (action.store_host, action.store_port))
        by_cycle.setdefault(action.assignment.cycle, []).append(part)
    for cycle, parts in by_cycle.items():
        assert len({name for name, _, _ in parts}) == len({rank for _, rank, _ in parts}) == len(parts), parts
        assert len({store for _, _, store in parts}) == 1, f"cycle {cycle} has one store: {parts}"
        first = [name for name, rank, _ in parts if rank == 0]
        assert first == [parts[0][2][0]], f"the node of group rank 0 serves the store of cycle {cycle}: {parts}"


def check_budget(world: Cluster, record: Record) -> None:
    used = coordinator.restarts_used(world.coordinator)
    assert used <= world.rules.restart.max_restarts
    assert used <= len(record.faults), "a unit is taken for a fault and nothing else"
    assert world.coordinator.cycle <= used + record.wishes.count("restart")


def check_verdict(world: Cluster, record: Record) -> None:
    verdict = next(each[0] for name, each in record.verdicts.items() if not world.nodes[name].is_lost)
    match verdict.state:
        case JobState.SUCCEEDED:
            assert verdict.exit_code == 0
        case JobState.STOPPED:
            assert "stop" in record.wishes
        case _:
            assert record.faults, verdict


CHECKS = (check_one_end, check_cycles, check_budget, check_verdict)


def play(seed: int) -> Record:
    world = Cluster(seed)
    record = world.run()
    try:
        for check in CHECKS:
            check(world, record)
    except AssertionError as error:
        story = "\n".join(f"{at_s:9.3f} {who} {event.kind}: {event.reason}" for at_s, who, event in record.published)
        raise AssertionError(
            f"seed {seed}: {error}; {record.complaints}\n{story}\n{record.faults} {record.wishes}"
        ) from error
    return record


@pytest.mark.parametrize("first_seed", range(0, 400, SEEDS_PER_TEST))
def test_every_run_on_three_nodes_ends_well(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        play(seed)
