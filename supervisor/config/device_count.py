"""How many GPUs and CPUs may this job use? Asked of NVML and the kernel, never of torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

from supervisor.errors import ConfigurationError

INFINIBAND = "/sys/class/infiniband"
_LIBRARY = "libnvidia-ml.so.1"
_DRIVER_SIGNS = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")  # the last: Linux under Windows


def count_cpus() -> int:
    """Counts the CPUs that this process may run on."""
    return len(os.sched_getaffinity(0))


def has_gpu_driver(environ: Mapping[str, str]) -> bool:
    """Returns whether files show that there is an NVIDIA driver. Asks the driver nothing."""
    folders = environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)  # where the loader looks first
    signs = (*_DRIVER_SIGNS, *(os.path.join(folder, _LIBRARY) for folder in folders if folder))
    return any(map(os.path.exists, signs))


def has_network_cards(folder: str = INFINIBAND) -> bool:
    """Returns whether there is a card that the checks of network ports know: InfiniBand or RoCE."""
    try:
        return bool(os.listdir(folder))
    except OSError:
        return False


def count_gpus(environ: Mapping[str, str]) -> int:
    """Counts the GPUs that CUDA would show in this environment; 0 without a driver. Blocks while NVML answers."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    return visible_count(visible, _device_uuids())


def visible_count(visible: str | None, uuids: tuple[str, ...]) -> int:
    """Applies CUDA's rule for CUDA_VISIBLE_DEVICES: entries count up to the first that names no device.

    A device named twice leaves none. Of MIG devices a process sees one.
    """
    if visible is None:
        return len(uuids)
    chosen: list[int] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.startswith("MIG-"):
            return 1 if uuids and not chosen else len(chosen)
        index = _device_index(entry, uuids)
        if index is None:
            break
        if index in chosen:
            return 0
        chosen.append(index)
    return len(chosen)


def _device_index(entry: str, uuids: tuple[str, ...]) -> int | None:
    if entry.startswith("GPU-"):
        matching = [index for index, uuid in enumerate(uuids) if uuid.startswith(entry)]
        return matching[0] if len(matching) == 1 else None
    if entry.isascii() and entry.isdigit() and int(entry[:6]) < len(uuids):
        return int(entry[:6])
    return None


def _device_uuids() -> tuple[str, ...]:
    """Returns the UUIDs of all devices in NVML's order; () without an NVIDIA driver."""
    try:
        import pynvml  # pyright: ignore[reportMissingTypeStubs]  # costs 20 ms: only where GPUs are counted
    except ImportError as error:
        raise ConfigurationError(
            "cannot count the GPUs: nvidia-ml-py is not installed; install holdfast-torch with its extra [supervisor] "
            "(in a clone: pip install '.[supervisor]'), or write --nproc-per-node with a number"
        ) from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    nvml = cast("Any", pynvml)
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return tuple(str(nvml.nvmlDeviceGetUUID(handle)) for handle in handles)
    except pynvml.NVMLError as error:
        raise ConfigurationError(
            f"cannot count the GPUs: NVML says {error}; write --nproc-per-node with a number"
        ) from error
    finally:
        pynvml.nvmlShutdown()
