"""The launcher's guide, statement by statement: health service, storage and GPU memory."""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec
import pytest

from supervisor.config.health_endpoint import parse_endpoint
from supervisor.config.healthd_file import HealthdSettings, read_healthd_file
from supervisor.core.gpu_memory import MIB, MemoryRules
from supervisor.core.node.gpu_reclaim import CycleEmptied, LetGo
from supervisor.core.node_check_facts import Health, HealthCheckPolicy
from supervisor.core.nvhcd_verdict import NoReply, Reply, Unusable, judge
from supervisor.core.storage_verdict import LUSTRE_HEALTH, Answered, Kind
from supervisor.edges.machine.health.nvhcd_client import NvhcdClient
from supervisor.edges.machine.health.path_probes import PathProbes
from supervisor.edges.machine.health.storage_probe import StorageProbe
from supervisor.errors import ConfigurationError, InvalidRequestError
from tests.config.runs import request, with_section
from tests.core.node import test_gpu_reclaim as gpu_memory
from tests.core.node import test_node_check_round as fitness
from tests.edges.machine.health.test_nvhcd_client import service
from tests.edges.machine.health.test_storage_probe import look, spec
from tests.seeds.documents import Document, asked

GUIDE = Document("launcher-usage-guide")
DOCUMENTED = HealthCheckPolicy.DOCUMENTED
HEALTHY = '{"fail_count": 0}'
MOUNTS = "--ft-enable-dist-storage-healthcheck"


# --- the node's health service ---------------------------------------------------------------------------------------


@GUIDE.says(28, "--ft-node-health-check-endpoint(alias:--ft-node_health_check_endpoint) sets the optional node health")
@pytest.mark.parametrize("flag", ["--ft-node-health-check-endpoint", "--ft-node_health_check_endpoint"])
def test_the_endpoint_has_an_alias(flag: str):
    assert asked(flag, "/var/run/nvhcd.sock").health.nvhcd_socket == "/var/run/nvhcd.sock"


@GUIDE.says(33, "query an optional node-local health check service before workers enter")
def test_a_node_joins_only_after_its_check():
    node = fitness.Node()
    assert node.reports(fitness.RoundBegun(), fitness.JoinWanted(fitness.JOINED)) == []
    assert node.reports(fitness.checked(1, fitness.WELL)) == [fitness.JOINED]


@GUIDE.says(36, "any equivalent daemon can be used if it implements the expected gRPC API over a Unix domain socket")
def test_any_server_of_the_interface_is_asked(tmp_path: Path):
    with service(tmp_path / "s", lambda _: b"\x08\x01\x1a\x11" + HEALTHY.encode()):  # success, output
        assert anyio.run(NvhcdClient(str(tmp_path / "s")).ask) == Reply(True, HEALTHY)


@GUIDE.says(43, "fail_count == 0for a healthy node and a nonzerofail_countfor an unhealthy node")
@pytest.mark.parametrize(("count", "health"), [(0, Health.HEALTHY), (1, Health.UNHEALTHY)])
def test_the_count_of_failures_decides(count: int, health: Health):
    assert judge(Reply(True, f'{{"fail_count": {count}}}'), DOCUMENTED).health is health


@GUIDE.says(51, "ft_launcher \\ --ft-node-health-check-endpoint unix:///var/run/nvhcd.sock \\ train.py")
def test_the_example_with_a_health_service():
    found = request("--ft-node-health-check-endpoint", "unix:///var/run/nvhcd.sock", "train.py")
    assert (found.spec.health.nvhcd_socket, found.warnings) == ("/var/run/nvhcd.sock", ())


@GUIDE.says(55, "UDS endpoints are supported. The value can be a path such as /var/run/nvhcd.sockor aunix://URI")
def test_a_path_and_a_uri_are_the_same_socket():
    assert parse_endpoint("/var/run/nvhcd.sock") == parse_endpoint("unix:///var/run/nvhcd.sock")


@GUIDE.says(56, "If the endpoint is omitted, NVRx skips the external node health check")
def test_without_an_endpoint_nothing_is_asked():
    assert asked().health.plans("n1") == ()


@GUIDE.says(57, "UDS socket is missing, or a connectivity error occurs, NVRx treats the external check as unavailable")
def test_a_service_that_is_not_there_fails_no_job(tmp_path: Path):
    answer = anyio.run(NvhcdClient(str(tmp_path / "none")).ask)
    assert isinstance(answer, NoReply)
    assert judge(answer, DOCUMENTED).health is Health.SKIPPED


@GUIDE.says(58, "Explicit failures reported by the service mark the node unhealthy")
def test_an_unhealthy_node_does_not_join():
    node = fitness.Node()
    node.send(fitness.RoundBegun(), fitness.JoinWanted(fitness.JOINED))
    excluded, _ = node.reports(fitness.checked(1, fitness.ILL))
    assert isinstance(excluded, fitness.NodeExcluded)


@GUIDE.says(60, "must implement HealthCheckService.RunHealthCheckfrom the NVRxnvhcdprotobuf API and listen on the")
def test_another_interface_is_no_service(tmp_path: Path):
    with service(tmp_path / "s", lambda _: b"", name="other.HealthCheckService"):
        assert not isinstance(anyio.run(NvhcdClient(str(tmp_path / "s")).ask), Reply)


@GUIDE.says(62, 'args=["--no-slurm"]')
def test_the_service_is_asked_with_its_argument(tmp_path: Path):
    heard: list[bytes] = []

    def answer(question: bytes) -> bytes:
        heard.append(question)
        return b""

    with service(tmp_path / "s", answer):
        anyio.run(NvhcdClient(str(tmp_path / "s")).ask)
    assert heard == [b"\n\x0a--no-slurm"]  # field 1


@GUIDE.says(62, "The response must set successand return JSON inoutput. A healthy node is reported with")
def test_a_healthy_answer():
    assert judge(Reply(True, HEALTHY), DOCUMENTED).health is Health.HEALTHY


@GUIDE.says(64, "successis false,fail_countis nonzero, oroutputcannot be parsed as JSON with afail_countfield")
@pytest.mark.parametrize(
    "answer", [Reply(False, HEALTHY), Reply(True, '{"fail_count": 3}'), Reply(True, "well"), Reply(True, "{}")]
)
def test_any_other_answer_is_unhealthy(answer: Reply):
    assert judge(answer, DOCUMENTED).health is Health.UNHEALTHY
    assert judge(Unusable("no frame"), DOCUMENTED).health is Health.UNHEALTHY


@GUIDE.says(66, "socket_path: /var/run/nvhcd.sock healthcheck_path: /usr/local/sbin/nvrx-bcm-healthcheck-wrapper.sh")
def test_the_example_of_the_services_file(tmp_path: Path):
    path = "/usr/local/sbin/nvrx-bcm-healthcheck-wrapper.sh"
    file = tmp_path / "config.yaml"
    file.write_text(f"socket_path: /var/run/nvhcd.sock\nhealthcheck_path: {path}\nlog_level: info\ntimeout: 120\n")
    assert read_healthd_file(str(file)) == HealthdSettings(path, "/var/run/nvhcd.sock", "info", 120.0)


# --- storage ---------------------------------------------------------------------------------------------------------


@GUIDE.says(91, "distributed storage health check before rendezvous. By default it is disabled")
def test_storage_is_not_checked_by_default():
    assert (asked().health.storage_mounts, asked().health.storage_paths) == (False, ())


@GUIDE.says(91, "When enabled (via CLI or YAML)")
def test_the_storage_check_is_enabled_in_a_file(tmp_path: Path):
    assert with_section(tmp_path, "enable_dist_storage_healthcheck: true").spec.health.storage_mounts


def mounted(folder: Path, lustre: str) -> dict[str, Health]:
    """Returns what is found on a node with Lustre and one mount that is gone."""
    probe = StorageProbe(mountinfo=str(folder / "mountinfo"), lustre_health=str(folder / "health_check"))
    (folder / "health_check").write_text(lustre)
    (folder / "mountinfo").write_text(f"41 22 0:51 / {folder}/gone rw - nfs4 server:/x rw\n")
    try:
        found = anyio.run(look, probe, msgspec.structs.replace(spec(), health=asked(MOUNTS, "true").health))
    finally:
        probe.close()
    return {Path(path).name: each.health for path, each in found.items()}


@GUIDE.says(92, "Verifies Lustre health via /sys/fs/lustre/health_check(fails if not healthy)")
def test_lustre_says_whether_it_is_healthy(tmp_path: Path):
    assert LUSTRE_HEALTH == "/sys/fs/lustre/health_check"
    assert mounted(tmp_path, "healthy\n")["health_check"] is Health.HEALTHY
    assert mounted(tmp_path, "NOT HEALTHY\n")["health_check"] is Health.UNHEALTHY


@GUIDE.says(93, "Discovers distributed mount targets and checks that each mount is reachable")
def test_a_mount_that_is_gone_is_found(tmp_path: Path):
    assert mounted(tmp_path, "healthy\n")["gone"] is Health.UNHEALTHY


@GUIDE.says(94, "(alias:--ft_enable_dist_storage_healthcheck) - Accepts a boolean-like value only to enable the mount")
def test_the_flag_takes_a_boolean():
    for flag in (MOUNTS, "--ft_enable_dist_storage_healthcheck"):
        assert asked(flag, "true").health.storage_mounts
        assert not asked(flag, "false").health.storage_mounts
    with pytest.raises(InvalidRequestError, match="neither true nor false"):
        asked(f"{MOUNTS}=perhaps")


@GUIDE.says(99, "--ft-storage-health-check-path(alias:--ft_storage_health_check_path) - Accepts a comma-separated list")
@pytest.mark.parametrize("flag", ["--ft-storage-health-check-path", "--ft_storage_health_check_path"])
def test_paths_are_listed_with_commas(flag: str):
    assert asked(flag, "/data/checkpoints,/mnt/dataset").health.storage_paths == ("/data/checkpoints", "/mnt/dataset")


@GUIDE.says(99, "absolute paths (each starting with/)")
def test_a_relative_path_is_refused():
    with pytest.raises(InvalidRequestError, match="'data' is not an absolute path"):
        asked("--ft-storage-health-check-path", "data,/mnt")


@GUIDE.says(101, 'fault_tolerance: # Comma-separated absolute paths storage_healthcheck_path: "/data/checkpoints,/mnt')
def test_the_example_of_paths_in_a_file(tmp_path: Path):
    section = '# Comma-separated absolute paths\nstorage_healthcheck_path: "/data/checkpoints,/mnt/dataset"'
    assert with_section(tmp_path, section).spec.health.storage_paths == ("/data/checkpoints", "/mnt/dataset")


@GUIDE.says(100, "storage_healthcheck_pathunder thefault_tolerancesection fault_tolerance:")
def test_the_example_as_printed_without_indentation_is_an_error_with_its_line(tmp_path: Path):
    file = tmp_path / "ft.yaml"
    file.write_text('fault_tolerance:\n# Comma-separated\nstorage_healthcheck_path: "/data/checkpoints,/mnt/dataset"\n')
    with pytest.raises(ConfigurationError, match="line 3"):
        asked("--ft-cfg-path", str(file))


@GUIDE.says(105, "Files: attempts to read a small block (up to 4KB)")
def test_files_folders_and_devices_are_looked_at(tmp_path: Path):
    (tmp_path / "word").write_text("x" * 10_000)
    probes = PathProbes()

    async def answers(*paths: str) -> list[object]:
        return [await probes.look(Kind.ANY, path, timeout_s=30.0) for path in paths]

    try:
        found = anyio.run(answers, str(tmp_path / "word"), str(tmp_path), "/dev/null", str(tmp_path / "none"))
    finally:
        probes.close()
    assert [isinstance(each, Answered) for each in found] == [True, True, True, False]


# --- GPU memory ------------------------------------------------------------------------------------------------------


@GUIDE.says(139, "--ft-gpu-memory-reclaim-timeout(default: 50.0 seconds)")
def test_the_wait_for_memory():
    assert asked().memory_rules() == MemoryRules(50.0, 512 * MIB, 2.0)


@GUIDE.says(139, "Set to 0 to disable the feature")
def test_no_wait_for_memory():
    assert asked("--ft-gpu-memory-reclaim-timeout", "0").memory_rules() is None


@GUIDE.says(139, "--ft-gpu-memory-tolerance-mb(default: 512.0 MB) Maximum allowed GPU memory usage")
def test_the_tolerance():
    rules = asked("--ft-gpu-memory-tolerance-mb", "64").memory_rules()
    assert rules is not None
    assert rules.tolerance_bytes == 64 * MIB


@GUIDE.says(139, "--ft-gpu-memory-poll-interval(default: 2.0 seconds)")
def test_the_interval():
    rules = asked("--ft-gpu-memory-poll-interval", "0.5").memory_rules()
    assert rules is not None
    assert rules.look_s == 0.5


@GUIDE.says(140, "On restarts, the launcher periodically checks GPU memory usage and waits until it drops below")
def test_a_restart_waits_for_memory():
    node = gpu_memory.Node()
    assert node.send(CycleEmptied(gpu_memory.EMPTIED)) == [gpu_memory.asked(gpu_memory.FIRST_S)]
    assert node.send(gpu_memory.seen(gpu_memory.FREE)) == [LetGo(gpu_memory.EMPTIED)]


@GUIDE.says(140, "Memory statistics for each GPU are collected and logged after the reclaim process completes")
def test_a_wait_in_vain_is_said_and_the_restart_goes_on():
    node = gpu_memory.Node()
    node.send(CycleEmptied(gpu_memory.EMPTIED), gpu_memory.seen(gpu_memory.HELD))
    assert node.send(gpu_memory.seen(gpu_memory.HELD), at=50.0) == [LetGo(gpu_memory.EMPTIED)]
    (told,) = [reason for kind, reason in node.said if kind == "gpu_memory_not_freed"]
    assert gpu_memory.STATISTICS in told


def test_the_statements_stand_at_their_lines():
    GUIDE.compare()
