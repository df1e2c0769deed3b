"""Writes docs/architecture/recovery.md: the messages of a restart inside the process.

Three obedient ranks talk to the machine that decides. The drawing shows the messages.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

from supervisor.core.cluster import wrapped_call
from supervisor.core.cluster.cluster_messages import CallReport
from supervisor.core.wrapped_calls import call_messages
from supervisor.core.wrapped_calls.call_actions import EndCall, Order, Replace, Say, Tell
from supervisor.core.wrapped_calls.call_messages import Barrier, Interruption

RANKS = (0, 1, 2)
CALL = 1
FORK_S = 0.05

HEADER = """# One recovery inside the processes

<!-- Written by docs/make_recovery.py from what the machine of wrapped calls says. Do not edit: run `make docs`. -->

Ranks communicate with their supervisor over its Unix socket. One machine, `supervisor.core.cluster.wrapped_call`,
makes the decisions that concern all ranks. The messages are those of `holdfast_wire/v1/worker.proto`.
"""

RAISED = """## A rank raises an exception

The function of rank 1 raises. No rank waits for the end of `last_call_wait`, since all have answered.
"""

KILLED = """## A rank is killed

Rank 1 is killed by SIGKILL. Its new process is forked while the others unwind, runs its rank assignment through the
decisions that it has missed, and is rank 1 again.
"""


class Play:
    """The machine, three obedient ranks, and their messages as lines of a diagram."""

    def __init__(self) -> None:
        self.state = wrapped_call.initial_state(len(RANKS))
        self.lines: list[str] = []
        self.is_drawn = False
        self.now_s = 0.0
        self.iteration: dict[int, int] = dict.fromkeys(RANKS, 0)
        self._unheard: deque[tuple[int, call_messages.ToRank]] = deque()

    def enter(self, rank: int) -> None:
        self.say(rank, call_messages.CallEnter(CALL, rank, len(RANKS), call_messages.CallSettings()))

    def say(self, rank: int, word: call_messages.Word, text: str = "") -> None:
        """Lets `rank` send a message, and everything that follows happen."""
        source = "spawner" if isinstance(word, call_messages.Started | call_messages.Lost) else f"rank {rank}"
        self.arrow(source, "supervisor", text or type(word).__name__)
        report = CallReport("node", 0, (call_messages.Told(rank, word),))
        self.state, orders = wrapped_call.step(self.state, report, now_s=self.now_s, units_left=1)
        for order in orders:
            self._perform(order)

    def settle(self) -> None:
        """Lets every rank answer its messages in order."""
        while self._unheard:
            rank, order = self._unheard.popleft()
            self._answer(rank, order)

    def arrow(self, source: str, target: str, text: str) -> None:
        if self.is_drawn:
            self.lines.append(f"    {source.replace(' ', '')} ->> {target.replace(' ', '')}: {text}")

    def note(self, text: str) -> None:
        if self.is_drawn:
            self.lines.append(f"    note {text}")

    def _perform(self, order: Order) -> None:
        match order:
            case Tell(members, told):
                for member in members:
                    self.arrow("supervisor", f"rank {member}", type(told).__name__)
                    self._unheard.append((member, told))
            case Replace(lost):
                for _, member in lost:
                    self.arrow("supervisor", "spawner", f"fork rank {member} again")
            case Say(_, reason):
                self.note(f"over supervisor: {reason.replace(';', ',')}")
            case EndCall():
                pass

    def _answer(self, rank: int, order: call_messages.ToRank) -> None:
        match order:
            case call_messages.Entered(_, number) | call_messages.BeginIteration(_, number):
                self.iteration[rank] = number
                self.note(f"over rank{rank}: rank assignment, then the function")
                self.say(rank, call_messages.IterationBegan(CALL, number, rank, len(RANKS), rank, len(RANKS)))
            case call_messages.Interrupt(_, number):
                self.say(rank, call_messages.FaultsReported(CALL, number), "Reported: no other fault")
            case call_messages.Restart(_, number):
                self.note(f"over rank{rank}: abort, RankShouldRestart, finalize, health check")
                self.arrive(rank, number, Barrier.ITERATION)
            case (
                call_messages.Exchanged()
                | call_messages.CallCompleted()
                | call_messages.Committed()
                | call_messages.CallUnderway()
                | call_messages.RanksMissing()
                | call_messages.CallRefused()
            ):
                pass

    def complete(self) -> None:
        for rank in RANKS:
            self.arrive(rank, self.iteration[rank], Barrier.COMPLETION)

    def arrive(self, rank: int, number: int, barrier: Barrier) -> None:
        arrival = call_messages.BarrierArrive(CALL, number, barrier, rank, True)
        self.say(rank, arrival, f"BarrierArrive, {barrier.name.lower()}")

    def diagram(self) -> str:
        people = [f"    participant rank{rank} as rank {rank}" for rank in RANKS]
        lines = ["```mermaid", "sequenceDiagram", *people, "    participant supervisor", "    participant spawner"]
        if not any("spawner" in line for line in self.lines):
            lines.pop()
        return "\n".join([*lines, *self.lines, "```", ""])


def begun() -> Play:
    """Returns a play in which all ranks are in the function of iteration 0; only later messages are drawn."""
    play = Play()
    for rank in RANKS:
        play.enter(rank)
    play.settle()
    play.is_drawn = True
    return play


def raised() -> str:
    play = begun()
    fault = call_messages.RankFault(CALL, 0, 1, Interruption.EXCEPTION, "RuntimeError: loss is nan")
    play.say(1, fault, "Fault: RuntimeError, loss is nan")
    play.settle()
    play.complete()
    return play.diagram()


def killed() -> str:
    play = begun()
    lost = call_messages.Lost(Interruption.TERMINATED, "was killed by SIGKILL", failed=True)
    play.say(1, lost, "rank 1 has ended by SIGKILL")
    play.now_s += FORK_S
    play.say(1, call_messages.Started(), "rank 1 was started")
    play.enter(1)
    play.settle()
    play.complete()
    return play.diagram()


if __name__ == "__main__":
    text = "\n".join([HEADER, RAISED, raised(), KILLED, killed()])
    (Path(__file__).parent / "architecture" / "recovery.md").write_text(text)
