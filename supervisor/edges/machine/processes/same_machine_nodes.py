"""Which node of a job is a run, if several nodes of that job run on this machine?

The first is the machine itself. A further one is a node of its own: it has a number, a name, and folders.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.processes.job_claims import (
    Holder,
    JobClaims,
    claim_folders,
    holder,
    is_held,
    numbered,
    refusal,
)
from supervisor.errors import AlreadyExistsError

NUMBERS_MAX = 256
SETTLE_S = 0.2  # how long another run may take to write who it is


class NodePlace(msgspec.Struct, frozen=True):
    """The place of one run on this machine. `claims` hold the job's id there."""

    claims: JobClaims
    number: int  # 0: the machine's first node of the job
    name: str


def take(
    job_id: str, *, name: str = "", rank: int | None = None, meets_at: str = "", folders: Sequence[Path] | None = None
) -> NodePlace:
    """Takes the job's id on this machine, or a further place in the same job.

    `name`, `rank`: what this node would be called, and its rank if it was given one; `meets_at`: where the job's nodes
    meet, "" for a job of one node. Raises AlreadyExistsError if another job has the id, or processes of an earlier run
    are left.
    """
    clock = Clock()
    base = claim_folders() if folders is None else tuple(folders)
    until_s = 0.0  # counted from the first refusal: on a busy machine, that may come late
    while True:
        held = _held(job_id, base)
        try:
            if held and not (meets_at and _meet_at(meets_at, held.values())):
                raise refusal(job_id, [folder for number in held for folder in numbered(base, number)])
            number = next(number for number in itertools.count() if number not in held)
            own = _own_name(name, rank, number, {each.node for each in held.values() if each is not None})
            claims = JobClaims(numbered(base, number))
            claims.take(job_id, node=own, meets_at=meets_at)
            return NodePlace(claims, number, own)
        except AlreadyExistsError:
            until_s = until_s or clock.now_s() + SETTLE_S
            if not meets_at or clock.now_s() > until_s:
                raise
            os.sched_yield()  # Another run has just taken its place, and has not written who it is.


def has_further(job_id: str, meets_at: str) -> bool:
    """Returns whether this machine runs nodes of that job, which meet there, so that one more may join them."""
    held = _held(job_id, claim_folders())
    return bool(held) and _meet_at(meets_at, held.values())


def _meet_at(place: str, holders: Iterable[Holder | None]) -> bool:
    return all(each is not None and each.is_alive and each.meets_at == place for each in holders)


def _held(job_id: str, base: Sequence[Path]) -> Mapping[int, Holder | None]:
    """Returns which numbers are taken, and by whom, as far as that can be read."""
    found: dict[int, Holder | None] = {}
    for number in range(NUMBERS_MAX):
        folders = numbered(base, number)
        # Unlike Path.is_dir, isdir raises no error below a folder that another user has closed.
        if number and not any(os.path.isdir(folder) for folder in folders):
            break
        if any(is_held(job_id, folder) for folder in folders):
            found[number] = holder(job_id, folders)
    return found


def _own_name(name: str, rank: int | None, number: int, taken: set[str]) -> str:
    """Returns the name, made different by the node's rank or a number where another node here has it."""
    suffixes = (suffix for suffix in (rank, number, *range(NUMBERS_MAX)) if suffix is not None)
    others = (f"{name}-{suffix}" for suffix in suffixes)
    return next((each for each in (name, *others) if each not in taken), name)
