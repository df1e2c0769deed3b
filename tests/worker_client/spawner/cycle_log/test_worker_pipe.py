"""A worker's pipe tells how much waits in it, and takes a flood."""

from __future__ import annotations

import os

from worker_client.spawner.cycle_log.worker_pipe import enlarge, waiting_bytes


def test_a_pipe_tells_what_waits_in_it_and_an_enlarged_one_takes_at_least_what_it_took() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    enlarge(writer)
    assert waiting_bytes(reader) == 0
    taken = os.write(writer, b"x" * (1 << 20))
    assert waiting_bytes(reader) == taken >= 64 * 1024
    os.close(reader)
    os.close(writer)
