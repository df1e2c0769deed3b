"""What do the machines of a node know about its ranks, apart from observations of their processes?"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from supervisor.core.facts import Evidence
from supervisor.core.node import rank_monitor
from supervisor.core.process_facts import RankFacts
from supervisor.core.workers import Worker


def with_node_facts(evidence: Evidence, workers: Sequence[Worker], monitors: Sequence[rank_monitor.State]) -> Evidence:
    """Adds which ranks have exited and which are silent, also for ranks without observations.

    Leaves out failed ranks: they failed after the hang had begun, as a consequence of it.
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
