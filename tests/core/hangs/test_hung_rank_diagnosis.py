"""The table of patterns, row by row: what is seen of one rank, and what is reported about it?"""

from __future__ import annotations

import pytest

from supervisor.core.hangs.hung_rank_diagnosis import Pattern, RankFinding, find
from supervisor.core.process_facts import ChildProcess, Frame, ProcessFacts, ProcessState, RankFacts
from tests.core.hangs.test_library_frames import ALL_REDUCE, GET, LIB, LOAD, LOGGER, NEXT, TRAIN, WAIT

STILL = ProcessFacts(ProcessState.SLEEPING, is_still=True)
IN_FUTEX = ProcessFacts(ProcessState.SLEEPING, is_still=True, waits_on_futex=True)
DEAD_CHILD = ProcessFacts(
    ProcessState.SLEEPING, children=(ChildProcess(12, ProcessState.SLEEPING), ChildProcess(13, ProcessState.ZOMBIE))
)
STOPPED_CHILD = ProcessFacts(ProcessState.SLEEPING, children=(ChildProcess(14, ProcessState.STOPPED),))
AT_LOAD = (TRAIN, LOAD)
IN_REDUCE = (TRAIN, LOGGER, ALL_REDUCE)
HERE = "Loader.load_batch (data.py:40)"


def facts(process: ProcessFacts | None = None, **more: object) -> RankFacts:
    return RankFacts(3, process, **more)  # pyright: ignore[reportArgumentType]


ROWS: list[tuple[str, RankFacts, tuple[Frame, ...], Pattern, str]] = [
    ("stopped", facts(ProcessFacts(ProcessState.STOPPED, stop_signal="SIGSTOP")), IN_REDUCE,
     Pattern.STOPPED, "{are} stopped (SIGSTOP)"),
    ("stopped, and the kernel does not say how", facts(ProcessFacts(ProcessState.STOPPED)), (),
     Pattern.STOPPED, "{are} stopped (by a signal)"),
    ("traced", facts(ProcessFacts(ProcessState.TRACED, tracer="gdb (pid 9)")), IN_REDUCE,
     Pattern.TRACED, "{are} held by gdb (pid 9)"),
    ("zombie", facts(ProcessFacts(ProcessState.ZOMBIE)), (),
     Pattern.ZOMBIE, "{are} dead and not reaped (zombie)"),
    ("state D", facts(ProcessFacts(ProcessState.UNINTERRUPTIBLE, is_still=True, kernel_place="nfs_wait")), AT_LOAD,
     Pattern.STATE_D, "{hang} in the kernel (state D, nfs_wait)"),
    ("state D for a moment", facts(ProcessFacts(ProcessState.UNINTERRUPTIBLE)), AT_LOAD,
     Pattern.ELSEWHERE, f"{{are}} in {HERE}"),
    ("GIL: the client does not answer", facts(gil_frames=AT_LOAD, answers=False), IN_REDUCE,
     Pattern.GIL_HELD, f"{{hold}} the GIL in {HERE}"),
    ("GIL: the main thread sleeps with it", facts(STILL, gil_frames=AT_LOAD, gil_is_main=True), AT_LOAD,
     Pattern.GIL_HELD, f"{{hold}} the GIL in {HERE}"),
    ("GIL: only a signal brought the stack", facts(answers=False), AT_LOAD,
     Pattern.GIL_HELD, f"{{hold}} the GIL in {HERE}"),
    ("GIL: no stack, but CPU", facts(ProcessFacts(ProcessState.RUNNING, cpu_share=0.9)), (),
     Pattern.GIL_HELD, "{burn} CPU and {give} no stack: a thread may hold the GIL"),
    ("GIL: somebody has it, as always in Python code", facts(gil_frames=AT_LOAD, gil_is_main=True), AT_LOAD,
     Pattern.ELSEWHERE, f"{{are}} in {HERE}"),
    ("data loader's child dead", facts(DEAD_CHILD), (TRAIN, LOAD, NEXT, GET),
     Pattern.CHILD_DEAD, f"{{wait}} in {HERE} for a child process that is dead (pid 13)"),
    ("data loader's child stopped", facts(STOPPED_CHILD), (TRAIN, LOAD, NEXT, GET),
     Pattern.CHILD_DEAD, f"{{wait}} in {HERE} for a child process that is stopped (pid 14)"),
    ("data loader's children live", facts(STILL), (TRAIN, LOAD, NEXT, GET),
     Pattern.ELSEWHERE, f"{{wait}} for data in {HERE}"),
    ("a dead child that nobody waits for", facts(DEAD_CHILD), IN_REDUCE,
     Pattern.WAITS, "{wait} in all_reduce"),
    ("lock: a frame of threading", facts(STILL), (TRAIN, LOAD, WAIT),
     Pattern.LOCK, f"{{wait}} for a lock in {HERE}"),
    ("lock: only the source says so", facts(IN_FUTEX, source_line="with self._lock:"), AT_LOAD,
     Pattern.LOCK, f"{{wait}} for a lock in {HERE}"),
    ("a line about locks that computes", facts(ProcessFacts(ProcessState.RUNNING), source_line="unlock(x)"), AT_LOAD,
     Pattern.ELSEWHERE, f"{{are}} in {HERE}"),
    ("an asynchronous collective", facts(IN_FUTEX, source_line="work.wait()"), (TRAIN,),
     Pattern.WAITS, "{wait} in train (train.py:31)"),
    ("exited", facts(has_exited=True), (),
     Pattern.LEFT_EARLY, "{have} exited with code 0"),
    ("in finalisation", facts(STILL), (Frame(f"{LIB}/threading.py", "_shutdown", 1),),
     Pattern.LEFT_EARLY, "{have} left the training loop and {wait} in the end of its other threads"),
    ("waits", facts(STILL), IN_REDUCE, Pattern.WAITS, "{wait} in all_reduce"),
    ("works", facts(), AT_LOAD, Pattern.ELSEWHERE, f"{{are}} in {HERE}"),
    ("nothing is known", facts(STILL), (), Pattern.UNKNOWN, "{give} no stack"),
    ("a section is", facts(STILL, sections=("step",)), (),
     Pattern.UNKNOWN, "{are} in section 'step' and {give} no stack"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "frames", "pattern", "clause"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_a_pattern(seen: RankFacts, frames: tuple[Frame, ...], pattern: Pattern, clause: str) -> None:
    found: RankFinding = find(seen, frames)
    assert (found.pattern, found.clause) == (pattern, clause)
