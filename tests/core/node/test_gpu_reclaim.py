"""When does a restart wait for GPU memory, and how does each wait end?"""

from __future__ import annotations

import msgspec

from supervisor.core.gpu_memory import MIB, GpuMemory, Holder, MemoryReport, MemoryRules
from supervisor.core.node import gpu_reclaim
from supervisor.core.node.gpu_reclaim import (
    ANSWER_S,
    FIRST_S,
    CycleEmptied,
    LetGo,
    SpawnerCame,
    SpawnerReplaced,
    WaitDropped,
)
from supervisor.core.node.node_messages import (
    AwaitGpuMemory,
    DeadlineReached,
    GpuMemorySeen,
    Publish,
    SpawnerReady,
    WorkersEmptied,
)
from supervisor.core.node_check_facts import CheckView, Health, HealthFinding

JOB = "job"
RULES = MemoryRules(50.0, 512 * MIB, 2.0)
EMPTIED = WorkersEmptied(JOB, 0)
FREE = MemoryReport(True, (GpuMemory("GPU 0", 9000 * MIB, 0, 9000 * MIB),), looks=2, took_s=0.02)
HELD = MemoryReport(
    False, (GpuMemory("GPU 0", 9000 * MIB, 9000 * MIB, 9000 * MIB),), (Holder(12, "GPU 0", None, "python", "ada"),)
)
SUSPECT = (
    "node a is suspect: memory of GPU 0 was still in use after 50 s; it stays in the job, suspect until a "
    "restart finds the memory free; end what holds the memory, or keep the node out of later cycles with "
    "holdfast cordon a"
)
STATISTICS = "GPU 0: first 9000 MiB, last 9000 MiB, at most 9000 MiB"
HOLDER = "GPU 0 has 9000 MiB in use, held by pid 12 (python, user ada)"


class Node:
    def __init__(self, rules: MemoryRules | None = RULES) -> None:
        self.state = gpu_reclaim.initial_state(rules)
        self.said: list[tuple[str, str]] = []

    def send(self, *events: gpu_reclaim.Event, at: float = 0.0) -> list[gpu_reclaim.Action]:
        """Returns the last event's actions; sentences are in `said`."""
        actions: tuple[gpu_reclaim.Action, ...] = ()
        for event in events:
            self.state, actions = gpu_reclaim.step(self.state, event, now_s=at, node="a")
            self.said += [(each.event.kind, each.event.reason) for each in actions if isinstance(each, Publish)]
        return [each for each in actions if not isinstance(each, Publish)]


def seen(report: MemoryReport, cycle: int = 0) -> GpuMemorySeen:
    return GpuMemorySeen(JOB, cycle, report)


def asked(wait_s: float, cycle: int = 0) -> AwaitGpuMemory:
    return AwaitGpuMemory(JOB, cycle, msgspec.structs.replace(RULES, timeout_s=wait_s))


def test_the_next_cycle_waits_until_the_memory_is_free() -> None:
    node = Node()
    assert node.send(CycleEmptied(EMPTIED)) == [asked(FIRST_S)]
    assert node.send(seen(FREE), at=0.02) == [LetGo(EMPTIED)]
    assert node.said == [("gpu_memory_free", "the memory of 1 GPU is free (waited 0.020 s)")]
    assert gpu_reclaim.next_deadline_s(node.state) is None


def test_a_job_that_waits_for_no_memory_goes_on_at_once() -> None:
    assert Node(None).send(CycleEmptied(EMPTIED)) == [LetGo(EMPTIED)]


def test_where_there_is_no_gpu_nothing_is_said() -> None:
    node = Node()
    assert node.send(CycleEmptied(EMPTIED), seen(MemoryReport(True))) == [LetGo(EMPTIED)]
    assert node.said == []


def test_a_long_wait_is_told_once_and_after_its_time_the_restart_goes_on() -> None:
    node = Node()
    node.send(CycleEmptied(EMPTIED))
    assert node.send(seen(HELD), at=1.0) == [asked(49.0)]
    assert node.send(seen(HELD), at=50.0) == [LetGo(EMPTIED)]
    assert node.said == [
        ("gpu_memory_held", f"waiting at most 49 s more for GPU memory: {HOLDER}"),
        (
            "gpu_memory_not_freed",
            f"GPU memory is not free after 50 s, and the restart goes on: {HOLDER}; end what holds it ({STATISTICS})",
        ),
        ("node_suspect", SUSPECT),
    ]


def test_a_node_is_suspect_until_its_memory_is_found_free() -> None:
    node = Node()
    for cycle in (0, 1):
        node.send(CycleEmptied(WorkersEmptied(JOB, cycle)), seen(HELD, cycle))
        node.send(seen(HELD, cycle), at=50.0)
        [check] = node.state.seen
        reason = (
            "9000 MiB in use after 50 s, held by pid 12 (python, user ada); nothing checks it before the next restart"
        )
        assert check.finding == HealthFinding("gpu_memory", Health.SUSPECT, reason, 0.0, "GPU 0")
    silent = MemoryReport(False, unknown="NVML has not answered within 5 s")
    node.send(CycleEmptied(WorkersEmptied(JOB, 2)), seen(silent, 2))
    assert gpu_reclaim.is_suspect(node.state), "what can't be asked clears nobody"
    node.send(CycleEmptied(WorkersEmptied(JOB, 3)), seen(FREE, 3), at=60.0)
    assert node.state.seen == (CheckView(HealthFinding("gpu_memory", Health.HEALTHY, "", 0.02, "GPU 0"), 60.0),)
    assert [text for kind, text in node.said if kind == "node_suspect"] == [SUSPECT], "told once"
    assert [text for kind, text in node.said if kind == "node_cleared"] == [
        "node a is no longer suspect: the memory of its GPUs is free"
    ]


def test_a_spawner_in_the_place_of_a_lost_one_waits_for_memory_too() -> None:
    node = Node()
    ready = SpawnerReady(JOB, 2)
    assert node.send(SpawnerReplaced(JOB, 0)) == [asked(FIRST_S)]
    assert node.send(SpawnerCame(ready)) == []
    assert node.send(seen(FREE)) == [LetGo(ready)]
    assert node.send(SpawnerReplaced(JOB, 0), seen(FREE)) == [], "free before the spawner is ready"
    assert node.send(SpawnerCame(ready)) == [LetGo(ready)]
    assert Node(None).send(SpawnerReplaced(JOB, 0)) == []


def test_what_a_lost_spawner_has_said_is_dropped_and_the_wait_goes_on() -> None:
    node = Node()
    assert node.send(CycleEmptied(EMPTIED)) == [asked(FIRST_S)]
    assert node.send(SpawnerReplaced(JOB, 0)) == [], "memory is being looked at already"
    assert node.send(seen(FREE)) == []


def test_a_short_time_is_waited_for_in_one_piece() -> None:
    node = Node(msgspec.structs.replace(RULES, timeout_s=0.5))
    assert node.send(CycleEmptied(EMPTIED)) == [asked(0.5)]
    assert node.send(seen(HELD), at=0.5) == [LetGo(EMPTIED)]


def test_left_over_processes_that_were_killed_are_told() -> None:
    node = Node()
    node.send(CycleEmptied(EMPTIED), seen(msgspec.structs.replace(FREE, ended=(12,))))
    assert [kind for kind, _ in node.said] == ["gpu_holder_killed", "gpu_memory_free"]


def test_a_driver_that_does_not_answer_holds_nothing_up_and_is_told_once() -> None:
    node = Node()
    silent = MemoryReport(False, unknown="NVML has not answered within 5 s")
    for cycle in (0, 1):
        emptied = WorkersEmptied(JOB, cycle)
        assert node.send(CycleEmptied(emptied), seen(silent, cycle)) == [LetGo(emptied)]
    assert node.said == [("gpu_memory_unknown", "GPU memory is not waited for: NVML has not answered within 5 s")]


def test_no_answer_at_all_holds_a_restart_up_for_a_bounded_time() -> None:
    node = Node()
    node.send(CycleEmptied(EMPTIED), at=7.0)
    assert gpu_reclaim.next_deadline_s(node.state) == 7.0 + FIRST_S + ANSWER_S
    assert node.send(DeadlineReached(), at=7.5) == []
    assert node.send(DeadlineReached(), at=7.0 + FIRST_S + ANSWER_S) == [LetGo(EMPTIED)]
    assert node.send(seen(FREE), at=60.0) == [], "too late"


def test_the_end_of_a_job_waits_for_no_memory() -> None:
    node = Node()
    node.send(CycleEmptied(EMPTIED))
    assert node.send(WaitDropped()) == [LetGo(EMPTIED)]
    assert node.send(WaitDropped()) == []
    assert node.send(seen(FREE)) == []


def test_an_answer_about_another_cycle_changes_nothing() -> None:
    node = Node()
    node.send(CycleEmptied(WorkersEmptied(JOB, 3)))
    assert node.send(seen(FREE, cycle=2)) == []
