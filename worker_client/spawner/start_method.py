"""How does a spawner start its workers, and what does it first report about that to the supervisor?"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from holdfast_wire import spawner_link

from .command_check import Refusal


class Method(NamedTuple):
    """How workers are started, why, and what was loaded for it."""

    name: str
    reason: str
    loaded: tuple[str, ...]
    refusal: Refusal = Refusal("", 1)  # why the command can't be run at all
    lost: str = ""  # what is slower than it could be, why, and the remedy

    def ready(self, cgroup: str, *, holds_pages: bool) -> spawner_link.Ready:
        return spawner_link.Ready(
            pid=os.getpid(),
            protocol=spawner_link.PROTOCOL,
            python=sys.version.split()[0],
            method=self.name,
            method_reason=self.reason,
            preloaded=self.loaded,
            cgroup=cgroup,
            refusal=self.refusal.reason,
            refusal_code=self.refusal.exit_code,
            lost=self.lost,
            holds_pages=holds_pages,
        )
