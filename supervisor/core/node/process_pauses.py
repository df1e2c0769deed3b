"""Which time counts against no rank, because this process did not run?

If a whole job or machine is suspended, no clock stops, and each silence would be too long at once. Nobody can tell when
the pause began, so it counts from the last moment at which this process is known to have run: a hang is found later,
but none is declared early. The ranks' pages are read as if no time had passed meanwhile.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from supervisor.core.node import node_messages, rank_monitor
from supervisor.core.node.job_machines import JobMachines
from supervisor.core.rank_silence import without_absences

PAUSES_MAX = 32  # a silence that has lasted through more of them is judged as if there had been no earlier one

E = TypeVar("E")


def noted(machines: JobMachines, pause: node_messages.ProcessPaused, now_s: float) -> JobMachines:
    """Returns the machines after a pause that has just ended."""
    monitors = (
        rank_monitor.step(each, rank_monitor.ProcessPaused(pause.since_s), now_s=now_s)[0] for each in machines.monitors
    )
    pauses = (*machines.pauses, (pause.since_s, now_s))[-PAUSES_MAX:]
    return msgspec.structs.replace(machines, monitors=tuple(monitors), pauses=pauses)


def without_pauses(machines: JobMachines, event: E) -> E:
    """Returns the event; if it has the progress of a rank, as if no time had passed during the pauses."""
    if isinstance(event, node_messages.ClientJoined | node_messages.ProgressRead):
        return msgspec.structs.replace(event, progress=without_absences(event.progress, machines.pauses))
    return event
