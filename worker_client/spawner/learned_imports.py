"""What do the workers import by themselves, so that it can be loaded ahead for the next ones? The spawner's side.

The first lesson comes as soon as every worker of a cycle has begun to import torch: a successor that loads it can be
started beside them. The next one comes when they have imported nothing for some seconds: it has all installed modules
that every worker has imported before its process group, and the parts of torch after it, if their import took long
enough.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from holdfast_wire.spawner_link import Learned

from . import import_observation, preload
from .event_loop import Events
from .import_observation import Import, Notes, Slot
from .late_changes import is_read_at_load
from .preload_environment import assignment

RANKS_MAX = 256  # local ranks above are not watched, and then nothing is learned
WORTH_NS = 150_000_000  # shorter imports are not worth a new interpreter
_RESTS_MAX = 2
_NAMED_MAX = 6


class LearnedImports:
    """What the workers of one spawner have taught so far."""

    def __init__(self, loaded: tuple[str, ...] = (), first: tuple[str, ...] = (), *, wanted: bool = True) -> None:
        """`loaded`: the steps carried out already; `first`: the modules of the first lesson, if one is due."""
        self._loaded = loaded
        self._first = first
        self._page = mmap.mmap(-1, RANKS_MAX * import_observation.SLOT_BYTES) if wanted else None
        self._rests_left = _RESTS_MAX
        self._cycle = -1
        self._slots: dict[int, Slot] = {}
        self._seen: dict[int, Notes] = {}

    def begin(self, cycle: int, local_ranks: Collection[int]) -> None:
        """Prepares for workers that are about to start."""
        if self._page is None:
            return
        if cycle != self._cycle:
            self._cycle = cycle
            self._slots, self._seen = {}, {}
        if max(local_ranks, default=0) >= RANKS_MAX:
            self._end()
            return
        for local_rank in local_ranks:
            slot = self._slots[local_rank] = Slot(self._page, local_rank)
            slot.clear()

    def observe(self, local_rank: int) -> None:
        """Begins to observe, in a worker that was just forked."""
        if self._page is not None:
            import_observation.observe(Slot(self._page, local_rank))

    def look(self, events: Events, rest_after_s: float, tell: Callable[[Learned], None]) -> None:
        """Checks the workers' notes: sends the first lesson now, the other one once nothing more comes."""
        if not self.has_news():
            return
        if (lesson := self.first()) is not None:
            tell(lesson)

        def tell_rest() -> None:
            last_ns = max((slot.stamped_ns for slot in self._slots.values()), default=0)
            left_s = rest_after_s - (time.monotonic_ns() - last_ns) / 1e9
            if left_s > 0:  # A single import may take longer than that.
                events.set_timer("learned", left_s, tell_rest)
            elif (lesson := self.rest()) is not None:
                tell(lesson)

        events.set_timer("learned", rest_after_s, tell_rest)

    def has_news(self) -> bool:
        """Returns whether a worker has noted anything since the last call."""
        if self._page is None:
            return False
        before, self._seen = self._seen, {rank: slot.read() for rank, slot in self._slots.items()}
        return any(notes.imports or notes.objection for notes in self._seen.values()) and self._seen != before

    def first(self) -> Learned | None:
        """Returns the lesson about torch, once, after all workers have begun to import it."""
        if self._page is None or not self._first or not self._seen:
            return None
        for rank, notes in sorted(self._seen.items()):
            if notes.objection:
                return self._refuse(f"local rank {rank} {notes.objection}")
        common = common_imports(self._seen)
        at_torch = next((at for at, each in enumerate(common) if _is_torch(_name(each))), None)
        if at_torch is None:
            return None
        plan = plan_load([each for each in common[: at_torch + 1] if preload.is_of_torch(_name(each))])
        if plan.lost:
            return self._refuse(plan.lost)
        self._loaded = (*plan.steps, *(module for module in self._first if module not in plan.steps))
        self._first = ()
        reason = "every worker imports torch by itself: it is being loaded for the next cycles"
        return Learned(self._loaded, plan.folders, reason)

    def rest(self) -> Learned | None:
        """Returns the lesson about everything, once the workers import nothing more; again if a slow import follows."""
        if self._page is None or self._first or not self._seen:
            return None
        self._seen = {rank: slot.read() for rank, slot in self._slots.items()}
        common = common_imports(self._seen)
        new = [each for each in common if _name(each) not in self._loaded]
        if min(sum(each[rank].took_ns for each in new) for rank in self._seen) < WORTH_NS:
            return None
        plan = plan_load(common)
        more = list(dict.fromkeys(_name(each).partition(".")[0] for each in new if _name(each) in plan.steps))
        self._rests_left -= 1
        if plan.lost or not self._rests_left:
            self._end()
        remedy = "set it before the job is started, or after that import"
        lost = f"each worker loads its modules itself: {plan.lost}; {remedy}" if plan.lost else ""
        if not more:
            return Learned((), (), f"no more is loaded ahead: {plan.lost}", lost)
        # What this spawner had loaded was not seen to be imported.
        before = tuple(step for step in self._loaded if step not in plan.steps)
        steps = (*plan.steps, *before) if any(map(_is_torch, plan.steps)) else (*before, *plan.steps)
        self._loaded = steps
        named = ", ".join(more[:_NAMED_MAX]) + (f" and {len(more) - _NAMED_MAX} more" if len(more) > _NAMED_MAX else "")
        return Learned(
            steps, plan.folders, f"every worker imports {named}: it is being loaded for the next cycles", lost
        )

    def _refuse(self, why: str) -> Learned:
        self._end()
        lost = f"each worker loads torch itself: {why}; set it before the job is started, or import torch first"
        return Learned((), (), f"nothing is loaded ahead: {why}", lost)

    def _end(self) -> None:
        for slot in self._slots.values():
            slot.close()
        self._page = None


class Plan(NamedTuple):
    """The steps of a load, and what they need; `lost`: why there are no more of them."""

    steps: tuple[str, ...]
    folders: tuple[str, ...]
    lost: str


def common_imports(seen: Mapping[int, Notes]) -> list[Mapping[int, Import]]:
    """Returns the imports that all workers share, by worker, in the order of the lowest rank."""
    by_name = {rank: {each.name: each for each in notes.imports} for rank, notes in seen.items()}
    return [
        {rank: names[name] for rank, names in by_name.items()}
        for name in by_name[min(seen)]
        if all(name in names for names in by_name.values())
    ]


def plan_load(common: list[Mapping[int, Import]]) -> Plan:
    """Returns the imports in order, each after the variables that the workers had set before it."""
    steps: list[str] = []
    variables: dict[str, str | None] = {}
    folders: dict[str, None] = {}
    for each in common:
        name = _name(each)
        reads = is_read_at_load if preload.is_of_torch(name) else _may_be_read
        wanted, *others = [{key: value for key, value in one.changed.items() if reads(key)} for one in each.values()]
        differing = sorted({key for other in others for key in {*wanted, *other} if wanted.get(key) != other.get(key)})
        if differing:
            return Plan(tuple(steps), tuple(folders), f"{differing[0]} differs between ranks when they import {name}")
        for key in sorted({*wanted, *filter(reads, variables)}):
            value = wanted[key] if key in wanted else os.environ.get(key)
            if value != (variables[key] if key in variables else os.environ.get(key)):
                steps.append(assignment(key, value))
                variables[key] = value
        folders.update(dict.fromkeys(folder for one in each.values() for folder in one.folders))
        steps.append(name)
    return Plan(tuple(steps), tuple(folders), "")


def _may_be_read(variable: str) -> bool:
    """Returns whether an unknown package may read the variable when it is loaded. CUDA reads its own later."""
    return variable != "CUDA_VISIBLE_DEVICES"


def _name(each: Mapping[int, Import]) -> str:
    return next(iter(each.values())).name


def _is_torch(name: str) -> bool:
    return name.partition(".")[0] == "torch"
