"""To which NVLink domain do the GPUs of this node belong? A program of its own: NVML may hang where a GPU is ill.

Prints the ClusterUUID. Exits 1 with one line on stderr where there is none, or where GPUs are of different domains.
"""

from __future__ import annotations

import sys
import uuid
from typing import Any, cast


def cluster_uuids() -> set[str]:
    """Of all GPUs; a GPU that is in no domain is left out. Raises whatever NVML raises."""
    import pynvml  # pyright: ignore[reportMissingTypeStubs]

    nvml = cast("Any", pynvml)
    nvml.nvmlInit()
    found = [_cluster_uuid(nvml, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(nvml.nvmlDeviceGetCount())]
    return {each for each in found if each}


def _cluster_uuid(nvml: Any, device: Any) -> str:  # noqa: ANN401 (nvidia-ml-py has no types)
    info = nvml.c_nvmlGpuFabricInfo_v2_t()
    try:
        nvml.nvmlDeviceGetGpuFabricInfoV(device, nvml.byref(info))
    except nvml.NVMLError:  # A driver that is older than that function.
        info = nvml.c_nvmlGpuFabricInfo_t()
        nvml.nvmlDeviceGetGpuFabricInfo(device, nvml.byref(info))
    found = uuid.UUID(bytes=bytes(info.clusterUuid))
    return str(found) if found.int else ""


def main() -> int:
    try:
        found = sorted(cluster_uuids())
    except Exception as error:  # noqa: BLE001 - whatever NVML or its absence raises, there is no domain
        print(f"NVML says {error or type(error).__name__}", file=sys.stderr)  # noqa: T201
        return 1
    if len(found) == 1:
        print(found[0])  # noqa: T201
        return 0
    why = f"its GPUs belong to {len(found)} domains" if found else "its GPUs have no ClusterUUID"
    print(why, file=sys.stderr)  # noqa: T201
    return 1


if __name__ == "__main__":
    sys.exit(main())
