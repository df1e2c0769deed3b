"""What was lost or doubled in a job whose supervisors were killed? Nothing may be, at any moment."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

Lines = Sequence[Mapping[str, object]]

_SAID = re.compile(r"(said|last) (\d+) (\d+) (\d+)\.")


def is_hang(cycle: int) -> bool:
    """Returns whether the rank that ends a cycle falls silent, as in scripts/failing_as_planned.py."""
    return cycle % 3 == 2


def failing_as_planned(events: Lines, started: Lines, *, cycles: int, ranks: int) -> list[str]:
    """Each of `cycles` cycles must fail by one rank, and the one after them must succeed."""
    expected = {(cycle, rank) for cycle in range(cycles + 1) for rank in range(ranks)}
    wrong = numbers(events)
    ran = Counter((int(str(line["cycle"])), int(str(line["rank"]))) for line in started)
    if any(count > 1 for count in ran.values()):
        wrong.append(f"workers were started twice: {[key for key, count in ran.items() if count > 1]}")
    for what, kinds in {"starts": {"worker_started"}, "ends": {"worker_failed", "worker_exited"}}.items():
        told = Counter((event["cycle"], event["rank"]) for event in events if event["kind"] in kinds)
        if told != Counter(expected):
            odd = {key: count for key, count in told.items() if count != 1} | dict.fromkeys(expected - {*told}, 0)
            wrong.append(f"{what} of workers that are not told exactly once: {odd}")
    for cycle in range(cycles):
        kind, word = ("hang_detected", "") if is_hang(cycle) else ("worker_failed", f"exit code {10 + cycle % 100}")
        told = [event for event in events if (event["kind"], event["cycle"]) == (kind, cycle)]
        if [event["rank"] for event in told if word in str(event["reason"])] != [cycle % ranks]:
            wrong.append(f"{kind} {word} of rank {cycle % ranks} in cycle {cycle} is not told once: {told}")
    decided = sum(event["kind"] == "restart_decided" for event in events)
    if decided != cycles:
        wrong.append(f"{decided} restarts were decided instead of {cycles}")
    return wrong


def wrapped_as_planned(events: Lines, traced: Lines, *, cycles: int, ranks: int) -> list[str]:
    """Each rank must be in each iteration of one call once, in its original process.

    A rank whose supervisor is away may hear of an iteration only after another rank has failed it, and enters the next.
    """
    wrong = numbers(events)
    fn = (line for line in traced if line["what"] == "fn")
    entered = Counter((int(str(line["iteration"])), int(str(line["rank"]))) for line in fn)
    expected = Counter((iteration, rank) for iteration in range(cycles + 1) for rank in range(ranks))
    failed = {(iteration, iteration % ranks) for iteration in range(cycles)}  # the ranks that leave by an exception
    missed = {key for key in expected - entered if key[0] < cycles and key not in failed}
    if entered != expected - Counter(missed):
        odd = (entered - expected) + (expected - entered)
        wrong.append(f"iterations in which not each rank was once: {sorted(odd.items())}")
    returned = Counter((line["rank"], line["value"]) for line in traced if line["what"] == "returned")
    if returned != Counter((rank, cycles) for rank in range(ranks)):
        wrong.append(f"the call did not return once on each rank: {returned}")
    lost = [event for event in events if event["kind"] in ("restart_decided", "worker_failed")]
    if lost:
        wrong.append(f"ranks were lost, or restarted: {lost}")
    return wrong


def numbers(events: Lines) -> list[str]:
    found = [int(str(event["sequence"])) for event in events]
    return [] if found == [*range(1, len(found) + 1)] else [f"event numbers have gaps, or come twice: {found}"]


def output(text: str, *, where: str, cycles: int, ranks: int) -> list[str]:
    """Ranks count aloud: no number may be missing or doubled; a rank that ends by itself prints the total."""
    said: dict[tuple[int, int], list[int]] = {}
    last: dict[tuple[int, int], list[int]] = {}
    for word, cycle, rank, number in _SAID.findall(text):
        (said if word == "said" else last).setdefault((int(cycle), int(rank)), []).append(int(number))
    wrong = [
        f"{where}: rank {rank} of cycle {cycle} has said {counted}"
        for (cycle, rank), counted in said.items()
        if counted != [*range(len(counted))]
    ]
    ended = {(cycle, cycle % ranks) for cycle in range(cycles)} | {(cycles, rank) for rank in range(ranks)}
    for cycle, rank in sorted(ended):
        if last.get((cycle, rank)) != [len(said.get((cycle, rank), []))]:
            wrong.append(f"{where}: the last words of rank {rank} in cycle {cycle} are {last.get((cycle, rank))}")
    return wrong
