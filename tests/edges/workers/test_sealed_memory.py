"""A sealed file keeps its size, whoever has its descriptor; one that is not sealed is told apart."""

from __future__ import annotations

import os

import pytest

from supervisor.edges.workers import sealed_memory


def test_nobody_can_shrink_or_grow_a_sealed_file():
    descriptor = sealed_memory.create("a-test")
    try:
        assert not sealed_memory.is_sealed(descriptor)
        sealed_memory.seal(descriptor, 4096)
        assert sealed_memory.is_sealed(descriptor)
        for size_bytes in (0, 8192):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size_bytes)
        assert os.fstat(descriptor).st_size == 4096
    finally:
        os.close(descriptor)
