"""What do people read about the binding of their workers?"""

from __future__ import annotations

from supervisor.core.gpu_affinity import GpuPlace, places_sentence

PLACES = (
    GpuPlace("GPU 0", 0, (0, 1)),
    GpuPlace("GPU 1", 0, (0, 1)),
    GpuPlace("GPU 2", 1, (2, 3, 4)),
    GpuPlace("GPU 3"),
)


def test_ranks_are_told_by_node() -> None:
    assert places_sentence(PLACES, 5) == (
        "local ranks 0 and 1 are bound to NUMA node 0 (2 CPUs), local rank 2 is bound to NUMA node 1 (3 CPUs), "
        "local ranks 3 and 4 are not bound"
    )
    assert places_sentence(PLACES, 1) == "local rank 0 is bound to NUMA node 0 (2 CPUs)"


def test_each_mode_is_told_by_what_a_worker_gets() -> None:
    near = (GpuPlace("GPU 0", 0, (0, 1, 2)), GpuPlace("GPU 1", 0, (3, 4)))
    assert places_sentence(near, 2, "exclusive") == (
        "local ranks 0 and 1 are bound to cores of their own on NUMA node 0 (2 to 3 CPUs each)"
    )
    assert places_sentence(near[:1], 1, "core-complex") == (
        "local rank 0 is bound to a core complex of NUMA node 0 (3 CPUs each)"
    )
    assert places_sentence(near[:1], 1, "socket") == "local rank 0 is bound to the socket of NUMA node 0 (3 CPUs)"
