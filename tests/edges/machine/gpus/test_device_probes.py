"""What do the checks of GPUs and network cards find, with a simulated driver and sysfs?"""

from __future__ import annotations

import os
import time
from pathlib import Path

import anyio
import msgspec
import pytest

from supervisor.config import node_check_plans
from supervisor.config.job_spec import JobSpec
from supervisor.config.node_check_plans import HealthChecks
from supervisor.core.node_check_facts import Health, HealthFinding
from supervisor.edges.machine.gpus import device_probes, gpu_process
from supervisor.edges.machine.gpus.device_probes import GpuProbe, NicProbe
from supervisor.edges.machine.gpus.nic_ports import read_ports
from supervisor.edges.machine.gpus.node_gpus import NodeGpus
from tests.edges.machine.gpus.conftest import SOCKET
from tests.fakes.gpus import Gpus

SPEC = JobSpec("job", ("t.py",))
COUNTING = msgspec.structs.replace(SPEC, health=HealthChecks(nic_counters=True))


async def test_a_healthy_node(node_gpus: NodeGpus) -> None:
    found = await GpuProbe(node_gpus).look(SPEC)
    assert [(each.name, each.health, each.reason) for each in found] == [
        ("gpu GPU 0", Health.HEALTHY, ""), ("gpu GPU 1", Health.HEALTHY, ""),
    ]  # fmt: skip


async def test_what_the_driver_says_makes_its_gpu_unhealthy_and_no_other(node_gpus: NodeGpus, gpus: Gpus) -> None:
    probe = GpuProbe(node_gpus)
    await probe.look(SPEC)
    gpus[1].action, gpus[1].ecc_errors, gpus[1].remap_failed = 2, 1, 1
    gpus.report_xid(1, 79)
    gpus.report_xid(0, 31)
    for _ in range(2):
        found = {each.subject: each for each in await probe.look(SPEC)}
        assert found["GPU 0"].health is Health.HEALTHY, "Xid 31 is a program's own fault"
        assert found["GPU 1"].health is Health.UNHEALTHY
        for words in ("node reboot", "1 uncorrectable memory errors", "could not be remapped", "Xid 79"):
            assert words in found["GPU 1"].reason
    restricted = msgspec.structs.replace(SPEC, visible_gpus=("0",))
    assert [each.health for each in await probe.look(restricted)] == [Health.HEALTHY]


async def test_a_lost_gpu_and_a_link_that_went_down(node_gpus: NodeGpus, gpus: Gpus) -> None:
    probe = GpuProbe(node_gpus)
    await probe.look(SPEC)
    gpus[0].links_up = 0b0111
    gpus[1].is_lost = 1
    found = {each.subject: each for each in await probe.look(SPEC)}
    assert "NVLink 3 of 4 went down" in found["GPU 0"].reason
    assert "the driver has lost it" in found["GPU 1"].reason
    assert {each.health for each in found.values()} == {Health.UNHEALTHY}


@pytest.mark.parametrize("visible", [("GPU-00000000", "GPU-1"), ("1", "0")], ids=["UUIDs", "numbers"])
@pytest.mark.parametrize("is_seen_before", [True, False])
async def test_a_lost_gpu_is_named_however_cuda_is_told_of_it(
    node_gpus: NodeGpus, gpus: Gpus, visible: tuple[str, ...], *, is_seen_before: bool
) -> None:
    probe, restricted = GpuProbe(node_gpus), msgspec.structs.replace(SPEC, visible_gpus=visible)
    if is_seen_before:
        await probe.look(restricted)
    gpus[1].is_lost = 1
    unhealthy = [each for each in await probe.look(restricted) if each.health is Health.UNHEALTHY]
    assert [each.subject for each in unhealthy] == ["GPU 1"]
    assert "the driver has lost it" in unhealthy[0].reason


async def test_a_gpu_that_fell_ill_in_one_job_is_ill_for_one_that_names_it_otherwise(
    node_gpus: NodeGpus, gpus: Gpus
) -> None:
    probe = GpuProbe(node_gpus)
    await probe.look(msgspec.structs.replace(SPEC, visible_gpus=("0", "1")))
    gpus[0].ecc_errors, gpus[0].links_up = 3, 0b0111
    for visible in (("0",), (gpus[0].uuid.decode(),), None):
        found = (await probe.look(msgspec.structs.replace(SPEC, visible_gpus=visible)))[0]
        assert (found.subject, found.health) == ("GPU 0", Health.UNHEALTHY)
        assert "3 uncorrectable memory errors since the first look; reset it; NVLink 3 of 4 went down" in found.reason
    [found] = await probe.look(msgspec.structs.replace(SPEC, visible_gpus=("1",)))
    assert (found.subject, found.health) == ("GPU 1", Health.HEALTHY)


async def test_a_gpu_whose_uuid_can_not_be_read_for_a_moment_is_neither_lost_nor_forgotten(
    node_gpus: NodeGpus, gpus: Gpus
) -> None:
    probe, restricted = GpuProbe(node_gpus), msgspec.structs.replace(SPEC, visible_gpus=("GPU-0", "GPU-1"))
    first, second = gpus[0].uuid, gpus[1].uuid
    await probe.look(restricted)
    gpus[0].uuid = b""
    assert [each.health for each in await probe.look(restricted)] == [Health.HEALTHY, Health.HEALTHY]
    gpus[0].uuid, gpus[1].uuid = first, b""
    assert [each.health for each in await probe.look(restricted)] == [Health.HEALTHY, Health.HEALTHY]
    gpus[1].is_lost = 1
    found = await probe.look(restricted)
    assert [(each.subject, each.health) for each in found] == [("GPU 0", Health.HEALTHY), ("GPU 1", Health.UNHEALTHY)]
    gpus[0].uuid, gpus[1].uuid, gpus[1].is_lost = b"", second, 0
    gpus.report_xid(0, 79)
    found = await probe.look(restricted)
    assert [(each.subject, each.health) for each in found] == [("GPU 0", Health.UNHEALTHY), ("GPU 1", Health.HEALTHY)]
    assert "Xid 79" in found[0].reason, "the event of a GPU that does not tell its UUID"


@pytest.mark.parametrize("visible", [("GPU-0",), ("0",), ("MIG-a",), ("0", ""), ("0", "-1")])
async def test_a_lost_gpu_of_another_job_is_none_of_this_ones(
    node_gpus: NodeGpus, gpus: Gpus, visible: tuple[str, ...]
) -> None:
    gpus[0].migs = 1
    gpus[0].mig[0].uuid = b"MIG-a"
    gpus[1].is_lost = 1
    for _ in range(2):
        found = await GpuProbe(node_gpus).look(msgspec.structs.replace(SPEC, visible_gpus=visible))
        assert [each.health for each in found] == [Health.HEALTHY]


async def test_a_slice_of_a_lost_gpu_is_lost(node_gpus: NodeGpus, gpus: Gpus) -> None:
    probe = GpuProbe(node_gpus)
    gpus.state.devices = 3
    gpus[0].migs = 1
    gpus[0].mig[0].uuid = b"MIG-a"
    restricted = msgspec.structs.replace(SPEC, visible_gpus=("MIG-a",))
    await probe.look(restricted)
    gpus[2].is_lost = 1
    assert [each.health for each in await probe.look(restricted)] == [Health.HEALTHY]
    gpus[0].is_lost, gpus[0].migs = 1, 0
    [found] = await probe.look(restricted)
    assert (found.subject, found.health) == ("GPU 0", Health.UNHEALTHY)


async def test_an_event_counts_against_a_slice_until_its_whole_gpu_was_lost_and_is_there_again(
    node_gpus: NodeGpus, gpus: Gpus
) -> None:
    probe, restricted = GpuProbe(node_gpus), msgspec.structs.replace(SPEC, visible_gpus=("MIG-a",))
    gpus[0].migs = 1
    gpus[0].mig[0].uuid = b"MIG-a"
    await probe.look(restricted)
    gpus.report_xid(0, 79)
    await probe.look(restricted)
    gpus[0].is_lost, gpus[0].migs = 1, 0
    [found] = await probe.look(restricted)
    assert (found.subject, found.health) == ("GPU 0", Health.UNHEALTHY)
    gpus[0].is_lost, gpus[0].migs = 0, 1
    [found] = await probe.look(restricted)
    assert (found.subject, found.health, found.reason) == ("MIG-a", Health.HEALTHY, "")


async def test_an_event_of_a_gpu_counts_against_its_slice_and_one_of_another_instance_does_not(
    node_gpus: NodeGpus, gpus: Gpus
) -> None:
    probe, restricted = GpuProbe(node_gpus), msgspec.structs.replace(SPEC, visible_gpus=("MIG-a",))
    gpus[0].migs = 1
    gpus[0].mig[0].uuid = b"MIG-a"
    await probe.look(restricted)
    gpus.report_xid(0, 95, instance=3)
    assert [each.health for each in await probe.look(restricted)] == [Health.HEALTHY]
    gpus.report_xid(0, 79)
    [found] = await probe.look(restricted)
    assert (found.subject, found.health) == ("MIG-a", Health.UNHEALTHY)
    assert "Xid 79" in found.reason


@pytest.mark.parametrize(
    ("status", "health", "reason"),
    [
        (999, Health.UNANSWERED, "GPU 0: the driver refuses all of its values: Unknown Error"),
        (15, Health.UNHEALTHY, "GPU 0: the driver has lost it; reset it, or restart the node"),
        (16, Health.UNHEALTHY, "GPU 0: the driver has lost it; reset it, or restart the node"),
        (3, Health.HEALTHY, ""),
    ],
    ids=["unknown error", "lost", "reset required", "not supported"],
)
async def test_a_gpu_of_which_the_driver_refuses_every_value(
    node_gpus: NodeGpus, gpus: Gpus, status: int, health: Health, reason: str
) -> None:
    probe, gpu = GpuProbe(node_gpus), gpus[0]
    if status != 3:  # otherwise its links were up, and are no longer there
        await probe.look(SPEC)
    gpu.ecc_status = gpu.action_status = gpu.rows_status = gpu.links_status = status
    found, other = await probe.look(SPEC)
    assert (found.subject, found.health, found.reason) == ("GPU 0", health, reason)
    assert other.health is Health.HEALTHY


@pytest.mark.parametrize("query", ["ecc_status", "action_status", "rows_status", "links_status"])
async def test_any_query_may_say_that_a_gpu_is_lost(node_gpus: NodeGpus, gpus: Gpus, query: str) -> None:
    probe = GpuProbe(node_gpus)
    await probe.look(SPEC)
    setattr(gpus[0], query, 15)
    found, other = await probe.look(SPEC)
    assert found.reason == "GPU 0: the driver has lost it; reset it, or restart the node"
    assert (found.health, other.health) == (Health.UNHEALTHY, Health.HEALTHY)


async def test_a_link_that_comes_back_at_once_costs_nothing(
    node_gpus: NodeGpus, gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def train_again(_: float, *, why: str) -> None:
        assert why
        gpus[0].links_up = 0b1111

    monkeypatch.setattr(device_probes, "pause", train_again)
    probe = GpuProbe(node_gpus)
    await probe.look(SPEC)
    gpus[0].links_up = 0
    assert [each.health for each in await probe.look(SPEC)] == [Health.HEALTHY, Health.HEALTHY]


async def test_a_driver_that_hangs_or_does_not_start_tells_nothing_about_the_node(
    node_gpus: NodeGpus, gpus: Gpus
) -> None:
    probe = GpuProbe(node_gpus)
    gpus.state.init_status = 9
    [found] = await probe.look(SPEC)
    assert (found.health, found.reason) == (
        Health.UNANSWERED, "the GPUs can't be asked: NVML says Driver Not Loaded"
    )  # fmt: skip
    gpus.state.init_status = 0
    await probe.look(SPEC)
    node_gpus.process.answer_s = 0.3
    gpus.hang()
    before_s = time.monotonic()
    [found] = await probe.look(SPEC)
    assert (found.health, "has not answered within 0.3 s" in found.reason) == (Health.UNANSWERED, True)
    assert time.monotonic() - before_s < 20


async def test_an_event_is_not_lost_with_the_look_that_was_given_up(node_gpus: NodeGpus, gpus: Gpus) -> None:
    """The job has ended meanwhile."""
    probe = GpuProbe(node_gpus)
    await probe.look(SPEC)
    gpus.report_xid(0, 79)
    gpus.state.device_hangs = 1
    async with anyio.create_task_group() as looking:
        looking.start_soon(probe.look, SPEC)
        await anyio.wait_all_tasks_blocked()
        looking.cancel_scope.cancel()
    gpus.state.device_hangs = 0
    for _ in range(2):
        found = {each.subject: each for each in await probe.look(SPEC)}
        assert found["GPU 0"].reason == "GPU 0: Xid 79: it has fallen off the bus"
        assert (found["GPU 0"].health, found["GPU 1"].health) == (Health.UNHEALTHY, Health.HEALTHY)


async def test_an_event_is_not_lost_with_the_process_that_its_gpu_keeps_from_answering(
    node_gpus: NodeGpus, gpus: Gpus
) -> None:
    probe = GpuProbe(node_gpus)
    await probe.look(SPEC)
    node_gpus.process.answer_s = 1.0
    gpus.report_xid(0, 119)
    gpus.state.device_hangs = 1
    [found] = await probe.look(SPEC)
    assert found.health is Health.UNANSWERED
    node_gpus.process.answer_s = 20.0
    gpus.state.device_hangs = 0
    found = {each.subject: each for each in await probe.look(SPEC)}
    assert found["GPU 0"].reason == "GPU 0: Xid 119: its system processor does not answer"
    assert (found["GPU 0"].health, found["GPU 1"].health) == (Health.UNHEALTHY, Health.HEALTHY)


async def reset_after_a_look_without_an_answer(node_gpus: NodeGpus, gpus: Gpus) -> GpuProbe:
    """Returns a probe that has read Xid 119 of GPU 0, which is reset before the next look."""
    probe = GpuProbe(node_gpus)
    gpus[0].action = 1
    await probe.look(SPEC)
    node_gpus.process.answer_s = 1.0
    gpus.report_xid(0, 119)
    gpus.state.device_hangs = 1
    [found] = await probe.look(SPEC)
    assert found.health is Health.UNANSWERED
    node_gpus.process.answer_s = 20.0
    gpus.state.device_hangs = gpus[0].action = 0
    while node_gpus.process.pid is None:  # The one that hung may not have ended yet.
        await node_gpus.process.warm()
    return probe


async def test_a_reset_after_a_look_without_an_answer_ends_what_that_look_has_read(
    node_gpus: NodeGpus, gpus: Gpus
) -> None:
    probe = await reset_after_a_look_without_an_answer(node_gpus, gpus)
    for _ in range(2):
        assert {each.health for each in await probe.look(SPEC)} == {Health.HEALTHY}


async def test_a_reset_ends_what_an_earlier_look_has_read_although_looks_of_two_jobs_overlap(
    node_gpus: NodeGpus, gpus: Gpus
) -> None:
    probe = await reset_after_a_look_without_an_answer(node_gpus, gpus)
    async with anyio.create_task_group() as looking:
        for _ in range(2):
            looking.start_soon(probe.look, SPEC)
    assert {each.health for each in await probe.look(SPEC)} == {Health.HEALTHY}


@pytest.mark.parametrize("is_given_up_first", [True, False])
async def test_a_reset_ends_what_a_look_that_is_given_up_has_read_although_another_one_is_in_progress(
    is_given_up_first: bool, node_gpus: NodeGpus, gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = await reset_after_a_look_without_an_answer(node_gpus, gpus)

    async def never_answers(*_: object, **__: object) -> None:
        await anyio.sleep_forever()

    async with anyio.create_task_group() as looking, anyio.create_task_group() as given_up:
        with monkeypatch.context() as silent:
            silent.setattr(node_gpus.process, "ask", never_answers)
            given_up.start_soon(probe.look, SPEC)
            await anyio.wait_all_tasks_blocked()
        if is_given_up_first:
            looking.start_soon(probe.look, SPEC)
            await anyio.wait_all_tasks_blocked()
        else:
            await probe.look(SPEC)
        given_up.cancel_scope.cancel()
    for _ in range(2):
        assert {each.health for each in await probe.look(SPEC)} == {Health.HEALTHY}


async def test_the_same_event_again_after_the_reset_counts(node_gpus: NodeGpus, gpus: Gpus) -> None:
    probe = await reset_after_a_look_without_an_answer(node_gpus, gpus)
    gpus.report_xid(0, 119)
    for _ in range(2):
        found = {each.subject: each for each in await probe.look(SPEC)}
        assert found["GPU 0"].reason == "GPU 0: Xid 119: its system processor does not answer"
        assert (found["GPU 0"].health, found["GPU 1"].health) == (Health.UNHEALTHY, Health.HEALTHY)


def test_a_look_that_is_started_and_asks_twice_ends_before_its_deadline() -> None:
    waits_s = (gpu_process.ANSWER_S, 2 * (gpu_process.DOOMED_S + gpu_process.ANSWER_S), device_probes.CONFIRM_S)
    assert sum(waits_s) < node_check_plans.DEVICES_DEADLINE_S


async def test_a_node_without_a_driver_is_skipped(tmp_path: Path) -> None:
    without = NodeGpus(worker_socket=SOCKET, environment={})
    if not without.are_there():
        assert [each.health for each in await GpuProbe(without).look(SPEC)] == [Health.SKIPPED]


@pytest.fixture
def cards(tmp_path: Path) -> Path:
    folder = tmp_path / "infiniband"
    for card, ports in (("mlx5_0", "1"), ("mlx5_1", "12")):
        for port in ports:
            write(folder, card, port)
    return folder


def write(folder: Path, card: str, port: str = "1", *, state: str = "4: ACTIVE", downs: int = 0) -> None:
    place = folder / card / "ports" / port
    (place / "counters").mkdir(parents=True, exist_ok=True)
    (place / "state").write_text(f"{state}\n")
    (place / "counters" / "link_downed").write_text(f"{downs}\n")


async def test_a_port_that_goes_down_makes_the_node_unhealthy_and_one_that_was_down_does_not(
    node_gpus: NodeGpus, cards: Path
) -> None:
    write(cards, "mlx5_1", "2", state="1: DOWN")
    probe = NicProbe(node_gpus, folder=str(cards))
    assert {each.health for each in await probe.look(SPEC)} == {Health.HEALTHY}
    write(cards, "mlx5_0", state="2: INIT")
    found = {each.subject: each for each in await probe.look(SPEC)}
    assert found["mlx5_0 port 1"].reason == "mlx5_0 port 1 was ACTIVE and is INIT; check cable and switch port"
    assert [each.health for each in found.values()].count(Health.UNHEALTHY) == 1


async def test_a_port_that_comes_back_at_once_costs_nothing(
    node_gpus: NodeGpus, cards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def train_again(_: float, *, why: str) -> None:
        assert why
        write(cards, "mlx5_0", state="4: ACTIVE")

    monkeypatch.setattr(device_probes, "pause", train_again)
    probe = NicProbe(node_gpus, folder=str(cards))
    await probe.look(SPEC)
    write(cards, "mlx5_0", state="2: INIT")
    assert {each.health for each in await probe.look(SPEC)} == {Health.HEALTHY}


async def test_a_card_that_hangs_keeps_no_gpu_from_being_checked(node_gpus: NodeGpus, gpus: Gpus, cards: Path) -> None:
    gpu_probe, nic_probe = GpuProbe(node_gpus), NicProbe(node_gpus, folder=str(cards))
    await gpu_probe.look(SPEC)
    (cards / "mlx5_0/ports/1/state").unlink()
    os.mkfifo(cards / "mlx5_0/ports/1/state")
    node_gpus.cards.answer_s = 0.5
    gpus[1].is_lost = 1
    found: dict[str, tuple[HealthFinding, ...]] = {}

    async def look(probe: GpuProbe | NicProbe) -> None:
        found[type(probe).__name__] = await probe.look(SPEC)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look, nic_probe)
        tasks.start_soon(look, gpu_probe)
    assert [each.health for each in found["GpuProbe"]] == [Health.HEALTHY, Health.UNHEALTHY]
    [silent] = found["NicProbe"]
    assert (silent.health, silent.reason) == (
        Health.UNANSWERED,
        "the network cards can't be looked at: the driver of the network cards has not answered within 0.5 s",
    )


async def test_a_port_that_flaps_is_debounced(node_gpus: NodeGpus, cards: Path) -> None:
    probe = NicProbe(node_gpus, folder=str(cards))
    await probe.look(COUNTING)
    health: list[Health] = []
    for downs in (1, 2, 3):
        write(cards, "mlx5_0", downs=downs)
        health.append(next(each.health for each in await probe.look(COUNTING) if each.subject == "mlx5_0 port 1"))
        await anyio.lowlevel.checkpoint()
    assert health == [Health.HEALTHY, Health.HEALTHY, Health.UNHEALTHY]


async def test_templates_name_the_files(node_gpus: NodeGpus, cards: Path, tmp_path: Path) -> None:
    (tmp_path / "mlx5_0.state").write_text("4: ACTIVE")
    (tmp_path / "mlx5_1.state").write_text("4: ACTIVE")
    health = HealthChecks(link_state_template=f"{tmp_path}/{{nic}}.state")
    spec = msgspec.structs.replace(SPEC, health=health)
    probe = NicProbe(node_gpus, folder=str(cards))
    assert len(await probe.look(spec)) == 2
    (tmp_path / "mlx5_1.state").write_text("1: DOWN")
    assert [each.health for each in await probe.look(spec)] == [Health.HEALTHY, Health.UNHEALTHY]


def test_what_can_not_be_read(cards: Path, tmp_path: Path) -> None:
    (cards / "mlx5_0/ports/1/state").unlink()
    (cards / "mlx5_0/ports/1/counters/link_downed").write_text("none")
    assert read_ports(str(cards)) == [
        ["mlx5_0 port 1", "", None], ["mlx5_1 port 1", "ACTIVE", 0], ["mlx5_1 port 2", "ACTIVE", 0],
    ]  # fmt: skip
    assert read_ports(str(tmp_path / "nothing")) == []
    assert read_ports(str(tmp_path / "infiniband/mlx5_0/ports/1/counters/link_downed")) is None
