"""What the machines know joins what was seen; a failure during the hang is left out."""

from __future__ import annotations

from supervisor.core.facts import Evidence, WorkerExit
from supervisor.core.node import hang_response
from supervisor.core.node.hang_facts import with_node_facts
from supervisor.core.process_facts import ProcessFacts, ProcessState, RankFacts
from supervisor.core.worker_messages import Worker


def test_each_rank_that_has_not_failed_is_there_with_what_is_known() -> None:
    seen = ProcessFacts(is_still=True)
    hangs = hang_response.Examining((hang_response.HungRank(1, "rank 5 is silent"),), until_s=1.0)
    workers = (
        Worker(0, 4, pid=1),
        Worker(1, 5, pid=2),
        Worker(2, 6, exit=WorkerExit(2, 6, 3, 0, None, 0.0)),
        Worker(3, 7, exit=WorkerExit(3, 7, 4, 1, None, 0.0)),
        Worker(4, 8, not_started="no"),
    )
    evidence = Evidence(facts=(RankFacts(5, seen), RankFacts(7, seen)))
    found = with_node_facts(evidence, workers, hangs, {})
    assert found.facts == (
        RankFacts(4),
        RankFacts(5, seen, is_silent=True),
        RankFacts(6, has_exited=True),
    )


def test_the_signal_is_the_one_that_the_spawner_was_told() -> None:
    """Once it was told, the kernel no longer says it of the process."""
    stopped, other = ProcessFacts(ProcessState.STOPPED), ProcessFacts(ProcessState.STOPPED, stop_signal="SIGTTIN")
    running = ProcessFacts(ProcessState.RUNNING)
    workers = (Worker(0, 4, pid=1), Worker(1, 5, pid=2), Worker(2, 6, pid=3), Worker(3, 7, pid=4))
    seen = (RankFacts(4, stopped), RankFacts(5, other), RankFacts(6, running), RankFacts(7, stopped))
    found = with_node_facts(
        Evidence(facts=seen), workers, hang_response.initial_state(), {0: "SIGSTOP", 1: "SIGSTOP", 2: "SIGSTOP"}
    )
    assert [each.process and each.process.stop_signal for each in found.facts] == ["SIGSTOP", "SIGTTIN", "", ""]
