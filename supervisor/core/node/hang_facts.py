"""What do the machines of a node know of its ranks, apart from what was seen of their processes?"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from supervisor.core.facts import Evidence
from supervisor.core.node import rank_monitor
from supervisor.core.process_facts import RankFacts
from supervisor.core.workers import Worker


def with_node_facts(evidence: Evidence, workers: Sequence[Worker], monitors: Sequence[rank_monitor.State]) -> Evidence:
    """Which ranks have exited, and which are silent. A rank of which nothing was seen gets its facts all the same.

    One that has failed is left out: it did so after the hang had begun, for which it only is an echo.
    """
    seen = {each.rank: each for each in evidence.facts}
    for worker in workers:
        facts = seen.pop(worker.rank, RankFacts(worker.rank))
        if worker.ended and not worker.succeeded:
            continue
        monitor = monitors[worker.local_rank] if worker.local_rank < len(monitors) else rank_monitor.initial_state()
        is_silent = facts.is_silent or isinstance(monitor, rank_monitor.Hung)
        seen[worker.rank] = msgspec.structs.replace(facts, has_exited=worker.succeeded, is_silent=is_silent)
    return msgspec.structs.replace(evidence, facts=tuple(facts for _, facts in sorted(seen.items())))
