"""What do the machines of a node know about its ranks, apart from observations of their processes?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from supervisor.core.facts import Evidence
from supervisor.core.node import hang_response
from supervisor.core.process_facts import ProcessState, RankFacts
from supervisor.core.worker_messages import Worker


def with_node_facts(
    evidence: Evidence, workers: Sequence[Worker], hangs: hang_response.State, stops: Mapping[int, str]
) -> Evidence:
    """Adds which ranks have exited and which are silent, also for ranks without observations.

    Leaves out failed ranks: they failed after the hang had begun, as a consequence of it. `stops`: the signals that
    stopped ranks, by local rank; the kernel no longer says it once the spawner has been told.
    """
    seen = {each.rank: each for each in evidence.facts}
    for worker in workers:
        facts = seen.pop(worker.rank, RankFacts(worker.rank))
        if worker.ended and not worker.succeeded:
            continue
        is_silent = facts.is_silent or hang_response.is_hung(hangs, worker.local_rank)
        process = facts.process
        if process is not None and process.state is ProcessState.STOPPED and not process.stop_signal:
            process = msgspec.structs.replace(process, stop_signal=stops.get(worker.local_rank, ""))
        seen[worker.rank] = msgspec.structs.replace(
            facts, has_exited=worker.succeeded, is_silent=is_silent, process=process
        )
    return msgspec.structs.replace(evidence, facts=tuple(facts for _, facts in sorted(seen.items())))
