"""The command `holdfast`, whose supervisor ends by SIGKILL in the middle of a turn of its engine.

$DIES is MOMENT KIND: in the turn that publishes an event of that kind, "decided" before anything of the turn has left,
"kept" once the spawner has it, "told" once the journal has it on the disk. All that was recorded before is on the disk.
"before-flush": it ends where it would wait for the disk after a job's end; KIND is ignored, and the disk got nothing.
"concluded": once the verdict of a job is on the disk, and before the job's end; KIND is ignored.
A job's submission has moments of its own, without KIND: "unanswered", and, once the submitter has its answer and
watches the job: "unstarted" before there is a spawner, "unrecorded" and "unkept" before that spawner keeps anything.
With a KIND, "unanswered" is "kept", and the submitter gets no answer.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import anyio
from holdfast_wire import spawner_link as wire

from supervisor.cli import main
from supervisor.config import JobSpec
from supervisor.edges.machine.journal.journal import Journal
from supervisor.edges.operators.control_service import ControlService
from supervisor.edges.workers.spawner import spawner_lifecycle
from supervisor.edges.workers.spawner.spawner_discovery import SpawnerFiles
from supervisor.edges.workers.spawner.spawner_succession import SpawnerSuccession
from supervisor.engine.recovery.snapshot_texts import EVENTS
from supervisor.ports.reports import JobReport
from supervisor.queries.job_service import JobService

MOMENT, KIND = os.environ["DIES"].split()
journals: list[Journal] = []
watched = threading.Event()  # the submitter has the answer to its submission, and asks on
start, keep, look_for = Journal.start, SpawnerSuccession.keep, ControlService._find  # pyright: ignore[reportPrivateUsage]
note, submit, save = SpawnerFiles.note, JobService.submit, Journal.save


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
    keep(self, texts, orders, end if is_due and MOMENT in ("kept", "unanswered") else on_kept)
    if is_due:
        end()


def save_and_end(self: Journal, report: JobReport) -> None:
    save(self, report)
    if report.state.has_ended and report.ended_at_ns is None:
        end()


def end_instead(self: Journal, timeout_s: float) -> bool:
    del self, timeout_s
    os.kill(os.getpid(), signal.SIGKILL)
    return False


def start_never(self: Journal) -> None:
    del self


async def find_and_note(self: ControlService, job_id: str, verb: str, *, this_node: bool = False) -> JobReport:
    watched.set()
    return await look_for(self, job_id, verb, this_node=this_node)


def end_once_watched(*_: object, **__: object) -> NoReturn:
    assert watched.wait(10.0)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("this process has ended")


def note_and_end(self: SpawnerFiles, job_id: str, pid: int) -> None:
    note(self, job_id, pid)
    end_once_watched()


async def submit_or_end(self: JobService, spec: JobSpec, environment: Mapping[str, str]) -> str:
    watched.clear()  # the submitter may have asked for the job before
    if MOMENT == "unanswered" and KIND == "-":
        os.kill(os.getpid(), signal.SIGKILL)
    job_id = await submit(self, spec, environment)
    if MOMENT == "unanswered":
        await anyio.sleep_forever()
    return job_id


ControlService._find, JobService.submit = find_and_note, submit_or_end  # pyright: ignore[reportPrivateUsage]
if MOMENT == "before-flush":
    Journal.start, Journal.flush = start_never, end_instead
elif MOMENT == "concluded":
    Journal.start, Journal.save = start_noted, save_and_end
elif MOMENT == "unstarted":
    spawner_lifecycle.start_process = end_once_watched
elif MOMENT == "unrecorded":
    SpawnerFiles.note = end_once_watched
elif MOMENT == "unkept":
    SpawnerFiles.note = note_and_end
else:
    Journal.start, SpawnerSuccession.keep = start_noted, keep_and_end
sys.exit(main())
