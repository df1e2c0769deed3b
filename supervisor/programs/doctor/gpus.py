"""Which GPUs does the driver show, and may this user use them?"""

from __future__ import annotations

import json
import os
import sys

from supervisor.programs.doctor.doctor_finding import Area, DoctorFinding
from supervisor.programs.doctor.machine_probe import Machine

ANSWER_TIMEOUT_S = 20.0  # a healthy driver answers within 3 s, even if no process keeps it loaded
PROBE = """\
import json, pynvml
pynvml.nvmlInit()
devices = []
for index in range(pynvml.nvmlDeviceGetCount()):
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(device)
    name = pynvml.nvmlDeviceGetName(device)
    try:
        minor = pynvml.nvmlDeviceGetMinorNumber(device)
    except pynvml.NVMLError:
        minor = "*"
    devices.append({"name": name, "minor": minor, "used_bytes": memory.used, "total_bytes": memory.total})
print(json.dumps({"driver": pynvml.nvmlSystemGetDriverVersion(), "devices": devices}))
"""
USED_MAX_BYTES = 1 << 30


def device_files(machine: Machine) -> list[str]:
    """Returns the device files, one for each GPU."""
    return [name for name in machine.names("/dev") if name.startswith("nvidia") and name[6:].isdigit()]


def look(machine: Machine) -> list[DoctorFinding]:
    """Checks the GPUs. NVML is asked in another process, because it may hang if a GPU is ill."""
    area = Area("gpus")
    files = device_files(machine)
    if not files and not machine.text("/proc/driver/nvidia/version"):
        area.skip("devices", "no NVIDIA driver")
        return area.findings
    closed = [name for name in files if not os.access(machine.path(f"/dev/{name}"), os.R_OK | os.W_OK)]
    if closed:
        area.problem(
            "devices",
            f"/dev/{closed[0]} may not be opened",
            why="ranks cannot use that GPU",
            remedy=f"chmod a+rw /dev/{closed[0]}, or check the device rules of the container or of Slurm's gres.conf",
        )
    answer = machine.ask([sys.executable, "-P", "-c", PROBE], timeout_s=ANSWER_TIMEOUT_S)
    if answer.fault and not files and not answer.is_late:
        area.note(
            "devices",
            f"a driver, but no /dev/nvidia* and no NVML ({answer.fault})",
            why="ranks can use no GPU: in a container, the driver is the host's, and none of its GPUs is given to it",
            remedy="for a job with GPUs: docker run --gpus all, or --device nvidia.com/gpu=all; outside a container: "
            "nvidia-modprobe -u -c 0, as root",
        )
        return area.findings
    if answer.fault:
        area.problem(
            "nvml",
            answer.fault,
            why="GPUs are neither counted nor checked, and their memory is not waited for",
            remedy="nvidia-smi, then dmesg | grep -i xid",
        )
        return area.findings
    told = json.loads(answer.stdout)
    area.ok("nvml", f"driver {told['driver']}, {len(told['devices'])} GPUs")
    _models(area, machine, told["devices"])
    _memory(area, told["devices"])
    return area.findings


def _models(area: Area, machine: Machine, devices: list[dict[str, int | str]]) -> None:
    models = sorted({str(device["name"]) for device in devices})
    if len(models) > 1 and machine.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        area.note(
            "order",
            f"GPUs of several models ({', '.join(models)}), and CUDA_DEVICE_ORDER is not PCI_BUS_ID",
            why="CUDA counts them by speed, the driver and the checks of a node along the PCI bus: a number in "
            "CUDA_VISIBLE_DEVICES may mean two GPUs, and workers can't be bound to the right CPUs",
            remedy="export CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID (nvidia-smi -L)",
        )


def _memory(area: Area, devices: list[dict[str, int | str]]) -> None:
    for index, device in enumerate(devices):
        used, total = int(device["used_bytes"]), int(device["total_bytes"])
        told = f"{device['name']}, {used / 2**30:.1f} of {total / 2**30:.0f} GiB in use"
        if used > USED_MAX_BYTES:
            area.note(
                f"gpu {index}",
                told,
                why="a job that starts now has less memory",
                remedy=f"fuser -v /dev/nvidia{device['minor']} shows who holds it",  # its index may be another number
            )
        else:
            area.ok(f"gpu {index}", told)
