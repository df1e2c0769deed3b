"""How much of the logs of ended jobs is kept?"""

from __future__ import annotations

import msgspec

from supervisor.config import values

BYTES_PER_GIB = 1 << 30


class LogLimits(msgspec.Struct, frozen=True):
    """The limits of the default log directory; 0 means no limit."""

    jobs_max: int = 200
    gib_max: float = 20.0

    @property
    def bytes_max(self) -> int:
        return int(self.gib_max * BYTES_PER_GIB)


DEFAULTS = LogLimits()
JOBS_FLAG, JOBS_VARIABLE = "--log-jobs-max", "HOLDFAST_LOG_JOBS_MAX"
GIB_FLAG, GIB_VARIABLE = "--log-gib-max", "HOLDFAST_LOG_GIB_MAX"
JOBS_KIND = values.integer(0, 1_000_000, "jobs")
GIB_KIND = values.number(0.0, 1_000_000.0, "GiB")
JOBS_MEANING = "number of ended jobs whose logs are kept in the default place; 0: all"
GIB_MEANING = "size of all logs in the default place; the oldest go first; 0: no limit"
