"""How is a worker bound to the CPUs and the memory of its NUMA node, without a program such as numactl?

The child binds itself after the fork, so it keeps what was loaded ahead. It never gets more CPUs or memory than the
spawner may use; if that leaves nothing, it is not bound.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import NamedTuple

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261, "s390x": 270}
_BIND, _LOCAL = 2, 4
_MASK_BITS = 1024
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)


class Binding(NamedTuple):
    """What to bind a worker to. `memory_node` -1: memory is not bound."""

    cpus: tuple[int, ...] = ()
    memory_node: int = -1
    memory_strict: bool = True  # memory only from that node; else from the node of the CPU that touches it first


def apply(binding: Binding) -> None:
    """Binds this process, which must have one thread. Ignores what is impossible."""
    cpus = set(binding.cpus) & os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, cpus)
    if binding.memory_node >= 0 and (cpus or not binding.cpus):
        _bind_memory(binding.memory_node, strict=binding.memory_strict)


def fit_torch(binding: Binding) -> None:
    """Limits torch's threads: loaded before the binding, it would use as many as there were CPUs then."""
    torch = sys.modules.get("torch")
    if torch is None or not binding.cpus or os.environ.get("OMP_NUM_THREADS"):
        return
    cpus = len(os.sched_getaffinity(0))
    if torch.get_num_threads() > cpus:
        torch.set_num_threads(cpus)


def _bind_memory(node: int, *, strict: bool) -> None:
    number = _SET_MEMPOLICY.get(os.uname().machine)
    if number is None or node >= _MASK_BITS:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if not strict:
        libc.syscall(ctypes.c_long(number), ctypes.c_int(_LOCAL), None, ctypes.c_ulong(0))
        return
    mask = (ctypes.c_ulong * (_MASK_BITS // _WORD_BITS))()
    mask[node // _WORD_BITS] = 1 << node % _WORD_BITS
    # The kernel refuses a node that the cpuset does not allow (EINVAL); memory is then not bound.
    libc.syscall(ctypes.c_long(number), ctypes.c_int(_BIND), mask, ctypes.c_ulong(_MASK_BITS + 1))
