"""Are unusable GPUs distinguished from none?"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from supervisor.programs.doctor import gpus
from supervisor.programs.doctor.doctor_finding import Grade
from tests.programs.doctor.machines import graded, machine_of, program, the


def test_without_a_driver(tmp_path: Path):
    assert graded(gpus.look(machine_of(tmp_path))) == {"devices": Grade.SKIPPED}


def test_device_files_are_those_of_gpus(tmp_path: Path):
    machine = machine_of(tmp_path, {f"/dev/{name}": "" for name in ("nvidia0", "nvidia11", "nvidiactl", "nvidia-uvm")})
    assert gpus.device_files(machine) == ["nvidia0", "nvidia11"]


def test_nvml_that_fails_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program(tmp_path, "python", "echo pynvml.NVMLError_Unknown: Unknown Error >&2; exit 1")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    found = the(gpus.look(machine_of(tmp_path, {"/dev/nvidia0": ""})), "nvml")
    assert (found.grade, found.found) == (Grade.PROBLEM, "pynvml.NVMLError_Unknown: Unknown Error")


def test_a_container_without_gpus_on_a_node_with_a_driver_has_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program(tmp_path, "python", "echo pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found >&2; exit 1")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    driver = {"/proc/driver/nvidia/version": "NVRM version: 570.1\n"}
    found = gpus.look(machine_of(tmp_path, driver))
    assert graded(found) == {"devices": Grade.NOTE}
    assert "NVML Shared Library Not Found" in the(found, "devices").found
    found = gpus.look(machine_of(tmp_path, driver | {"/dev/nvidia0": ""}))
    assert graded(found) == {"nvml": Grade.PROBLEM}


def test_memory_that_is_held_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    told = (
        '{"driver": "570.1", "devices": ['
        '{"name": "H100", "minor": 2, "used_bytes": 4294967296, "total_bytes": 85899345920},'
        ' {"name": "H100", "minor": 0, "used_bytes": 1, "total_bytes": 85899345920}]}'
    )
    program(tmp_path, "python", f"echo '{told}'")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    found = gpus.look(machine_of(tmp_path, {"/dev/nvidia0": "", "/dev/nvidia1": ""}))
    assert the(found, "nvml").found == "driver 570.1, 2 GPUs"
    assert the(found, "gpu 0").found == "H100, 4.0 of 80 GiB in use"
    assert the(found, "gpu 0").remedy == "fuser -v /dev/nvidia2 shows who holds it", "not the index"
    assert graded(found) == {"nvml": Grade.OK, "gpu 0": Grade.NOTE, "gpu 1": Grade.OK}


def test_gpus_that_cuda_counts_in_another_order_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    size = '"minor": 0, "used_bytes": 1, "total_bytes": 2'
    devices = ", ".join(f'{{"name": "{name}", {size}}}' for name in ("H100", "L4"))
    program(tmp_path, "python", f'echo \'{{"driver": "570.1", "devices": [{devices}]}}\'')
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    machine = machine_of(tmp_path, {"/dev/nvidia0": "", "/dev/nvidia1": ""})
    machine.environ.pop("CUDA_DEVICE_ORDER", None)
    assert the(gpus.look(machine), "order").grade is Grade.NOTE
    machine.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    assert "order" not in graded(gpus.look(machine))


def test_nothing_is_imported_from_the_folder_in_which_it_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("json", "pynvml"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    gpus.look(machine_of(tmp_path, {"/dev/nvidia0": ""}))
    assert not (tmp_path / "ran").exists()
