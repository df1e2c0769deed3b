"""What do the driver and the kernel say about a rank's GPU, its NVLinks and the network card near it?

NVML is asked through pynvml if both are installed. Anything else, such as a missing library or a query that this GPU
does not support, is "skipped" and does not count against the rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

_LIBRARY = "libnvidia-ml.so.1"
_INFINIBAND = Path("/sys/class/infiniband")
_PCI_DEVICES = Path("/sys/bus/pci/devices")
# What pynvml calls the driver's advice.
_ACTION_PREFIX = "NVML_GPU_RECOVERY_ACTION_"


class Verdict(NamedTuple):
    """The result of a check. `is_unfit` only for a clear defect; `reason` says what was found, or why nothing was."""

    is_unfit: bool
    reason: str


class Device(NamedTuple):
    """Selects a GPU: the one with NVML's `nvml_index`, or the one that CUDA shows to the rank with `local_rank`.

    `is_each`: without an index, all GPUs that CUDA shows to this process.
    """

    nvml_index: int | None
    local_rank: int | None
    is_each: bool = False


class _SkippedError(Exception):
    """Raised if the question can't be answered here; the message says why."""


def check_gpu(device: Device) -> Verdict:
    """Checks whether the GPU is usable. Blocks as long as the driver does."""
    return _verdict(device, _check_recovery_action)


def check_nvlinks(device: Device) -> Verdict:
    """Checks the GPU's links. Blocks as long as the driver does. Never unfit."""
    return _verdict(device, _check_nvlinks)


def check_nic(device: Device, before: dict[str, int]) -> Verdict:
    """Checks whether a counter of `links_down` is higher than `before`."""
    now, verdict = links_down(device)
    raised = [name for name in sorted(before) if now.get(name, before[name]) > before[name]]
    if raised:
        return Verdict(True, f"link down on {', '.join(raised)}; check cable and switch port")
    return verdict


def links_down(device: Device) -> tuple[dict[str, int], Verdict]:
    """Returns card and port → how often the link went down, for the cards nearest to the GPU."""
    found: dict[str, int] = {}

    def read(nvml: Any, handle: Any) -> Verdict:  # noqa: ANN401  # pynvml is optional and has no types
        # NVML writes the domain with eight digits, sysfs with four.
        bus = nvml.nvmlDeviceGetPciInfo(handle).busId
        text = (bus.decode() if isinstance(bus, bytes) else str(bus)).lower()
        gpu = (_PCI_DEVICES / text[-len("0000:00:00.0") :]).resolve()
        found.update(_link_counters(gpu, _INFINIBAND))
        return Verdict(False, f"{len(found)} InfiniBand ports are near the GPU")

    return found, _verdict(device, read)


def _link_counters(gpu: Path, infiniband: Path) -> dict[str, int]:
    """Returns the counters of the cards that share the most PCI bridges with the GPU.

    A card that shares none serves other GPUs too: counting it, one lost link would end all ranks of a node.
    """
    try:
        cards = [(entry.name, (entry / "device").resolve()) for entry in sorted(infiniband.iterdir())]
    except OSError:  # no InfiniBand here
        return {}
    shared = {name: _bridges_shared(gpu, path) for name, path in cards}
    counters: dict[str, int] = {}
    for name, count in shared.items():
        if count == 0 or count < max(shared.values()):
            continue
        for file in sorted((infiniband / name / "ports").glob("*/counters/link_downed")):
            with contextlib.suppress(OSError, ValueError):
                counters[f"{name} port {file.parent.parent.name}"] = int(file.read_text())
    return counters


def _bridges_shared(one: Path, other: Path) -> int:
    """Counts the parts of …/pci0000:00/0000:00:01.0/… that both paths begin with, without the root itself."""
    common: list[str] = []
    for part, other_part in zip(one.parts, other.parts, strict=False):
        if part != other_part:
            break
        common.append(part)
    roots = [index for index, part in enumerate(common) if part.startswith("pci")]
    return len(common) - 1 - roots[0] if roots else 0


def _check_recovery_action(nvml: Any, handle: Any) -> Verdict:  # noqa: ANN401  # pynvml is optional and has no types
    field: int | None = getattr(nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    if field is None:
        raise _SkippedError("this pynvml knows no recovery action")
    value = nvml.nvmlDeviceGetFieldValues(handle, [field])[0]
    if value.nvmlReturn == nvml.NVML_ERROR_GPU_IS_LOST:
        raise nvml.NVMLError(value.nvmlReturn)
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise _SkippedError(f"the driver reports no recovery action: {nvml.nvmlErrorString(value.nvmlReturn)}")
    action = int(value.value.uiVal)
    if action == nvml.NVML_GPU_RECOVERY_ACTION_NONE:
        return Verdict(False, "the GPU needs no recovery action")
    names = (name for name in dir(nvml) if name.startswith(_ACTION_PREFIX) and getattr(nvml, name) == action)
    name = next(names, f"{_ACTION_PREFIX}{action}").removeprefix(_ACTION_PREFIX).replace("_", " ").lower()
    return Verdict(True, f"the driver asks for a recovery action of its GPU: {name}")


def _check_nvlinks(nvml: Any, handle: Any) -> Verdict:  # noqa: ANN401  # pynvml is optional and has no types
    down: list[int] = []
    up_count = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            is_up = bool(nvml.nvmlDeviceGetNvLinkState(handle, link))
        except nvml.NVMLError:  # there is no link with this number
            break
        up_count += is_up
        if not is_up:
            down.append(link)
    return Verdict(False, f"{up_count} NVLinks are up" + (f", down: {down}" if down else ""))


def _verdict(device: Device, check: Callable[[Any, Any], Verdict]) -> Verdict:
    """Returns the first clear defect; an unknown state of one GPU says nothing about the others."""
    try:
        with _nvml() as nvml:
            verdicts = [_verdict_on(nvml, name, check) for name in _names(nvml, device)]
    except _SkippedError as skipped:
        return Verdict(False, f"skipped: {skipped}")
    reason = "; ".join(verdict.reason for verdict in verdicts)
    return next((verdict for verdict in verdicts if verdict.is_unfit), Verdict(False, reason))


def _verdict_on(nvml: Any, name: str, check: Callable[[Any, Any], Verdict]) -> Verdict:  # noqa: ANN401
    try:
        found = check(nvml, nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else _by_uuid(nvml, name))
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_GPU_IS_LOST:
            return Verdict(False, f"skipped: NVML can't tell: {error}")
        found = Verdict(True, "the driver has lost its GPU; the node needs a reset or a reboot")
    except _SkippedError as skipped:
        return Verdict(False, f"skipped: {skipped}")
    return Verdict(True, f"{found.reason} (GPU {name})") if found.is_unfit else found


def _by_uuid(nvml: Any, start: str) -> Any:  # noqa: ANN401  # pynvml is optional and has no types
    """Returns the GPU whose UUID begins so, as CUDA finds it. NVML itself knows whole UUIDs only, and calls each GPU
    lost if any is. A GPU that is not found is one that the driver has lost, if there is one: it has no UUID any more.
    """
    lost: Exception | None = None
    found: list[Any] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            if str(nvml.nvmlDeviceGetUUID(handle)).startswith(start):
                found.append(handle)
        except nvml.NVMLError as error:
            lost = error if error.value == nvml.NVML_ERROR_GPU_IS_LOST else lost
    if len(found) == 1:
        return found[0]
    if lost is not None and not found:
        raise lost
    raise _SkippedError(f"{len(found)} GPUs have a UUID that begins with {start}")


@contextlib.contextmanager
def _nvml() -> Generator[Any, None, None]:
    """Yields pynvml, initialised. A process without the driver's library does not even import it."""
    try:
        ctypes.CDLL(_LIBRARY)
        import pynvml  # pyright: ignore[reportMissingTypeStubs]
    except (OSError, ImportError) as error:
        raise _SkippedError(f"no NVML here: {error}") from None
    nvml: Any = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise _SkippedError(f"NVML does not start: {error}") from None
    try:
        yield nvml
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _names(nvml: Any, device: Device) -> list[str]:  # noqa: ANN401  # pynvml is optional and has no types
    """Returns the GPUs' indices or UUIDs. NVML counts all GPUs of the node, CUDA only those visible to this process, in
    the order given to it.
    """
    if device.nvml_index is not None:
        return [str(device.nvml_index)]
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if device.is_each and shown is None:
        return [str(index) for index in range(nvml.nvmlDeviceGetCount())]
    names = [name.strip() for name in (shown or "").split(",") if name.strip()]
    if device.is_each:
        return [name for name in names if _is_a_gpus(name)]
    if device.local_rank is None:
        raise _SkippedError("LOCAL_RANK is not set, so this rank's GPU is unknown")
    if shown is None:
        return [str(device.local_rank)]
    # A launcher may show each rank only its own GPU.
    name = names[device.local_rank] if device.local_rank < len(names) else names[0] if len(names) == 1 else ""
    if _is_a_gpus(name):
        return [name]
    raise _SkippedError(
        f"CUDA_VISIBLE_DEVICES={shown!r} does not say which GPU belongs to local rank {device.local_rank}"
    )


def _is_a_gpus(name: str) -> bool:
    """Returns whether the name is a GPU's, not a slice's: NVML reports no health of slices."""
    return name.isdigit() or name.startswith("GPU-")
