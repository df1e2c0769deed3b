"""A node's storage is checked: mounts, paths and Lustre's own report, in parallel."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import anyio
import pytest

from supervisor.config.job_spec import JobSpec
from supervisor.config.node_check_plans import HealthChecks
from supervisor.core.node_check_facts import Health, HealthCheckPolicy, HealthFinding
from supervisor.edges.machine.health.storage_probe import StorageProbe
from tests.soak.places import served_alone

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def probe(tmp_path: Path) -> Generator[StorageProbe]:
    made = StorageProbe(mountinfo=str(tmp_path / "mountinfo"), lustre_health=str(tmp_path / "health_check"))
    (tmp_path / "mountinfo").write_text("22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n")
    yield made
    made.close()


def spec(*paths: Path, mounts: bool = False, policy: HealthCheckPolicy = HealthCheckPolicy.DOCUMENTED) -> JobSpec:
    health = HealthChecks(policy=policy, storage_mounts=mounts, storage_paths=tuple(map(str, paths)))
    return JobSpec("j", ("x.py",), health=health)


async def look(probe: StorageProbe, asked: JobSpec) -> dict[str, HealthFinding]:
    return {each.subject: each for each in await probe.look(asked, list[object]().append)}


async def test_paths_are_judged_one_by_one(probe: StorageProbe, tmp_path: Path) -> None:
    found = await look(probe, spec(tmp_path, tmp_path / "nowhere"))
    assert found[str(tmp_path)].health is Health.HEALTHY
    missing = found[str(tmp_path / "nowhere")]
    assert (missing.health, missing.reason) == (
        Health.UNHEALTHY,
        f"{tmp_path}/nowhere can't be read: No such file or directory",
    )


async def test_a_node_without_network_file_systems_is_skipped(probe: StorageProbe) -> None:
    (found,) = (await look(probe, spec(mounts=True))).values()
    assert (found.health, found.reason) == (Health.SKIPPED, "this node mounts neither Lustre nor NFS")


async def test_lustre_and_its_mounts_are_looked_at(probe: StorageProbe, tmp_path: Path) -> None:
    good, gone = tmp_path / "good", tmp_path / "gone"
    good.mkdir()
    (tmp_path / "health_check").write_text("NOT HEALTHY\n")
    with (tmp_path / "mountinfo").open("a") as mountinfo:
        mountinfo.write(f"40 22 0:50 / {good} rw - lustre fs rw\n41 22 0:51 / {gone} rw - nfs4 server:/x rw\n")
    found = await look(probe, spec(mounts=True))
    assert {Path(path).name: each.health for path, each in found.items()} == {
        "health_check": Health.UNHEALTHY,
        "good": Health.HEALTHY,
        "gone": Health.UNHEALTHY,
    }
    assert found[str(gone)].reason == f"{gone} (nfs4) can't be read: No such file or directory"


@pytest.mark.alone
async def test_e9_one_mount_of_three_that_hangs_keeps_back_no_word_of_the_others(
    probe: StorageProbe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.core.storage_verdict.MOUNT_DEADLINE_S", 1.0)
    with served_alone(tmp_path / "hanging") as hanging:
        if hanging is None:
            pytest.skip("needs root, mount namespaces and /dev/fuse")
        hanging.swallow()
        (tmp_path / "good").mkdir()
        for name in ("good", "hanging", "gone"):
            with (tmp_path / "mountinfo").open("a") as mountinfo:
                mountinfo.write(f"40 22 0:50 / {tmp_path / name} rw - nfs server:/{name} rw\n")
        so_far: list[tuple[HealthFinding, ...]] = []
        for policy, verdict in (
            (HealthCheckPolicy.DOCUMENTED, Health.UNANSWERED),
            (HealthCheckPolicy.STRICT, Health.UNHEALTHY),
        ):
            began_s = anyio.current_time()
            findings = await probe.look(spec(mounts=True, policy=policy), so_far.append)
            expected = [("gone", Health.UNHEALTHY), ("good", Health.HEALTHY), ("hanging", verdict)]
            assert [(Path(each.subject).name, each.health) for each in findings] == expected
        assert anyio.current_time() - began_s < 0.5, "it is known to be stuck"
        assert [each.health for each in so_far[0]] == [Health.UNHEALTHY, Health.HEALTHY, Health.UNANSWERED]


@pytest.mark.alone
async def test_nobody_waits_for_what_has_hung_when_it_was_looked_at_last(
    probe: StorageProbe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.edges.machine.health.storage_probe.PATH_DEADLINE_S", 1.0)
    with served_alone(tmp_path / "hanging") as hanging:
        if hanging is None:
            pytest.skip("needs root, mount namespaces and /dev/fuse")
        hanging.fail()
        assert (await heard_after_s(probe, spec(tmp_path, hanging.folder))) >= 0.4
        assert (await heard_after_s(probe, spec(tmp_path, hanging.folder))) < 0.4


async def heard_after_s(probe: StorageProbe, asked: JobSpec) -> float:
    """Returns how long a join waits that is patient with its storage."""
    heard: list[tuple[float, tuple[HealthFinding, ...]]] = []

    def report(findings: tuple[HealthFinding, ...]) -> None:
        heard.append((anyio.current_time(), findings))

    began_s = anyio.current_time()
    report(await probe.look(asked, report))
    at_s, findings = heard[0]
    assert sorted(each.health for each in findings) == [Health.HEALTHY, Health.UNANSWERED]
    return at_s - began_s
