"""What is reported about a worker that has ended, and where is the reason looked for?"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast_wire import spawner_link

from . import error_file, full_disks, oom_kills
from .fork_and_exec import Child
from .last_printed_error import TAIL_BYTES, last_words
from .reaping import Ending


def exited(
    child: Child,
    ending: Ending,
    at_ns: int,
    tail: bytes,
    command: Sequence[str] = (),
    *,
    silence_longest_s: float | None = None,
) -> spawner_link.Exited:
    """Returns the report. `tail`: the end of its stderr, as far as that came through the spawner.

    `command`: its script and arguments. `silence_longest_s`: of its main thread, if that was watched.
    """
    told = error_file.read(child.error_file if ending.code != 0 else "") or ("", None)
    if ending.code != 0:
        tail = tail or error_file.read_end(child.stderr_file, TAIL_BYTES)
        told = (told[0] or last_words(tail, code=ending.code, signal_number=ending.signal), told[1])
        # A full disk may have taken what the rank said, too.
        has_lost_words = bool(child.stderr_file) and not told[0] and full_disks.may_end(ending)
        if has_lost_words or full_disks.says_so(told[0]) or full_disks.says_so(tail.decode(errors="replace")):
            told = ("; ".join(filter(None, (told[0], full_disks.named(child.logs, command)))), told[1])
    return spawner_link.Exited(
        cycle=child.cycle,
        local_rank=child.local_rank,
        pid=child.pid,
        code=ending.code,
        signal=ending.signal,
        core_dumped=ending.core_dumped,
        out_of_memory=oom_kills.ran_out_of_memory(ending, killed_by_us=child.killed_by_us, counter=child.memory),
        at_ns=at_ns,
        error=told[0],
        error_at_unix_s=told[1],
        silence_longest_s=silence_longest_s,
        unattended_s=child.unattended_s,
    )
