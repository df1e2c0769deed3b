"""Random faults at random moments, checked by what must hold in every run. A failure names its seed."""

from __future__ import annotations

import pytest

from supervisor.core.cluster import coordinator
from supervisor.core.facts import JobState
from tests.core.simulated_job import World
from tests.core.simulated_parts import QUIET, Odds, Record

SEEDS_PER_TEST = 100


def check_one_end(world: World, record: Record) -> None:
    assert record.complaints == []
    assert len(record.verdicts) == 1
    assert not any(worker.alive and not worker.stuck for worker in world.workers), "left behind"


def check_cycles(world: World, record: Record) -> None:
    cycles = record.spawned_cycles
    assert cycles == sorted(set(cycles)), "a cycle is started once, in order"
    used = coordinator.restarts_used(world.coordinator)
    assert used <= world.rules.restart.max_restarts
    assert used <= len(record.faults), "a unit is taken for a fault and nothing else"
    assert len(cycles) <= 1 + used + record.wishes.count("restart")


def check_hangs(world: World, record: Record) -> None:
    hangs = [(event.cycle, event.rank) for _, event in record.published if event.kind == "hang_detected"]
    assert len(hangs) == len(set(hangs)), "a hang is reported once"


def check_verdict(world: World, record: Record) -> None:
    verdict = record.verdicts[0]
    last = [worker for worker in world.workers if worker.cycle == max(record.spawned_cycles, default=-1)]
    match verdict.state:
        case JobState.SUCCEEDED:
            assert verdict.exit_code == 0
            assert [worker.exit_code for worker in last] == [0] * world.rules.local_world_size
        case JobState.STOPPED:
            assert "stop" in record.wishes
            assert verdict.exit_code in (1, 128 + 2, 128 + 15)
        case JobState.FAILED:
            assert record.faults or "exclude_this_node" in record.wishes
            assert verdict.exit_code == 1
        case _:
            raise AssertionError(verdict)
    assert verdict.reason
    told = [event.kind for _, event in record.published if event.kind != "spawner_killed"]  # It may not end by itself.
    assert told[-1] == f"job_{verdict.state}"


def check_nobody_is_signalled_without_a_cause(world: World, record: Record) -> None:
    if not record.faults and not record.wishes:
        assert record.verdicts[0].state is JobState.SUCCEEDED
        assert all(type(action).__name__ == "KillTree" for _, action in record.signals), "only leftovers"


CHECKS = (check_one_end, check_cycles, check_hangs, check_verdict, check_nobody_is_signalled_without_a_cause)


def play(seed: int, odds: Odds) -> Record:
    world = World(seed, odds)
    record = world.run()
    try:
        for check in CHECKS:
            check(world, record)
    except AssertionError as error:
        story = "\n".join(f"{at_s:9.3f} {event.kind}: {event.reason}" for at_s, event in record.published)
        raise AssertionError(f"seed {seed}: {error}\n{story}\n{record}") from error
    return record


@pytest.mark.parametrize("first_seed", range(0, 600, SEEDS_PER_TEST))
def test_every_run_ends_well(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        play(seed, Odds())


def test_every_run_of_many_faults_ends_well() -> None:
    harsh = Odds(
        spawner_fails=0.3,
        spawner_dies=0.4,
        store_fails=0.3,
        store_dies=0.3,
        spawn_fails=0.2,
        crashes=0.5,
        hangs=0.5,
        ignores_term=0.5,
        stuck=0.1,
        no_evidence=0.5,
        stop=0.4,
        restart=0.5,
        control=0.3,
    )
    for seed in range(10_000, 10_300):
        play(seed, harsh)


def test_without_faults_every_run_succeeds_in_its_first_cycle() -> None:
    for seed in range(50):
        record = play(seed, QUIET)
        assert record.spawned_cycles == [0]
        assert record.verdicts[0].state is JobState.SUCCEEDED


def test_the_same_seed_gives_the_same_run() -> None:
    assert World(7, Odds()).run() == World(7, Odds()).run()
