"""`python -m tests.sim`: does the production core keep its promises under random faults? Exit code 1 if it did not.

Without --seed, it plays many seeds in several processes. It replays a failing seed without the faults that the failure
does not need, and prints the command that repeats it.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from contextlib import closing

from supervisor.core.cluster import coordinator
from tests.sim.faults import draw_many
from tests.sim.playing import Played, drawn, play, play_range, report
from tests.sim.setup import large_setup

GARBAGE = 200_000  # objects between two collections: each full one visits the states of all nodes


def _numbers(text: str) -> tuple[int, ...]:
    return () if text == "none" else tuple(map(int, text.split(",")))


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, help="play this one alone, and show its events")
    parser.add_argument("--nodes", type=int, help="that many, instead of what the seed says")
    parser.add_argument(
        "--faults", type=_numbers, help="play only these of the seed's faults, for example 0,3; or none"
    )
    parser.add_argument("--leaving", action="store_true", help="in each run, nodes leave the job")
    parser.add_argument(
        "--lost-data",
        action="store_true",
        help="elect all leaders, and lose the backend's data often",
    )
    parser.add_argument("--wrapped", action="store_true", help="all ranks are in a wrapped call, which loses a node")
    parser.add_argument("--stop-after", type=int, default=5, help="failures (default: %(default)s)")
    parser.add_argument("--large", type=int, metavar="FAULTS", help="one long job on --nodes nodes with so many faults")
    return parser.parse_args()


def _one(seed: int, numbers: tuple[int, ...] | None, given: argparse.Namespace) -> int:
    setup, schedule = drawn(
        seed, nodes=given.nodes, leaving=given.leaving, loses_data=given.lost_data, wrapped=given.wrapped
    )
    world = play(setup, schedule if numbers is None else [schedule[number] for number in numbers])
    if world.complaints:
        print(report(world))
        return 1
    for number, fault in enumerate(schedule):
        print(f"fault {number}: {fault}")
    for at_s, who, event in world.event_log:
        print(f"{at_s:9.3f} s {who} {event.kind}: {event.reason}")
    return 0


def _many(given: argparse.Namespace) -> int:
    processes = given.processes
    began_s = time.monotonic()
    played = Played()
    parts = play_range(
        given.first, given.seeds, processes=processes, nodes=given.nodes, leaving=given.leaving,
        loses_data=given.lost_data, wrapped=given.wrapped,
    )  # fmt: skip
    with closing(parts):
        for part in parts:
            played += part
            for failure in part.failures:
                print(f"{failure}\n", flush=True)
            if len(played.failures) >= given.stop_after:
                break
            if played.runs % 5000 == 0:
                print(f"{played.runs} runs, {time.monotonic() - began_s:.0f} s", file=sys.stderr)
    print(f"{played}; {time.monotonic() - began_s:.0f} s on {processes} processes")
    return 1 if played.failures else 0


def _large(seed: int, nodes: int, faults: int) -> int:
    setup = large_setup(seed, nodes=nodes, faults=faults)
    gc.freeze()
    gc.set_threshold(GARBAGE)
    began_s = time.process_time()
    world = play(setup, draw_many(setup, faults))
    state = world.leader.coordinator
    used = coordinator.restarts_used(state) if state is not None else 0
    print(
        f"{nodes} nodes, {len(world.struck)} faults, {used} restarts, {world.timeline.happened} events: "
        f"{world.leader.verdict}; {time.process_time() - began_s:.0f} s of CPU"
    )
    for complaint in world.complaints:
        print(f"WRONG {complaint}")
    return 1 if world.complaints else 0


def main() -> int:
    given = _parsed()
    if given.large:
        return _large(given.seed or 0, given.nodes or 1000, given.large)
    if given.seed is not None:
        return _one(given.seed, given.faults, given)
    return _many(given)


if __name__ == "__main__":
    sys.exit(main())
