"""The driver is a fake libnvidia-ml below the real pynvml; the kernel is a fake /sys."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from worker_client.inprocess.devices import device_checks
from worker_client.inprocess.devices.device_checks import Device, Verdict, check_nic, links_down

ROOT = Path(__file__).parents[4]
SCRIPT = """
import os, sys
from worker_client.inprocess import health_check
from worker_client.inprocess.exception import HealthCheckError
from worker_client.inprocess.state import State
health_check.DEVICE_CHECK_TIMEOUT_S = float(os.environ.get("CHECK_TIMEOUT_S", "5"))
index = int(sys.argv[2]) if len(sys.argv) > 2 else None
state = State(0, 1).freeze()
try:
    assert getattr(health_check, sys.argv[1])(index)(state) is state
    print("fit")
except HealthCheckError as error:
    print(error)
"""
Run = Callable[..., str]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    command = ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(folder / "libnvidia-ml.so.1")]
    subprocess.run([*command, str(ROOT / "tests/fakes/nvml.c")], check=True)
    return folder


@pytest.fixture
def run(library: Path) -> Run:
    def run_check(check: str, index: int | None = None, **environment: str) -> str:
        command = [sys.executable, "-c", SCRIPT, check, *([] if index is None else [str(index)])]
        kept = {name: value for name, value in os.environ.items() if name not in ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK")}
        environment = {**kept, "LD_LIBRARY_PATH": str(library), "PYTHONPATH": str(ROOT), **environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.strip()

    return run_check


@pytest.mark.parametrize(
    ("action", "said"), [("0", "fit"), ("1", "gpu reset"), ("2", "node reboot"), ("99", "action of its GPU: 99")]
)
def test_a_gpu_is_unfit_where_the_driver_asks_for_a_recovery_action(run: Run, action: str, said: str):
    assert said in run("ChainedGPUHealthCheck", LOCAL_RANK="0", FAKE_NVML_ACTION_0=action)


def test_a_lost_gpu_is_unfit(run: Run):
    assert "lost its GPU" in run("ChainedGPUHealthCheck", LOCAL_RANK="1", FAKE_NVML_LOST="1")
    assert "lost its GPU" in run("ChainedGPUHealthCheck", LOCAL_RANK="1", FAKE_NVML_FIELD="15")


@pytest.mark.parametrize("shown", ["GPU-zero,GPU-one", "GPU-z,GPU-o"])
def test_a_lost_gpu_that_is_named_by_its_uuid_is_unfit_and_no_other(run: Run, shown: str):
    environment = {"CUDA_VISIBLE_DEVICES": shown, "FAKE_NVML_LOST": "1"}
    assert "lost its GPU" in run("_OwnGPUHealthCheck", LOCAL_RANK="1", **environment)
    assert run("_OwnGPUHealthCheck", LOCAL_RANK="0", **environment) == "fit"


@pytest.mark.parametrize(
    ("local_rank", "shown", "said"),
    [
        ("1", None, "gpu reset"),
        ("0", None, "fit"),
        ("0", "1,0", "gpu reset"),
        ("1", "1,0", "fit"),
        ("0", "GPU-one", "gpu reset"),
        ("0", "GPU-o", "gpu reset"),  # CUDA takes the beginning of a UUID
        ("0", "GPU-", "fit"),
        ("0", "GPU-other", "fit"),
        ("5", "1", "gpu reset"),  # each rank sees only its own GPU
        ("5", "0,1", "fit"),
        ("0", "MIG-1234", "fit"),
        ("7", None, "fit"),
        ("x", None, "fit"),
    ],
)
def test_the_ranks_gpu_is_the_one_that_cuda_shows(run: Run, local_rank: str, shown: str | None, said: str):
    """As seen by the check of every restart."""
    environment = {"LOCAL_RANK": local_rank} | ({} if shown is None else {"CUDA_VISIBLE_DEVICES": shown})
    assert said in run("_OwnGPUHealthCheck", FAKE_NVML_ACTION_1="1", **environment)


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (None, "gpu reset (GPU 1)"),
        ("0", "fit"),
        ("1", "gpu reset (GPU 1)"),
        ("0,GPU-one", "gpu reset (GPU GPU-one)"),
        ("7,MIG-1234,1", "gpu reset (GPU 1)"),
        ("", "fit"),
    ],
)
def test_a_check_without_an_index_asks_about_each_gpu_that_cuda_shows(run: Run, shown: str | None, said: str):
    """It does not matter which is the rank's."""
    environment = {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}
    for local_rank in ("0", "1"):
        told = run("ChainedGPUHealthCheck", LOCAL_RANK=local_rank, FAKE_NVML_ACTION_1="1", **environment)
        assert said in told
    assert said in run("ChainedGPUHealthCheck", FAKE_NVML_ACTION_1="1", **environment)


def test_of_several_gpus_the_one_that_is_lost_is_named(run: Run):
    assert "lost its GPU; the node needs a reset or a reboot (GPU 0)" in run(
        "ChainedGPUHealthCheck", FAKE_NVML_LOST="0"
    )
    assert run("ChainedNVLHealthCheck", FAKE_NVML_LINK_DOWN="2") == "fit"


def test_an_index_is_nvmls(run: Run):
    environment = {"FAKE_NVML_ACTION_1": "1", "LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "0"}
    assert "gpu reset" in run("ChainedGPUHealthCheck", 1, **environment)


@pytest.mark.parametrize(
    "environment",
    [
        {"FAKE_NVML_INIT": "9"},
        {"FAKE_NVML_FIELD": "3"},
        {"LD_LIBRARY_PATH": ""},
        {"FAKE_NVML_HANGS": "1", "CHECK_TIMEOUT_S": "0.2"},
    ],
    ids=["no driver", "not supported", "no library", "hangs"],
)
@pytest.mark.parametrize("check", ["ChainedGPUHealthCheck", "ChainedNVLHealthCheck", "ChainedNicHealthCheck"])
def test_a_check_that_cannot_answer_says_nothing_against_the_rank(run: Run, check: str, environment: dict[str, str]):
    assert run(check, LOCAL_RANK="0", FAKE_NVML_ACTION_0="0", **environment) == "fit"


def test_an_nvlink_that_is_down_is_told_and_does_not_end_the_rank(run: Run):
    assert run("ChainedNVLHealthCheck", LOCAL_RANK="0", FAKE_NVML_LINK_DOWN="2") == "fit"


# --- the network card ----------------------------------------------------------------------------------------------


@pytest.fixture
def sys_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes two GPUs, each behind a switch with its own card, and a card that shares no switch with a GPU."""
    root = tmp_path / "devices/pci0000:00"
    places = {"0000:30:00.0": "a", "0000:31:00.0": "b"}
    pci = tmp_path / "bus"
    pci.mkdir()
    for bus, switch in places.items():
        (root / f"switch-{switch}" / bus).mkdir(parents=True)
        (pci / bus).symlink_to(root / f"switch-{switch}" / bus)
    for card, switch in {"mlx5_0": "a", "mlx5_1": "b", "mlx5_2": "c"}.items():
        device = root / f"switch-{switch}" / f"card-{card}"
        device.mkdir(parents=True)
        counters = tmp_path / "infiniband" / card / "ports/1/counters"
        counters.mkdir(parents=True)
        (counters / "link_downed").write_text("3\n")
        (tmp_path / "infiniband" / card / "device").symlink_to(device)
    monkeypatch.setattr(device_checks, "_INFINIBAND", tmp_path / "infiniband")
    monkeypatch.setattr(device_checks, "_PCI_DEVICES", pci)
    return tmp_path


@pytest.fixture
def first_gpu(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Returns the driver's answer, without a driver."""

    class Nvml:
        class PciInfo:
            busId = b"00000000:30:00.0"

        @staticmethod
        def nvmlDeviceGetPciInfo(_: object) -> PciInfo:
            return Nvml.PciInfo()

    def answer(_: Device, check: Callable[[object, object], Verdict]) -> Verdict:
        return check(Nvml, None)

    monkeypatch.setattr(device_checks, "_verdict", answer)
    return Device(0, None)


def _lose_link(sys_tree: Path, card: str) -> None:
    (sys_tree / "infiniband" / card / "ports/1/counters/link_downed").write_text("4\n")


def test_the_nearest_card_is_the_ranks(sys_tree: Path, first_gpu: Device):
    found, _ = links_down(first_gpu)
    assert found == {"mlx5_0 port 1": 3}


def test_a_link_that_went_down_since_then_is_unfit_and_another_gpus_is_not(sys_tree: Path, first_gpu: Device):
    before, _ = links_down(first_gpu)
    assert not check_nic(first_gpu, before).is_unfit
    _lose_link(sys_tree, "mlx5_1")
    _lose_link(sys_tree, "mlx5_2")
    assert not check_nic(first_gpu, before).is_unfit
    _lose_link(sys_tree, "mlx5_0")
    verdict = check_nic(first_gpu, before)
    assert verdict.is_unfit
    assert "mlx5_0 port 1" in verdict.reason


def test_a_gpu_without_a_card_of_its_own_is_not_judged_by_those_of_others(sys_tree: Path, first_gpu: Device):
    (sys_tree / "infiniband/mlx5_0/device").unlink()
    (sys_tree / "infiniband/mlx5_0/device").symlink_to(sys_tree / "devices/pci0000:00/switch-c")
    assert links_down(first_gpu)[0] == {}
