"""What does a person at a terminal read while `holdfast run` waits for its first workers to start?"""

from __future__ import annotations

import logging
from contextlib import ExitStack

from supervisor.config.job_spec import JobSpec
from supervisor.edges.machine.own_process.wait_notice import WaitNotice
from supervisor.ports.reports import RecordedEvent

LOADS = "loading torch, and what the script imports"
MEETS = "waiting for the other nodes"
CHECKS = "checking the node"
# Once workers may print, the terminal is theirs.
_ENDS = frozenset({"cycle_started", "nodes_placed", "job_failed", "job_stopped", "job_succeeded", "stop_requested"})


class Waiting(logging.Handler):
    """Follows a job's events until its first cycle. It is a log handler, too, because a supervisor logs its events."""

    def __init__(self, line: WaitNotice, *, has_more_nodes: bool, has_checks: bool) -> None:
        super().__init__()
        self._line = line
        self._has_more_nodes = has_more_nodes
        self._has_checks = has_checks
        line.show(LOADS)

    def hear(self, kind: str) -> None:
        if kind in _ENDS:
            self._line.close()
        elif kind == "spawner_ready" and self._has_checks:
            self._line.show(CHECKS)
        elif kind in ("spawner_ready", "node_checked", "rendezvous_waits"):
            if self._has_more_nodes:
                self._line.show(MEETS)
            else:
                self._line.close()

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if isinstance(event, RecordedEvent):
            self.hear(event.kind)


def waiting(spec: JobSpec, stack: ExitStack) -> Waiting:
    """Shows the line until `stack` closes."""
    line = WaitNotice()
    stack.callback(line.close)
    has_checks = bool(spec.health.plans(""))
    return Waiting(line, has_more_nodes=spec.nodes is not None, has_checks=has_checks)
