"""Nothing runs past a fence that the supervisor does not move, and nothing starts there."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

from holdfast_wire import framing, spawner_link
from holdfast_wire.spawner_link import Emptied, Exited, Fence, Keep, KillTree, Spawn, Spawned

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, is_alive, until, worker
from tests.worker_client.spawner.test_cycle_kill import ESCAPES, escaped


def stop(rig: Rig) -> None:
    """Returns once the spawner stands still: it may be in its wait, which then finds no message as it continues."""
    rig.process.send_signal(signal.SIGSTOP)
    stat = Path(f"/proc/{rig.process.pid}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", what="the stop")


def assert_others_run(rig: Rig) -> None:
    """Starts and kills one more: by then the spawner has read all, and has reported who was killed before."""
    (started,) = rig.spawn(worker(2))
    os.kill(started.pid, signal.SIGKILL)
    rig.exited(2)
    assert not rig.pending(Exited)


def test_everything_ends_at_a_fence_that_the_supervisor_does_not_move(script: Script, tmp_path: Path) -> None:
    with Rig(script(ESCAPES), str(tmp_path)) as rig:
        rig.spawn(worker())
        pids = escaped(tmp_path)
        first_ns = time.monotonic_ns() + 200_000_000
        rig.send(Fence(first_ns))
        rig.send(Fence(first_ns + 400_000_000))
        assert rig.exited().signal == signal.SIGKILL
        assert time.monotonic_ns() >= first_ns + 400_000_000
        until(lambda: not any(map(is_alive, pids)), what="the end of all")


def test_nothing_begins_after_a_fence_that_the_supervisor_has_not_moved(script: Script, tmp_path: Path) -> None:
    """It continues, and performs earlier orders: others have begun the next cycle meanwhile."""
    with Rig(script("import time; time.sleep(60)"), str(tmp_path)) as rig:
        rig.send(Fence(time.monotonic_ns() - 1))
        rig.spawn(worker())
        assert rig.exited().signal == signal.SIGKILL
        rig.send(Fence(time.monotonic_ns() + 60_000_000_000))
        (started,) = rig.spawn(worker(1))
        rig.send(KillTree(0))
        assert (rig.exited(1).signal, is_alive(started.pid)) == (signal.SIGKILL, False)


def test_a_fence_that_was_moved_while_the_spawner_was_busy_ends_nothing(script: Script, tmp_path: Path) -> None:
    """It reads what has come meanwhile before it ends anything."""
    with Rig(script("import time; time.sleep(60)"), str(tmp_path)) as rig:
        rig.spawn(worker())
        until_ns = time.monotonic_ns() + 1_000_000_000
        rig.send(Fence(until_ns))
        stop(rig)
        rig.send(Spawn(0, (worker(1),)))
        rig.send(Fence(until_ns + 600_000_000_000))
        until(lambda: time.monotonic_ns() > until_ns, what="the first fence")
        rig.process.send_signal(signal.SIGCONT)
        rig.receive(Spawned, lambda each: each.local_rank == 1)
        assert_others_run(rig)


def test_a_fence_that_was_moved_while_the_spawner_was_stopped_ends_nothing(script: Script, tmp_path: Path) -> None:
    """As it continues, its wait is over and finds nothing, though the message is there."""
    with Rig(script("import time; time.sleep(60)"), str(tmp_path)) as rig:
        rig.spawn(worker())
        until_ns = time.monotonic_ns() + 3_000_000_000
        rig.send(Fence(until_ns))
        rig.spawn(worker(1))  # by then it has read all
        stop(rig)
        rig.send(Fence(until_ns + 600_000_000_000))
        until(lambda: time.monotonic_ns() > until_ns, what="the first fence")
        rig.process.send_signal(signal.SIGCONT)
        assert_others_run(rig)


def test_a_fence_that_was_moved_too_late_saves_nothing_that_was_ordered_before(script: Script, tmp_path: Path) -> None:
    """The supervisor was stalled. It sends what it had decided before, then sees that the fence has passed."""
    with Rig(script("import time; time.sleep(60)"), str(tmp_path)) as rig:
        rig.spawn(worker())
        until_ns = time.monotonic_ns() + 200_000_000
        rig.send(Fence(until_ns))
        assert rig.exited().signal == signal.SIGKILL
        stop(rig)
        rig.send(Spawn(0, (worker(1),)))
        rig.send(Fence(until_ns + 600_000_000_000, time.monotonic_ns()))
        rig.process.send_signal(signal.SIGCONT)
        assert rig.exited(1).signal == signal.SIGKILL
        assert_others_run(rig)


def test_a_fence_that_was_moved_in_time_saves_what_started_late(script: Script, tmp_path: Path) -> None:
    with Rig(script("import time; time.sleep(60)"), str(tmp_path)) as rig:
        rig.spawn(worker())
        until_ns = time.monotonic_ns() + 1_000_000_000
        rig.send(Fence(until_ns))
        stop(rig)
        rig.send(Spawn(0, (worker(1),)))
        rig.send(Fence(until_ns + 600_000_000_000, until_ns - 1))
        until(lambda: time.monotonic_ns() > until_ns, what="the first fence")
        rig.process.send_signal(signal.SIGCONT)
        rig.receive(Spawned, lambda each: each.local_rank == 1)
        assert_others_run(rig)


def test_a_stopped_spawner_starts_nothing_of_a_cycle_that_was_ended_meanwhile(script: Script, tmp_path: Path) -> None:
    """Its node was cut off and has ended its workers. Others may have begun the next cycle before it continues."""
    with Rig(script("open('started', 'w')"), str(tmp_path), cwd=tmp_path) as rig:
        until_ns = time.monotonic_ns() + 60_000_000_000
        rig.send(Fence(until_ns))
        rig.run(worker())
        (tmp_path / "started").unlink()
        stop(rig)
        rig.send(Keep({}, 0, (Spawn(1, (worker(), worker(1))),)))
        rig.send(Fence(until_ns + 1))
        rig.send(Keep({}, 0, (KillTree(1),)))
        rig.process.send_signal(signal.SIGCONT)
        rig.receive(Emptied, lambda each: each.cycle == 1)
        assert not rig.pending(Spawned)
        assert not (tmp_path / "started").exists()
        rig.run(worker(), cycle=2)


def test_a_spawner_that_was_stopped_past_its_fence_reads_all_before_it_starts_anything(
    script: Script, tmp_path: Path
) -> None:
    with Rig(script("import time; time.sleep(60)"), str(tmp_path)) as rig:
        rig.send(Fence(time.monotonic_ns() - 1))
        rig.run(worker())  # by then it has read all
        stop(rig)
        start = spawner_link.encode(Spawn(1, (worker(),)))
        frame = framing.encode(start, frame_bytes_max=framing.SPAWNER_FRAME_BYTES_MAX)
        socket.send_fds(rig.socket, [frame], [2])  # what follows a descriptor is received later
        rig.send(KillTree(1))
        rig.process.send_signal(signal.SIGCONT)
        rig.receive(Emptied, lambda each: each.cycle == 1)
        assert not rig.pending(Spawned)
