"""How is one seed played, and how is a failure reported?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pool

from tests.sim.faults import DEPARTURES, Fault, draw_departures, draw_losses, draw_schedule
from tests.sim.setup import Setup, draw_setup, draw_wrapped_setup
from tests.sim.world import World

EVENTS_SHOWN = 60
CHUNK = 50  # seeds that one process plays at a time


@dataclass
class Played:
    """The results of many runs."""

    runs: int = 0
    events: int = 0
    struck: Counter[str] = field(default_factory=Counter[str])
    ends: Counter[str] = field(default_factory=Counter[str])
    failures: list[str] = field(default_factory=list[str])

    def add(self, world: World) -> None:
        self.runs += 1
        self.events += world.timeline.happened
        self.struck.update(str(fault.kind) for fault in world.struck)
        self.ends.update({str(host.verdict.state) for host in world.hosts.values() if host.verdict is not None})
        if world.complaints:
            self.failures.append(report(world))

    def __add__(self, other: Played) -> Played:
        return Played(
            self.runs + other.runs,
            self.events + other.events,
            self.struck + other.struck,
            self.ends + other.ends,
            self.failures + other.failures,
        )

    def __str__(self) -> str:
        struck = ", ".join(f"{kind} {count}" for kind, count in self.struck.most_common())
        ends = ", ".join(f"{end} {count}" for end, count in self.ends.most_common())
        return f"{self.runs} runs, {self.events} events, {len(self.failures)} failures; ends: {ends}; faults: {struck}"


def play_range(
    first: int,
    seeds: int,
    *,
    processes: int,
    nodes: int | None = None,
    leaving: bool = False,
    loses_data: bool = False,
    wrapped: bool = False,
) -> Generator[Played]:
    """Plays seeds side by side and yields the result of each part as it is there; close it to play no more."""
    chunks = [(at, min(CHUNK, first + seeds - at), nodes) for at in range(first, first + seeds, CHUNK)]
    with Pool(processes) as pool:
        mix = {"leaving": leaving, "loses_data": loses_data, "wrapped": wrapped}
        yield from pool.imap_unordered(partial(play_many, **mix), chunks)


def play_many(
    chunk: tuple[int, int, int | None], *, leaving: bool = False, loses_data: bool = False, wrapped: bool = False
) -> Played:
    """Plays this many seeds from this one on, with this many nodes; see `drawn`."""
    first, seeds, nodes = chunk
    played = Played()
    for seed in range(first, first + seeds):
        played.add(play_seed(seed, nodes=nodes, leaving=leaving, loses_data=loses_data, wrapped=wrapped))
    return played


def play(setup: Setup, schedule: Sequence[Fault]) -> World:
    return World(setup, schedule).run()


def play_seed(
    seed: int, *, nodes: int | None = None, leaving: bool = False, loses_data: bool = False, wrapped: bool = False
) -> World:
    return play(*drawn(seed, nodes=nodes, leaving=leaving, loses_data=loses_data, wrapped=wrapped))


def drawn(
    seed: int, *, nodes: int | None = None, leaving: bool = False, loses_data: bool = False, wrapped: bool = False
) -> tuple[Setup, tuple[Fault, ...]]:
    """Draws a setup and its faults. `leaving`: some nodes leave. `wrapped`: a wrapped call loses a node; see Setup."""
    if wrapped:
        setup = draw_wrapped_setup(seed, nodes=nodes)
        return setup, draw_losses(setup)
    setup = draw_setup(seed, nodes=nodes, loses_data=loses_data)
    return setup, draw_departures(setup) if leaving else draw_schedule(setup)


def shrunk(setup: Setup, schedule: Sequence[Fault], complaint: str) -> tuple[Fault, ...]:
    """Returns the schedule without the faults that the complaint does not need."""
    kept: tuple[Fault, ...] = tuple(schedule)
    about = complaint.partition(":")[0]
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for fault in kept:
            fewer: tuple[Fault, ...] = tuple(each for each in kept if each is not fault)
            if any(each.startswith(f"{about}:") for each in play(setup, fewer).complaints):
                kept, is_smaller = fewer, True
                break
    return kept


def report(world: World) -> str:
    """Describes a failed run: how to repeat it, with as few faults as possible."""
    setup = world.setup
    kept = shrunk(setup, world.schedule, world.complaints[0])
    smaller = play(setup, kept) if len(kept) < len(world.schedule) else world
    is_leaving = not setup.is_wrapped and any(fault.kind in DEPARTURES for fault in world.schedule)
    faults = draw_departures(setup) if is_leaving else draw_losses(setup) if setup.is_wrapped else draw_schedule(setup)
    numbers = ",".join(str(faults.index(fault)) for fault in kept if fault in faults)
    mix = " --lost-data" if setup.loses_data else " --wrapped" if setup.is_wrapped else ""
    lines = [
        f"seed {setup.seed} with {len(setup.names)} nodes: {world.complaints[0]}",
        f"again: python -m tests.sim --seed {setup.seed} --nodes {len(setup.names)} --faults {numbers or 'none'}{mix}"
        + (" --leaving" if is_leaving else ""),
        f"{setup.rules}",
        *(f"  fault {fault}" for fault in kept),
        *(
            f"  {at_s:9.3f} s {who} {event.kind}: {event.reason}"
            for at_s, who, event in smaller.event_log[-EVENTS_SHOWN:]
        ),
        *(f"  WRONG {each}" for each in smaller.complaints),
    ]
    return "\n".join(lines)
