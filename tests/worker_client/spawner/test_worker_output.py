"""What workers print: where does it go, how are lines kept whole, and what does a broken or slow end cause?"""

from __future__ import annotations

import errno
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from holdfast_wire.spawner_link import StreamPlan

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, worker
from worker_client.spawner.event_loop import Events
from worker_client.spawner.worker_output import LINE_BYTES_MAX, Output


def ignore_drop(*_: object) -> None:
    """For tests in which nothing is dropped."""


TEE = StreamPlan(prefix="[default0]:")


def test_without_a_prefix_bytes_pass_untouched(script: Script) -> None:
    path = script(r"import os; os.write(1, b'a\rb\xff\x00 no end'); os.write(2, b'err\n')")
    with Rig(path) as rig:
        rig.run(worker())
        rig.send_end()
        out, err = rig.process.communicate(timeout=30)
    assert (out, err) == (b"a\rb\xff\x00 no end", b"err\n")


def test_a_prefix_stands_before_each_line_and_a_last_line_is_ended(script: Script) -> None:
    path = script(
        "import sys; print('one'); print('zwei ü', end=''); sys.stdout.flush(); print(); print('', end='\\nlast')"
    )
    with Rig(path) as rig:
        rig.run(worker(stdout=TEE))
        out, _ = rig.end()
    assert out == "[default0]:one\n[default0]:zwei ü\n[default0]:\n[default0]:last\n"


def test_a_carriage_return_ends_a_prefixed_line_even_before_the_next_one_comes(script: Script) -> None:
    """As under torchrun; a progress bar must be visible while it moves. A separate LF after a CR belongs to it."""
    path = script(
        """
        import os, sys
        for piece in (b"1/3\\r", b"2/3\\r", b"3/3\\r", b"\\ndone\\r\\nx\\r\\r\\n"):
            os.write(1, piece)
            sys.stdin.readline()
        """
    )
    with Rig(path, stdin=subprocess.PIPE) as rig:
        assert rig.process.stdout is not None
        assert rig.process.stdin is not None
        rig.spawn(worker(stdout=TEE))
        for shown in ("1/3", "2/3", "3/3"):
            assert rig.process.stdout.readline() == f"[default0]:{shown}\n".encode()
            rig.process.stdin.write(b"\n")
            rig.process.stdin.flush()
        rig.process.stdin.write(b"\n")
        rig.process.stdin.flush()
        rig.exited()
        out, _ = rig.end()
    assert out == "[default0]:done\n[default0]:x\n[default0]:\n"


def test_lines_of_ranks_are_never_mixed(script: Script) -> None:
    path = script(
        """
        import os, sys
        for at in range(3000):
            os.write(1, b"x" * (at % 50)); os.write(1, os.environb[b"RANK"] + b"\\n")
        """
    )
    with Rig(path) as rig:
        rig.run(*(worker(rank, stdout=StreamPlan(prefix=f"[{rank}]:")) for rank in range(4)))
        out, _ = rig.end()
    lines = out.splitlines()
    assert len(lines) == 4 * 3000
    for rank in range(4):
        assert [line for line in lines if line.startswith(f"[{rank}]:")] == [
            f"[{rank}]:{'x' * (at % 50)}{rank}" for at in range(3000)
        ]


def test_a_very_long_line_passes_in_pieces(script: Script) -> None:
    length = 5 * LINE_BYTES_MAX
    with Rig(script(f"import os, sys; sys.stdout.write('x' * {length}); print('end')")) as rig:
        rig.run(worker(stdout=TEE))
        out, _ = rig.end()
    assert out.replace("[default0]:", "").replace("\n", "") == "x" * length + "end"
    assert all(line.startswith("[default0]:") for line in out.splitlines())


def test_files_beside_and_instead_of_the_console(script: Script, tmp_path: Path) -> None:
    path = script("import sys; print('to out'); print('to err', file=sys.stderr)")
    tee = StreamPlan(prefix="[0]:", file=str(tmp_path / "out"))
    direct = StreamPlan(console=False, file=str(tmp_path / "err"), direct=True)
    with Rig(path) as rig:
        rig.run(worker(stdout=tee, stderr=direct))
        assert rig.end() == ("[0]:to out\n", "")
    assert (tmp_path / "out").read_text() == "to out\n"
    assert (tmp_path / "err").read_text() == "to err\n"


def test_a_redirected_stream_is_the_file_itself(script: Script, tmp_path: Path) -> None:
    log = tmp_path / "log"
    path = script("import os, sys; print(os.readlink('/proc/self/fd/1'), sys.stdout.seekable())")
    with Rig(path) as rig:
        rig.run(worker(stdout=StreamPlan(console=False, file=str(log), direct=True)))
    assert log.read_text() == f"{log} True\n"


def test_a_filtered_rank_prints_nothing(script: Script) -> None:
    with Rig(script("print('x')")) as rig:
        rig.run(worker(stdout=StreamPlan(console=False)))
        assert rig.end() == ("", "")


def test_the_output_of_a_grandchild_arrives_after_the_exit(script: Script, tmp_path: Path) -> None:
    path = script(
        """
        import os, sys, time
        if os.fork() == 0:
            while not os.path.exists(sys.argv[1]): time.sleep(0.01)
            print("late", flush=True); os._exit(0)
        print("early", flush=True)
        """
    )
    with Rig(path, str(tmp_path / "go")) as rig:
        rig.run(worker(stdout=TEE))
        assert rig.process.stdout is not None
        assert rig.process.stdout.readline() == b"[default0]:early\n"
        (tmp_path / "go").touch()
        assert rig.process.stdout.readline() == b"[default0]:late\n"


def test_an_open_file_is_closed_with_the_last_pipe_that_writes_to_it(tmp_path: Path) -> None:
    events = Events()
    output = Output(events, ignore_drop, lambda _cycle, _rank: None)
    plan = StreamPlan(console=False, file=str(tmp_path / "log"))
    writers = [output.open(0, 0, number, plan, file_needed=True) for number in (1, 2)]
    before = len(os.listdir("/proc/self/fd"))
    for number, fd in enumerate(writers):
        os.write(fd, b"%d\n" % number)
        os.close(fd)
    deadline = time.monotonic() + 10
    while output.has_waiting():
        assert time.monotonic() < deadline
        events.run_once()
    events.close()
    assert sorted((tmp_path / "log").read_text().split()) == ["0", "1"]
    assert len(os.listdir("/proc/self/fd")) == before - 2 - 2 - 1 - 1  # writers, readers, the file, the epoll


def test_a_plain_pipe_is_enough_where_a_large_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr("fcntl.fcntl", refuse)
    events = Events()
    output = Output(events, ignore_drop, lambda _cycle, _rank: None)
    writer = output.open(0, 0, 1, StreamPlan(console=False, file=str(tmp_path / "log")), file_needed=True)
    os.write(writer, b"x")
    os.close(writer)
    while output.has_waiting():
        events.run_once()
    events.close()
    assert (tmp_path / "log").read_text() == "x"


def test_a_log_flood_costs_at_most_one_core(script: Script, tmp_path: Path) -> None:
    """Measures CPU time per byte, which other load changes little: at most a second for 100 MB of prefixed lines."""
    path = script("import os\nline = b'x' * 99 + b'\\n'\nblock = line * 640\nfor _ in range(800): os.write(1, block)")
    sink = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        with Rig(path, stdout=sink.stdin) as rig:
            used_before = _cpu_s(rig.process.pid)
            plans = [worker(rank, stdout=StreamPlan(prefix=f"[default{rank}]:")) for rank in range(2)]
            rig.run(*plans)
            used_s = _cpu_s(rig.process.pid) - used_before
    finally:
        with suppress(OSError):
            assert sink.stdin is not None
            sink.stdin.close()
        sink.wait(30)
    printed = 2 * 800 * 64000
    assert printed / used_s > 100e6, f"{printed / used_s / 1e6:.0f} MB per second of CPU"


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
