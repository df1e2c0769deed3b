"""When are people told that the backend of an election can't be used? As it begins, each minute, and as it ends."""

from __future__ import annotations

import logging

import anyio

TOLD_EVERY_S = 60.0  # without a failure for so long, an outage is over

_log = logging.getLogger("holdfast.cluster")


class BackendOutage:
    """Notes what could and could not be done; all failures of one outage are told together."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._since_s: float | None = None
        self._told_at_s = self._failed_at_s = 0.0
        self._first = ""  # what failed first: once that works, the outage is over

    def failed(self, what: str, why: object) -> None:
        """Notes that `what` was not possible; may be called often."""
        now_s = anyio.current_time()
        if self._since_s is None or now_s - self._failed_at_s > TOLD_EVERY_S:
            self._since_s, self._first = now_s, what
            text = "ranks that run go on, a start or restart waits"
        else:
            text = f"this lasts for {now_s - self._since_s:.0f} s"
        is_news = self._since_s == now_s or now_s - self._told_at_s >= TOLD_EVERY_S
        self._failed_at_s = now_s
        if is_news:
            self._told_at_s = now_s
            _log.warning("job %s cannot %s: %s; %s", self._job_id, what, str(why) or "no answer in time", text)

    def clause(self) -> str:
        """Returns what people read beside the job's state; "" if the backend answers."""
        now_s = anyio.current_time()
        if self._since_s is None or now_s - self._failed_at_s > TOLD_EVERY_S:
            return ""
        return f"the rendezvous backend has not answered for {now_s - self._since_s:.0f} s, and a restart waits for it"

    def worked(self, what: str) -> None:
        """Notes that `what` was possible."""
        if self._since_s is not None and what == self._first:
            _log.info("job %s can %s again, after %.1f s", self._job_id, what, anyio.current_time() - self._since_s)
            self._since_s = None
