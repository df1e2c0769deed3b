"""What may a driver report about GPUs, and is the node fit then?"""

from __future__ import annotations

import msgspec
import pytest

from supervisor.core.gpu_verdict import GpuWords, Known, Look, confirmed, has_flighty, judge
from supervisor.core.node_check_facts import Health, HealthFinding

UP = (True, True, True)
WELL = GpuWords("GPU 0", "GPU-a", action="", ecc_errors=0, remap_failed=False, remap_pending=False, links=UP)
OTHER = msgspec.structs.replace(WELL, name="GPU 1", uuid="GPU-b")
SILENT = GpuWords("GPU 0", "GPU-a")


def findings(*looks: Look) -> list[HealthFinding]:
    """Returns the findings of the last check."""
    known, found = Known(), tuple[HealthFinding, ...]()
    for look in looks:
        found, known = judge(look, known, took_s=0.01)
    return list(found)


def changed(**words: object) -> Look:
    return Look((msgspec.structs.replace(WELL, **words), OTHER))


def test_healthy_gpus_have_a_finding_each() -> None:
    found = findings(Look((WELL, OTHER)))
    assert [(each.name, each.health, each.reason) for each in found] == [
        ("gpu GPU 0", Health.HEALTHY, ""), ("gpu GPU 1", Health.HEALTHY, ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"action": "gpu reset"}, "GPU 0: the driver asks for a recovery action: gpu reset"),
        ({"is_lost": True}, "GPU 0: the driver has lost it; reset it, or restart the node"),
        ({"remap_failed": True}, "GPU 0: a memory row could not be remapped; the GPU has to be replaced"),
        ({"ecc_errors": 2}, "GPU 0: 2 uncorrectable memory errors since the first look; reset it"),
        ({"links": (True, False, True)}, "GPU 0: NVLink 1 of 3 went down; check nvidia-smi nvlink -s"),
        ({"links": ()}, "GPU 0: NVLink 0, 1, 2 of 3 went down; check nvidia-smi nvlink -s"),
        (
            {"action": "node reboot", "ecc_errors": 1},
            "GPU 0: the driver asks for a recovery action: node reboot; "
            "1 uncorrectable memory errors since the first look; reset it",
        ),
    ],
)
def test_what_makes_a_gpu_unhealthy(words: dict[str, object], reason: str) -> None:
    found = findings(Look((WELL, OTHER)), changed(**words))
    assert [(each.health, each.reason) for each in found] == [(Health.UNHEALTHY, reason), (Health.HEALTHY, "")]


def test_what_the_driver_does_not_say_is_held_against_nobody() -> None:
    assert [each.health for each in findings(Look((SILENT,)))] == [Health.HEALTHY]
    assert [each.health for each in findings(Look((WELL,)), Look((msgspec.structs.replace(SILENT, links=UP),)))] == [
        Health.HEALTHY
    ]


def test_a_gpu_of_which_the_driver_refuses_every_value_has_not_answered() -> None:
    refused = Look((msgspec.structs.replace(SILENT, refusal="Unknown Error"), OTHER))
    for looks in ((refused,), (Look((WELL, OTHER)), refused)):
        assert [(each.health, each.reason) for each in findings(*looks)] == [
            (Health.UNANSWERED, "GPU 0: the driver refuses all of its values: Unknown Error"), (Health.HEALTHY, ""),
        ]  # fmt: skip
    fallen = msgspec.structs.replace(refused, xids=(("GPU-a", 79),))
    assert [each.health for each in findings(fallen)] == [Health.UNHEALTHY, Health.HEALTHY]
    lost = Look((msgspec.structs.replace(SILENT, refusal="GPU is lost", is_lost=True), OTHER))
    [found, _] = findings(Look((WELL, OTHER)), lost)
    assert found.reason == "GPU 0: the driver has lost it; reset it, or restart the node"


def test_a_link_that_the_driver_refuses_to_describe_is_not_down() -> None:
    well = Look((WELL, OTHER))
    for links in ((None,), (True, None)):
        assert [each.health for each in findings(well, changed(links=links))] == [Health.HEALTHY, Health.HEALTHY]
        assert findings(changed(links=links), changed(links=(True, False, False)))[0].health is Health.HEALTHY
    [found, _] = findings(well, changed(links=(False, None)))
    assert found.reason == "GPU 0: NVLink 0 of 3 went down; check nvidia-smi nvlink -s"


def test_an_event_of_a_gpu_counts_against_each_slice_of_it() -> None:
    slices = tuple(msgspec.structs.replace(SILENT, name=name, uuid=name, whole="GPU-a") for name in ("MIG-a", "MIG-b"))
    found = findings(Look((*slices, OTHER), xids=(("GPU-a", 79),)))
    assert [each.health for each in found] == [Health.UNHEALTHY, Health.UNHEALTHY, Health.HEALTHY]


def test_what_was_there_at_the_first_look_is_only_noted() -> None:
    worn = changed(ecc_errors=3, remap_pending=True, links=(True, False, True))
    [found, _] = findings(worn, worn)
    assert found.health is Health.HEALTHY
    assert found.reason == (
        "3 uncorrectable memory errors were there before; a memory row will be remapped at the next reset"
    )
    [found, _] = findings(worn, changed(ecc_errors=4, links=(True, False, True)))
    assert found.health is Health.UNHEALTHY
    [found, _] = findings(worn, changed(ecc_errors=0), changed(ecc_errors=1))
    assert found.health is Health.UNHEALTHY, "counted from a driver that was loaded again"


def test_only_events_that_a_gpu_can_not_get_over_count() -> None:
    look = Look((WELL, OTHER), xids=(("GPU-a", 31), ("GPU-a", 43), ("GPU-a", 94), ("GPU-b", 79), ("GPU-b", 119)))
    assert [each.reason for each in findings(look)] == [
        "",
        "GPU 1: Xid 79: it has fallen off the bus; Xid 119: its system processor does not answer",
    ]


@pytest.mark.parametrize(
    ("ill", "is_reset"),
    [
        ([changed(ecc_errors=2), changed(ecc_errors=0)], True),
        ([changed(action="gpu reset"), changed(action=None), changed()], True),
        ([changed(is_lost=True), changed(is_lost=True), changed()], True),
        ([changed(uuid="", is_lost=True), changed(uuid="", is_lost=True), changed()], True),
        ([Look((OTHER,), lost=(("GPU 0", ""),)), Look((OTHER,), lost=(("GPU 0", ""),)), changed()], True),
        ([], False),
        ([changed(is_lost=True), changed()], False),  # at a single look
        ([changed(action="gpu reset"), changed(action=None)], False),
        ([changed(is_lost=True)] * 2 + [changed(action=None, ecc_errors=None, refusal="Unknown Error")], False),
        ([Look((OTHER,)), Look((OTHER,)), changed()], False),  # the driver did not say that it was lost
    ],
)
def test_an_event_counts_until_the_gpu_is_reset(ill: list[Look], *, is_reset: bool) -> None:
    begun = msgspec.structs.replace(Look((WELL, OTHER)), xids=(("GPU-a", 48), ("GPU-b", 79)))
    reasons = [each.reason for each in findings(begun, *ill)]
    assert any("Xid 48" in each for each in reasons) is not is_reset
    assert any("Xid 79" in each for each in reasons), "that GPU was not reset"
    [found, _] = findings(begun, *ill, Look((WELL, OTHER), xids=(("GPU-a", 48),)))
    assert "Xid 48" in found.reason, "an event after the reset"


def test_an_event_counts_against_a_slice_until_its_whole_gpu_was_lost_and_is_there_again() -> None:
    slice_ = msgspec.structs.replace(SILENT, name="MIG-a", uuid="MIG-a", whole="GPU-a")
    begun, lost = Look((slice_,), xids=(("GPU-a", 79),)), Look((), lost=(("GPU 0", "GPU-a"),))
    assert [each.subject for each in findings(begun, lost)] == ["GPU 0"]
    [found] = findings(begun, lost, Look((slice_,)))
    assert found.reason == "MIG-a: Xid 79: it has fallen off the bus", "lost at a single look"
    [found] = findings(begun, lost, lost, Look((slice_,)))
    assert (found.subject, found.health) == ("MIG-a", Health.HEALTHY)


def test_a_gpu_that_is_not_there_any_more_is_unhealthy() -> None:
    for later in (Look((WELL,)), Look((WELL,), lost=(("GPU 1", "GPU-b"),))):
        found = findings(Look((WELL, OTHER)), later)
        assert [(each.subject, each.health) for each in found] == [
            ("GPU 0", Health.HEALTHY), ("GPU 1", Health.UNHEALTHY),
        ]  # fmt: skip
    assert [each.subject for each in findings(Look((WELL,), lost=(("GPU 1", "GPU-b"),)))] == ["GPU 0", "GPU 1"]


def test_a_gpu_whose_uuid_could_not_be_read_at_one_look_is_not_lost_at_another() -> None:
    resetting = changed(uuid="", is_lost=True, ecc_errors=3, links=(True, False, True))
    well = Look((WELL, OTHER))
    for looks in ((resetting, well), (well, resetting, well), (well, changed(uuid="")), (well, changed(uuid=""), well)):
        assert {each.health for each in findings(*looks)} == {Health.HEALTHY}
    of_another = Look((msgspec.structs.replace(WELL, uuid=""), OTHER), xids=(("", 79),))
    assert {each.health for each in findings(of_another)} == {Health.HEALTHY}
    assert [each.health for each in findings(well, resetting)] == [Health.UNHEALTHY, Health.HEALTHY], "it is lost now"


def test_a_gpu_whose_uuid_cannot_be_read_any_more_is_compared_with_the_one_of_its_name():
    worn = changed(uuid="", ecc_errors=3, links=(True, False, True))
    first, known = judge(Look((WELL, OTHER)), Known(), took_s=0.01)
    first, known = judge(worn, known, took_s=0.01)
    again, known = judge(worn, known, took_s=0.01)
    assert has_flighty(first)
    found = confirmed(first, again)
    assert [(each.subject, each.health) for each in found] == [
        ("GPU 0", Health.UNHEALTHY), ("GPU 1", Health.HEALTHY),
    ]  # fmt: skip
    assert found[0].reason.startswith("GPU 0: 3 uncorrectable memory errors since the first look; reset it; NVLink 1")
    nameless = msgspec.structs.replace(WELL, uuid="")
    fallen = Look((nameless, OTHER), xids=(("GPU-a", 79),))
    assert [each.health for each in findings(Look((WELL, OTHER)), fallen)] == [Health.UNHEALTHY, Health.HEALTHY]
    moved = Look((msgspec.structs.replace(worn.gpus[0], links=UP), msgspec.structs.replace(WELL, name="GPU 1")))
    assert [each.subject for each in findings(Look((WELL,)), moved) if each.health is Health.UNHEALTHY] == []


def test_gpus_after_a_lost_one_are_not_blamed() -> None:
    """CUDA's order ends at the first GPU that is not there, so the driver is not asked about the others."""
    words = [msgspec.structs.replace(WELL, uuid=f"GPU-{index}", name=f"GPU {index}") for index in range(4)]
    _, known = judge(Look(tuple(words)), Known(), took_s=0.0)
    found, _ = judge(Look(tuple(words[:1]), lost=(("GPU 1", "GPU-1"),)), known, took_s=0.0)
    assert [(each.subject, each.health) for each in found] == [
        ("GPU 0", Health.HEALTHY),
        ("GPU 1", Health.UNHEALTHY),
    ]


def test_without_a_gpu_the_check_is_skipped() -> None:
    assert [each.health for each in findings(Look(()))] == [Health.SKIPPED]


def test_what_may_pass_is_looked_at_twice() -> None:
    first = tuple(findings(Look((WELL, OTHER)), changed(links=(True, False, True))))
    again = tuple(findings(Look((WELL, OTHER)), changed(links=UP)))
    assert has_flighty(first)
    assert not has_flighty(tuple(findings(changed(action="gpu reset"))))
    assert [each.health for each in confirmed(first, again)] == [Health.HEALTHY, Health.HEALTHY]
    assert [each.health for each in confirmed(first, first)] == [Health.UNHEALTHY, Health.HEALTHY]
    assert [(each.health, each.reason[:9]) for each in confirmed(again, first)] == [
        (Health.HEALTHY, "seen once"), (Health.HEALTHY, ""),
    ]  # fmt: skip
