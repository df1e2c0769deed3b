"""The command `holdfast`, whose supervisor ends by SIGKILL in the middle of a turn of its engine.

$DIES is MOMENT KIND: in the turn that publishes an event of that kind, "decided" before anything of the turn has left,
"kept" once the spawner has it, "told" once the journal has it on the disk. All that was recorded before is on the disk.
"before-flush": it ends where it would wait for the disk after a job's end; KIND is ignored, and the disk got nothing.
"""

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

from holdfast_wire import spawner_link as wire

from supervisor.cli import main
from supervisor.edges.machine.journal.journal import Journal
from supervisor.edges.workers.spawner.spawner_succession import SpawnerSuccession
from supervisor.engine.keepsakes import EVENTS

MOMENT, KIND = os.environ["DIES"].split()
journals: list[Journal] = []
start, keep = Journal.start, SpawnerSuccession.keep


def start_noted(self: Journal) -> None:
    journals.append(self)
    start(self)


def end() -> None:
    for journal in journals:
        assert journal.flush(10.0)
    os.kill(os.getpid(), signal.SIGKILL)


def keep_and_end(
    self: SpawnerSuccession, texts: Mapping[str, str], orders: Sequence[wire.Order], on_kept: Callable[[], None]
) -> None:
    is_due = f'"{KIND}"' in texts[EVENTS]
    if is_due and MOMENT == "decided":
        end()
    keep(self, texts, orders, end if is_due and MOMENT == "kept" else on_kept)
    if is_due:
        end()


def end_instead(self: Journal, timeout_s: float) -> bool:
    del self, timeout_s
    os.kill(os.getpid(), signal.SIGKILL)
    return False


def start_never(self: Journal) -> None:
    del self


if MOMENT == "before-flush":
    Journal.start, Journal.flush = start_never, end_instead
else:
    Journal.start, SpawnerSuccession.keep = start_noted, keep_and_end
sys.exit(main())
