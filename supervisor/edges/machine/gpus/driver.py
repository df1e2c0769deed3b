"""What does NVML report about each GPU?

Only the disposable process (gpu_program.py) loads this: any of these calls may never return if a GPU is ill. A value
that a driver or a GPU does not know is None, which says nothing against the GPU.
"""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

LINKS_MAX = 32
XIDS_AT_ONCE_MAX = 256
NO_INSTANCE = 0xFFFFFFFF  # of an event that concerns the whole GPU


class DriverError(Exception):
    """Raised if NVML can't be asked at all; its text is the end of a sentence that says why."""


class Device(NamedTuple):
    """`name`: "GPU 3", or the UUID of a slice. `whole`: the handle of the GPU that the slice is part of."""

    name: str
    handle: Any
    whole: Any


class Fitness(NamedTuple):
    """The driver's values about the fitness of one GPU; None: it reports none."""

    name: str
    uuid: str = ""
    is_lost: bool = False
    action: str | None = None  # what the driver asks for, "" if nothing
    ecc_errors: int | None = None  # uncorrectable errors since the driver was loaded
    remap_failed: bool | None = None
    remap_pending: bool | None = None
    refusal: str = ""  # why the driver refuses every value, if it does not merely lack them
    whole: str = ""  # of a slice: the UUID of its GPU
    links: tuple[bool | None, ...] = ()  # whether each NVLink is up; None: this one and later ones can't be read


class Driver:
    """NVML, initialised by the first call."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._refusals: tuple[type[Exception], ...] = ()
        self._lacks: tuple[type[Exception], ...] = ()  # refusals of what a driver or a GPU does not have
        self._losses: tuple[type[Exception], ...] = ()
        self._events: Any = None
        self._watched: dict[int | None, str] = {}  # UUIDs by handle: one whose GPU does not answer still tells
        self._uuids: dict[int, str] = {}  # by index, of all GPUs seen so far: an ill one may have none any more
        self._wholes: dict[str, str] = {}  # by slice seen so far: the UUID of its GPU

    def ready(self) -> None:
        """Initialises NVML, once. Raises DriverError."""
        if self._nvml is not None:
            return
        try:
            import pynvml  # pyright: ignore[reportMissingTypeStubs]
        except ImportError as error:
            raise DriverError(f"nvidia-ml-py is not installed ({error})") from error
        nvml = cast("Any", pynvml)
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise DriverError(f"NVML says {error}") from error
        self._refusals = (nvml.NVMLError, nvml.NVMLLibraryMismatchError)  # the second: an older driver
        self._lacks = (
            nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument, nvml.NVMLError_FunctionNotFound,
            nvml.NVMLLibraryMismatchError,
        )  # fmt: skip
        self._losses = (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired)
        self._nvml = nvml

    def devices(self, visible: Sequence[str] | None, at_most: int = 0) -> list[Device]:
        """Returns the GPUs that CUDA shows a process with that CUDA_VISIBLE_DEVICES (None: unset), in its order.

        `at_most`: if it is unset, at most so many GPUs; 0: all. A lost GPU is left out.
        """
        self.ready()
        count: int = self._nvml.nvmlDeviceGetCount()
        if visible is None:
            wanted = min(count, at_most) if at_most else count
            return [found for index in range(wanted) if (found := self._by_index(index)) is not None]
        chosen: list[Device] = []
        for entry in (each.strip() for each in visible):
            found = self._named(entry, count)
            if found is None:
                break  # CUDA's own rule: it ignores all entries after one that names no device.
            chosen.append(found)
        return chosen

    def certain_devices(self, visible: Sequence[str] | None) -> list[Device]:
        """Returns the same. Raises DriverError if CUDA, which counts by speed, may mean other GPUs by these numbers."""
        chosen = self.devices(visible)
        by_number = visible is None or any(each.strip()[:1].isdigit() for each in visible)
        if by_number and len(models := self._models()) > 1:
            raise DriverError(
                f"this node has GPUs of several models ({', '.join(models)}), and CUDA counts them by speed; "
                "set CUDA_DEVICE_ORDER=PCI_BUS_ID"
            )
        return chosen

    def _models(self) -> list[str]:
        """Returns the models' names, without those that can't be read."""
        all_of_them = (self._by_index(index) for index in range(self._nvml.nvmlDeviceGetCount()))
        names = (self._try(lambda each=each: self._nvml.nvmlDeviceGetName(each.handle)) for each in all_of_them if each)
        return sorted({name.decode() if isinstance(name, bytes) else str(name) for name in names if name})

    def _named(self, entry: str, count: int) -> Device | None:
        if entry.startswith("MIG-"):
            slice_ = self._try(lambda: self._nvml.nvmlDeviceGetHandleByUUID(entry.encode()))
            if slice_ is None:
                return None
            whole = self._try(lambda: self._nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(slice_))
            return Device(entry, slice_, whole or slice_)
        if entry.startswith("GPU-"):
            all_of_them = ((index, self._by_index(index)) for index in range(count))
            matching = [
                each for index, each in all_of_them if each and self._uuid_at(index, each.handle).startswith(entry)
            ]
            return matching[0] if len(matching) == 1 else None
        is_index = entry.isascii() and entry.isdigit() and int(entry[:6]) < count
        return self._by_index(int(entry[:6])) if is_index else None

    def _by_index(self, index: int) -> Device | None:
        handle = self._try(lambda: self._nvml.nvmlDeviceGetHandleByIndex(index))
        return Device(f"GPU {index}", handle, handle) if handle is not None else None

    def _try(self, call: Callable[[], Any], refused: list[Exception] | None = None) -> Any:  # noqa: ANN401 - nvidia-ml-py has no types
        """Returns the result of an NVML call; None if the driver refuses it, which is added to `refused`."""
        try:
            return call()
        except self._refusals as error:
            if refused is not None:
                refused.append(error)
            return None

    # --- what is asked of a device ---------------------------------------------------------------------------------

    def uuid(self, device: Device) -> str:
        return str(self._try(lambda: self._nvml.nvmlDeviceGetUUID(device.handle)) or "")

    def _uuid_at(self, index: int, handle: Any) -> str:  # noqa: ANN401 - as above
        """Returns the UUID of the GPU at that index: the one that it had before, if it can't be read now."""
        if uuid := self.uuid(Device("", handle, handle)):
            self._uuids[index] = uuid
        return self._uuids.get(index, "")

    def _uuid_of_whole(self, handle: Any) -> str:  # noqa: ANN401 - as above
        """Returns the same for the handle of a whole GPU whose index is not at hand."""
        index = self._try(lambda: self._nvml.nvmlDeviceGetIndex(handle))
        return self._uuid_at(index, handle) if index is not None else self.uuid(Device("", handle, handle))

    def pci_address(self, device: Device) -> str:
        """Returns the address as sysfs writes it, with a domain of four digits (NVML: eight). "" if it is unknown."""
        info = self._try(lambda: self._nvml.nvmlDeviceGetPciInfo(device.whole))
        if info is None:
            return ""
        text = info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)
        return text.lower()[-len("0000:00:00.0") :]

    def minor(self, device: Device) -> int | None:
        """Returns the number in the name of its device file, /dev/nvidia<minor>."""
        return self._try(lambda: self._nvml.nvmlDeviceGetMinorNumber(device.whole))

    def used_bytes(self, device: Device) -> int | None:
        """Returns the bytes in use, without those that the driver reserves, if it tells the two apart."""
        nvml = self._nvml
        newer = self._try(lambda: nvml.nvmlDeviceGetMemoryInfo(device.handle, version=nvml.nvmlMemory_v2))
        found = newer or self._try(lambda: nvml.nvmlDeviceGetMemoryInfo(device.handle))
        return int(found.used) if found is not None else None

    def holders(self, device: Device) -> dict[int, int | None]:
        """Returns pid → bytes of each process that uses it (the host's pids). None: bytes are hidden."""
        found: dict[int, int | None] = {}
        for ask in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            processes = self._try(lambda ask=ask: getattr(self._nvml, ask)(device.handle)) or ()
            for each in processes:
                used = each.usedGpuMemory
                found[int(each.pid)] = int(used) if used is not None else found.get(int(each.pid))
        return found

    def fabric(self, device: Device) -> tuple[str, int]:
        """Returns ClusterUUID and clique of its NVLink domain; ("", 0) if it is in none. Raises DriverError."""
        nvml = self._nvml
        info = nvml.c_nvmlGpuFabricInfo_v2_t()
        try:
            nvml.nvmlDeviceGetGpuFabricInfoV(device.whole, nvml.byref(info))
        except self._refusals as error:
            raise DriverError(f"NVML says {error}") from error
        found = uuid.UUID(bytes=bytes(info.clusterUuid))
        return (str(found), int(info.cliqueId)) if found.int else ("", 0)

    # --- fitness ---------------------------------------------------------------------------------------------------

    def fitness(self, device: Device) -> Fitness:
        nvml, whole, refused = self._nvml, device.whole, list[Exception]()
        uuid = str(self._try(lambda: nvml.nvmlDeviceGetUUID(device.handle), refused) or "")
        action = self._try(lambda: self._action(whole), refused)
        kinds = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ecc_errors = self._try(lambda: int(nvml.nvmlDeviceGetTotalEccErrors(whole, *kinds)), refused)
        rows = self._try(lambda: nvml.nvmlDeviceGetRemappedRows(whole), refused)
        links = self._links(whole, refused)
        says_nothing = action is None and ecc_errors is None and rows is None and links in ([], [None])
        reasons = [str(error) for error in refused if not isinstance(error, self._lacks)]
        return Fitness(
            device.name,
            uuid,
            any(isinstance(error, self._losses) for error in refused),
            action,
            ecc_errors,
            remap_failed=bool(rows[3]) if rows is not None else None,
            remap_pending=bool(rows[2]) if rows is not None else None,
            refusal=reasons[0] if says_nothing and reasons else "",
            whole=self._uuid_of_whole(whole) if whole is not device.handle else "",
            links=tuple(links),
        )

    def lost(self, visible: Sequence[str] | None) -> list[tuple[str, str]]:
        """Returns name and UUID ("": not known) of those GPUs that the driver has lost or can no longer address.

        A lost GPU has no UUID. If it had none before either, it counts as each GPU that an entry names in vain.
        """
        self.ready()
        nvml, lost, there = self._nvml, list[int](), set[str]()
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
            except self._refusals as error:
                if isinstance(error, self._losses):
                    lost.append(index)
            else:
                there.add(self._uuid_at(index, handle))
        told = {index: (f"GPU {index}", self._uuids.get(index, "")) for index in lost}
        if visible is None:
            return [*told.values()]
        starts = {self._whole(entry) for entry in visible if entry.startswith(("GPU-", "MIG-"))}
        known = {*there, *(self._uuids[index] for index in lost if index in self._uuids)}
        in_vain = any(not any(uuid.startswith(start) for uuid in known) for start in starts)

        def is_named(index: int) -> bool:
            uuid = self._uuids.get(index)
            return str(index) in visible or (in_vain if uuid is None else any(map(uuid.startswith, starts)))

        return [gpu for index, gpu in told.items() if is_named(index)]

    def _whole(self, entry: str) -> str:
        """Returns the beginning of the UUID of the GPU that an entry is, or is a slice of, as far as that is known."""
        if not entry.startswith("MIG-"):
            return entry
        slice_ = self._named(entry, 0)
        if slice_ is not None and (whole := self._uuid_of_whole(slice_.whole)):
            self._wholes[entry] = whole
        return self._wholes.get(entry, entry.removeprefix("MIG-").partition("/")[0])

    def _action(self, handle: Any) -> str | None:  # noqa: ANN401 - as above
        """Returns what the driver asks for, "" if nothing; None if the binding does not know the question."""
        nvml = self._nvml
        field: int | None = getattr(nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
        if field is None:
            return None
        value = nvml.nvmlDeviceGetFieldValues(handle, [field])[0]
        if value.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(value.nvmlReturn)
        action = int(value.value.uiVal)
        if action == nvml.NVML_GPU_RECOVERY_ACTION_NONE:
            return ""
        prefix = "NVML_GPU_RECOVERY_ACTION_"
        names = (each for each in dir(nvml) if each.startswith(prefix) and getattr(nvml, each) == action)
        return next(names, str(action)).removeprefix(prefix).replace("_", " ").lower()

    def _links(self, handle: Any, refused: list[Exception]) -> list[bool | None]:  # noqa: ANN401 - as above
        """Returns the states of the links that there are. None is the last, if the driver refuses to say more."""
        states: list[bool | None] = []
        for link in range(LINKS_MAX):
            so_far = len(refused)
            is_up = self._try(lambda link=link: self._nvml.nvmlDeviceGetNvLinkState(handle, link), refused)
            if is_up is None:  # There are no more links, or the GPU is ill.
                return states if isinstance(refused[so_far], self._lacks) else [*states, None]
            states.append(bool(is_up))
        return states

    # --- Xid events ------------------------------------------------------------------------------------------------

    def watch_xids(self) -> None:
        """Makes the driver collect Xid events for this process. A GPU that does not support it is left out."""
        if self._events is not None:
            return
        nvml = self._nvml
        self._events = self._try(nvml.nvmlEventSetCreate)
        for device in self.devices(None) if self._events is not None else ():
            self._watched[_address(device.whole)] = self._uuid_of_whole(device.whole)
            self._try(
                lambda device=device: nvml.nvmlDeviceRegisterEvents(
                    device.whole, nvml.nvmlEventTypeXidCriticalError, self._events
                )
            )

    def xids(self) -> Iterator[tuple[str, int]]:
        """Yields the events since the last call, as (UUID of the GPU, Xid), each as soon as NVML has told it, once.

        Leaves out those of one instance of a GPU: the slice of another job may be ill.
        """
        self.ready()
        self.watch_xids()
        for _ in range(XIDS_AT_ONCE_MAX if self._events is not None else 0):
            event = self._try(lambda: self._nvml.nvmlEventSetWait_v2(self._events, 0))
            if event is None:  # No event is left.
                break
            if event.gpuInstanceId == NO_INSTANCE:
                uuid = self._watched.get(_address(event.device)) or self._uuid_of_whole(event.device)
                yield uuid, int(event.eventData)


def _address(handle: Any) -> int | None:  # noqa: ANN401 - as above
    return ctypes.cast(handle, ctypes.c_void_p).value
