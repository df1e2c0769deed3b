"""How does the heap get huge pages for what is loaded ahead, so that each fork copies fewer page tables?

A fork copies one entry for each page of 4 KiB in memory; with torch, that is most of what it takes. With glibc's own
setting (`glibc.malloc.hugetlb`) a worker's later memory would be in huge pages, too, and it would need more. So the
heap gets one free block, the kernel is asked to put huge pages there, and what is loaded next lies in it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

HUGE_BYTES = 2 << 20
TORCH_BYTES = 80 << 20  # slightly less than an import of torch takes, so nothing of it is left for workers
CHUNK_BYTES = 96 << 10  # below the size from which malloc maps memory instead of taking it from the heap
_STEP_BYTES = CHUNK_BYTES + 16  # glibc's chunks carry 8 bytes each, and are aligned to 16
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
_MADV_DONTNEED = 4
_MADV_HUGEPAGE = 14
_HUGE_BYTES_FILE = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"

_libc = ctypes.CDLL(None)
_malloc, _free, _madvise = _libc.malloc, _libc.free, _libc.madvise
_malloc.restype = ctypes.c_void_p
_malloc.argtypes = (ctypes.c_size_t,)
_free.argtypes = (ctypes.c_void_p,)
_libc.sbrk.restype = ctypes.c_ssize_t
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def reserve(size_bytes: int) -> int:
    """Adds a free block of about that size to the heap and asks for huge pages for it; returns for how much.

    Call it only while this process has one thread. The block takes no memory until it is used. Without huge pages of
    2 MiB, or with another malloc than glibc's, there is none.
    """
    if not _has_huge_pages():
        return 0
    chunks = (ctypes.c_void_p * (size_bytes // CHUNK_BYTES))()  # made first: nothing may lie between two chunks
    for index in range(len(chunks)):
        chunks[index] = _malloc(CHUNK_BYTES)
    # The last chunk stays for good: without it, the free block would end the heap, and be given back.
    *addresses, _ = (each or 0 for each in chunks)
    first, end = _last_run(addresses)
    for address in addresses:
        _free(address)
    first = -(-(first + _PAGE_BYTES) // HUGE_BYTES) * HUGE_BYTES  # malloc keeps notes in the first page of a free block
    size_bytes = (end - _PAGE_BYTES) // HUGE_BYTES * HUGE_BYTES - first
    if size_bytes <= 0 or not 0 <= _libc.sbrk(0) - end < 2 * HUGE_BYTES:  # the heap ends soon after the last chunk
        return 0
    _madvise(first, size_bytes, _MADV_DONTNEED)  # what malloc noted at each chunk, which keeps huge pages out
    return size_bytes if _madvise(first, size_bytes, _MADV_HUGEPAGE) == 0 else 0


def _has_huge_pages() -> bool:
    try:
        with open(_HUGE_BYTES_FILE, encoding="ascii") as file:
            return int(file.read()) == HUGE_BYTES
    except (OSError, ValueError):
        return False


def _last_run(addresses: Sequence[int]) -> tuple[int, int]:
    """Returns where the last run of adjacent chunks begins and ends. Those of another malloc have other distances."""
    index = len(addresses) - 1
    while index and addresses[index] - addresses[index - 1] == _STEP_BYTES:
        index -= 1
    return addresses[index], addresses[-1] + CHUNK_BYTES
