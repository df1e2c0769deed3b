"""A wrapped function whose ranks die at named steps of its restarts, by a plan that all ranks compute alike.

    holdfast run --nproc-per-node 6 faulty_restart.py --step finalize --kinds kill,raise --who first
    holdfast run --nproc-per-node 8 --max-restarts 2000 faulty_restart.py --seed 7 --rounds 1000

Each round is one iteration of one call, with one fault. Every process writes its events to a file of its own in the
folder $TRACES; tests/e2e/fault_rounds.py reads them. No torch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from datetime import timedelta
from types import FrameType
from typing import NamedTuple, NoReturn, cast

from worker_client import inprocess
from worker_client.inprocess import CallWrapper, Compose, FrozenState, rank_assignment
from worker_client.inprocess.rank_assignment import RankAssignmentCtx

# In the order of a restart. The first ones end the iteration that has the fault, the others begin it.
ENDING = ("abort", "unwinding", "finalize", "health_check", "assignment", "between_exchanges", "assigned")
BEGINNING = ("initialize", "first_health_check", "entered", "returning", "completion_barrier")
COMMITTED = "completion"  # the call has succeeded by then; one kind only
KINDS = ("kill", "exit", "raise", "leave")
UNFIT = ("finalize", "health_check", "assignment", "between_exchanges", "assigned")  # a rank that raises there leaves
FOR_EVER_S = 3600.0
SECOND_FAULTS = 0.2  # as a share of all rounds
MOMENT_MAX_S = 0.06  # a restart is over by then
INJECTED = cast("CallWrapper", None)  # replaced by the Wrapper
SOFT_TIMEOUT_S = 20.0 if "--step" in sys.argv else 1.0  # random hangs must be over soon
INITIAL_RANK = int(os.environ.get("RANK", "0"))


def removes(step: str, kind: str) -> bool:
    """Returns whether the fault ends the rank's part in the call. Exceptions in `abort` never count."""
    match kind:
        case "kill" | "exit" | "moment":
            return True
        case "raise":
            return step in UNFIT
        case _:
            return kind == "leave" and step != "abort"


class Fault(NamedTuple):
    """One fault of an iteration. `trigger`: rank whose exception causes the restart; -1: none."""

    step: str
    kind: str
    victim: int
    trigger: int


class Plan:
    """Which fault does each iteration have? Each rank computes it itself, with the same result."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._seed: int = arguments.seed
        self._nproc: int = arguments.nproc
        self._step: str | None = arguments.step
        self._is_first = arguments.who == "first"
        # A round without a death separates two faults, so that a rank that died after a decision is gone before the
        # next.
        self._kinds = [kind for each in arguments.kinds.split(",") for kind in ("plain", each)]
        self.rounds: int = arguments.rounds if self._step is None else len(self._kinds)
        if self._step == COMMITTED:
            self.rounds -= 1

    def faults(self, iteration: int, world_size: int) -> tuple[Fault, ...]:
        if iteration >= self.rounds or world_size < 2:
            return ()
        if self._step is not None:
            return (self._given(iteration, world_size),)
        first = self._diced(iteration, world_size)
        return first, *self._second(first, iteration, world_size)

    def fault_at_the_end(self, world_size: int) -> Fault | None:
        is_planned = self._step == COMMITTED
        return Fault(COMMITTED, self._kinds[-1], 0 if self._is_first else world_size - 1, -1) if is_planned else None

    def _given(self, iteration: int, world_size: int) -> Fault:
        victim = 0 if self._is_first else world_size - 1
        kind, trigger = self._kinds[iteration], (victim + 1) % world_size
        if kind == "plain":
            return Fault("", kind, -1, trigger)
        step = str(self._step)
        return Fault(step, kind, victim, trigger if step in ENDING else -1)

    def _diced(self, iteration: int, world_size: int) -> Fault:
        """Draws a fault. A rank that leaves does not return, a killed one may. To keep enough ranks for all rounds,
        none leaves
        a world of at most three quarters, and none dies in one of at most half its size.
        """
        dice = random.Random(f"{self._seed} {iteration}")
        victim, trigger = dice.randrange(world_size), dice.randrange(world_size)
        kind = dice.choices([*KINDS, "moment", "sleep", "stop"], [20, 10, 30, 6, 30, 3, 1])[0]
        step = dice.choice([*ENDING, *BEGINNING]) if kind in KINDS else "entered"
        if removes(step, kind) and kind in ("raise", "leave") and world_size <= 3 * self._nproc // 4:
            kind = "kill"
        if (removes(step, kind) or kind == "stop") and world_size <= self._nproc // 2:
            step, kind = "entered", "raise"
        return Fault(step, kind, victim, trigger if step in ENDING or kind == "moment" else -1)

    def _second(self, first: Fault, iteration: int, world_size: int) -> tuple[Fault, ...]:
        """Sometimes kills another rank in the same restart, or in the one that follows from it."""
        dice = random.Random(f"{self._seed} {iteration} second")
        if dice.random() > SECOND_FAULTS or world_size <= self._nproc // 2 + 1:
            return ()
        victim = (first.victim + dice.randrange(1, world_size)) % world_size
        return (Fault(dice.choice([*ENDING, *BEGINNING]), "kill", victim, -1),)


class Rank:
    """This process: what it has seen, and what it must do."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.is_at_the_end = False  # a death now may come after the commit, which fails the job
        self.ended = -1  # the last iteration that a restart has ended here
        self._fault: Fault | None = None  # of that iteration, if this rank is its victim
        path = os.path.join(os.environ["TRACES"], f"{INITIAL_RANK}-{os.getpid()}.jsonl")
        self._trace = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, what: str, **more: object) -> None:
        line = json.dumps({"what": what, "initial_rank": INITIAL_RANK, "at_s": time.monotonic(), **more})
        os.write(self._trace, f"{line}\n".encode())

    def own_fault(self, iteration: int, rank: int, world_size: int) -> Fault | None:
        faults = self.plan.faults(iteration, world_size)
        return next((fault for fault in faults if fault.victim == rank), None)

    def meet(self, step: str, state: FrozenState) -> None:
        """Dies here, if that is the plan."""
        if (fault := self.own_fault(state.iteration, state.rank, state.world_size)) and fault.step == step:
            self.die(fault, state.iteration)

    def end(self, state: FrozenState) -> None:
        self.ended = state.iteration
        self._fault = self.own_fault(state.iteration, state.rank, state.world_size)

    def meet_in_assignment(self, step: str, iteration: int) -> None:
        """Handles a process that replaces a lost one: it assigns ranks for iterations in which it did not exist."""
        if self.ended == iteration and self._fault is not None and self._fault.step == step:
            self.die(self._fault, iteration)

    def die(self, fault: Fault, iteration: int) -> NoReturn:
        self.note("fault", iteration=iteration, step=fault.step, kind=fault.kind)
        match fault.kind:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(9)
            case "raise":
                raise ValueError(f"by intention in {fault.step}")
            case "leave":
                sys.exit(5)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case _:
                time.sleep(FOR_EVER_S)
        raise AssertionError(fault)

    def die_at_a_moment(self, iteration: int) -> None:
        """Dies wherever the main thread is by then."""
        wait_s = random.Random(os.urandom(8)).uniform(0, MOMENT_MAX_S)

        def run() -> None:
            time.sleep(wait_s)
            self.note("fault", iteration=iteration, step="", kind="moment", wait_s=wait_s)
            if not self.is_at_the_end:
                os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=run, daemon=True).start()

    def die_in_the_barrier(self, fault: Fault, iteration: int) -> None:
        """Dies by a signal of the script's own, once the main thread waits there for the others."""

        def look(_signal: int, frame: FrameType | None) -> None:
            if _is_in("complete", frame):
                signal.setitimer(signal.ITIMER_REAL, 0)
                self.die(fault, iteration)

        signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.01)


def _is_in(function: str, frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == function and frame.f_code.co_filename.endswith("coordination.py"):
            return True
        frame = frame.f_back
    return False


class DiesInInitialize(inprocess.initialize.Initialize):
    def __call__(self, state: FrozenState) -> FrozenState:
        rank.note("began", iteration=state.iteration, rank=str(state.rank), world_size=str(state.world_size))
        signal.setitimer(signal.ITIMER_REAL, 0)
        rank.meet("initialize", state)
        return state


class DiesInHealthCheck(inprocess.health_check.HealthCheck):
    def __call__(self, state: FrozenState) -> FrozenState:
        rank.meet("health_check" if rank.ended == state.iteration else "first_health_check", state)
        return state


class DiesInAbort(inprocess.abort.Abort):
    def __call__(self, state: FrozenState) -> FrozenState:
        rank.meet("abort", state)
        return state


class DiesInFinalize(inprocess.finalize.Finalize):
    def __call__(self, state: FrozenState) -> FrozenState:
        rank.end(state)
        rank.meet("finalize", state)
        return state


class DiesInCompletion(inprocess.completion.Completion):
    def __call__(self, state: FrozenState) -> FrozenState:
        fault = rank.plan.fault_at_the_end(state.world_size)
        if fault is not None and fault.victim == state.rank:
            rank.die(fault, state.iteration)
        return state


class DiesInAssignment(rank_assignment.RankAssignment):
    def __init__(self, step: str) -> None:
        self.step = step

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        rank.meet_in_assignment(self.step, ctx.state.iteration)
        return ctx


def exchange() -> rank_assignment.RankAssignment:
    """Exchanges data between all ranks; none of them leaves for it."""
    return rank_assignment.FilterCountGroupedByKey("all", lambda _count: True)


wrapper = inprocess.Wrapper(
    initialize=DiesInInitialize(),
    health_check=DiesInHealthCheck(),
    abort=DiesInAbort(),
    finalize=DiesInFinalize(),
    completion=DiesInCompletion(),
    rank_assignment=Compose(
        DiesInAssignment("assigned"),
        rank_assignment.ActivateAllRanks(),
        rank_assignment.ShiftRanks(),
        exchange(),
        DiesInAssignment("between_exchanges"),
        exchange(),
        DiesInAssignment("assignment"),
    ),
    soft_timeout=timedelta(seconds=SOFT_TIMEOUT_S),
    hard_timeout=timedelta(seconds=2 * SOFT_TIMEOUT_S),
    termination_grace_time=timedelta(seconds=0.5),
    monitor_thread_interval=timedelta(seconds=0.5),
    monitor_process_interval=timedelta(seconds=0.5),
    progress_watchdog_interval=timedelta(seconds=0.5),
)


@wrapper
def train(call: CallWrapper = INJECTED) -> int:
    own, world_size, iteration = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), call.iteration
    rank.note("fn", iteration=iteration, rank=os.environ["RANK"], world_size=os.environ["WORLD_SIZE"])
    faults, fault = rank.plan.faults(iteration, world_size), rank.own_fault(iteration, own, world_size)
    if not faults:
        rank.is_at_the_end = True
        time.sleep(MOMENT_MAX_S)
        return iteration
    if fault is not None:
        if fault.kind == "moment":
            rank.die_at_a_moment(iteration)
        elif fault.step in ("entered", "returning"):
            rank.die(fault, iteration)
        elif fault.step == "completion_barrier":
            rank.die_in_the_barrier(fault, iteration)
            return iteration
    if any(each.trigger == own for each in faults):
        raise ValueError("by intention, so that there is a restart")
    try:
        while True:
            time.sleep(0.005)
    finally:
        if fault is not None and fault.step == "unwinding":
            rank.die(fault, iteration)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--step", choices=[*ENDING, *BEGINNING, COMMITTED])
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--who", choices=["first", "last"], default="first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--nproc", type=int, default=int(os.environ.get("WORLD_SIZE", "1")))
    return parser.parse_args()


if __name__ == "__main__":
    rank = Rank(Plan(arguments()))
    try:
        rank.note("returned", iteration=train())
    except BaseException as error:
        rank.note("left", error=type(error).__name__)
        raise
