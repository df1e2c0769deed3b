"""Simulated GPUs: a libnvidia-ml.so.1 in C, below the real nvidia-ml-py, with its state in a mapped file."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("gpus.c")
LIBRARY = "libnvidia-ml.so.1"
MIB = 1 << 20
DEVICES_MAX, PROCESSES_MAX, MIGS_MAX, XIDS_MAX = 8, 8, 4, 32
NO_INSTANCE = 0xFFFFFFFF  # an event concerns the whole GPU


class _Process(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_uint32), ("unused", ctypes.c_uint32), ("bytes", ctypes.c_uint64))


class _Mig(ctypes.Structure):
    _fields_ = (("uuid", ctypes.c_char * 64), ("used", ctypes.c_uint64))


class Gpu(ctypes.Structure):
    """One GPU; the driver reports the values that a test writes here."""

    _fields_ = (
        ("uuid", ctypes.c_char * 64),
        ("bus_id", ctypes.c_char * 32),
        *((name, ctypes.c_uint64) for name in ("total", "used", "ecc_errors")),
        *(
            (name, ctypes.c_uint32)
            for name in (
                "minor", "is_lost", "memory_status", "action_status", "action", "ecc_status", "remap_failed",
                "remap_pending", "links", "links_up", "clique", "processes", "migs", "model",
                "rows_status", "links_status",
            )
        ),
        ("cluster", ctypes.c_uint8 * 16),
        ("process", _Process * PROCESSES_MAX),
        ("mig", _Mig * MIGS_MAX),
    )  # fmt: skip

    def hold(self, *processes: tuple[int, int]) -> None:
        """Gives these processes (pid, bytes) its memory, and no others."""
        for place, (pid, used_bytes) in zip(self.process, processes, strict=False):
            place.pid, place.bytes = pid, used_bytes
        self.processes = len(processes)
        self.used = sum(used_bytes for _, used_bytes in processes)


class _Xid(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint32) for name in ("device", "xid", "instance"))


class _State(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_uint32)
            for name in (
                "devices",
                "init_status",
                "hangs",
                "calls",
                "inits",
                "xids",
                "old_driver",
                "crashes",
                "counted_more",
                "device_hangs",  # of calls that name a GPU
            )
        ),
        ("xid", _Xid * XIDS_MAX),
        ("device", Gpu * DEVICES_MAX),
    )


def build(folder: Path) -> Path:
    """Builds the library in `folder`. Raises if there is no C compiler."""
    library = folder / LIBRARY
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-O1", "-o", library, SOURCE], check=True)
    return library


class Gpus:
    """A node's GPUs, idle and healthy at first, with UUIDs GPU-0000…, GPU-1111… and NVLinks between them."""

    def __init__(self, folder: Path, library: Path, count: int = 2) -> None:
        self.path = folder / "gpus"
        self.path.write_bytes(bytes(ctypes.sizeof(_State)))
        with self.path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.state = _State.from_buffer(self._map)
        self.state.devices = count
        for number in range(DEVICES_MAX):
            gpu = self.state.device[number]
            gpu.uuid = f"GPU-{str(number) * 8}-0000-0000-0000-000000000000".encode()
            gpu.bus_id = f"00000000:{number + 1:02X}:00.0".encode()
            gpu.minor, gpu.total = number, 80 * 1024 * MIB
            gpu.links, gpu.links_up = 4, 0b1111
        self.environment = {"FAKE_GPUS": str(self.path), "LD_LIBRARY_PATH": str(library.parent)}

    def __getitem__(self, number: int) -> Gpu:
        return self.state.device[number]

    def report_xid(self, number: int, xid: int, *, instance: int = NO_INSTANCE) -> None:
        place = self.state.xid[self.state.xids % XIDS_MAX]
        place.device, place.xid, place.instance = number, xid, instance
        self.state.xids += 1

    @property
    def calls(self) -> int:
        return self.state.calls

    def hang(self, *, until_released: bool = True) -> None:
        """Makes each call hang from now on, including those in progress."""
        self.state.hangs = 1 if until_released else 0

    def environ(self, **more: str) -> dict[str, str]:
        return {**os.environ, **self.environment, **more}
