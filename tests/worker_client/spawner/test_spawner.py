"""How do workers start, and how are their ends reported?"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest
from holdfast_wire.spawner_link import (
    Emptied,
    Exited,
    Keep,
    Kept,
    KillTree,
    OutputDropped,
    RankContinued,
    RankStopped,
    Spawn,
    StreamPlan,
    Unknown,
    decode,
)

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.cycle_log.test_feeds import writer_of
from tests.worker_client.spawner.escapes import ESCAPES, escaped
from tests.worker_client.spawner.rig import Rig, is_alive, listening, until, worker

# Notes that it is up and each SIGTERM; ends once it may, with the code that it gets.
ENDURING = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: open(sys.argv[1] + "/signalled", "w").close())
open(sys.argv[1] + "/up", "w").close()
while not os.path.exists(sys.argv[1] + "/go"): time.sleep(0.01)
with open(sys.argv[1] + "/go") as file: sys.exit(int(file.read()))
"""


def returnable(path: str, folder: Path, at: socket.socket, *, within_s: float) -> Rig:
    """Starts a spawner that listens there for the next supervisor."""
    kept = str(folder / "kept")
    return Rig(
        path,
        str(folder),
        private=False,
        supervisor_return_timeout_s=within_s,
        return_fd=at.fileno(),
        keep_path=kept,
    )


def test_an_exit_is_known_within_20_ms(script: Script, tmp_path: Path) -> None:
    path = script("import os, time; print(time.monotonic_ns(), flush=True); os._exit(3)")
    late_ms: list[float] = []
    with Rig(path) as rig:
        for _ in range(20):
            (end,) = rig.run(worker())
            assert rig.process.stdout is not None
            late_ms.append((end.at_ns - int(rig.process.stdout.readline())) / 1e6)
    assert sorted(late_ms)[len(late_ms) // 2] < 20


def test_an_exit_is_declared_though_a_grandchild_holds_the_output(script: Script) -> None:
    path = script(
        """
        import os, sys, time
        if os.fork() == 0:
            time.sleep(60)
        print("left", flush=True); sys.exit(4)
        """
    )
    with Rig(path) as rig:
        (end,) = rig.run(worker())
        assert end.code == 4
        rig.send(KillTree(0))
        out, _ = rig.end()
    assert out == "left\n"


@pytest.mark.parametrize("method", ["fork", "exec"])
def test_a_worker_that_is_stopped_and_continued_is_reported(script: Script, method: Literal["fork", "exec"]) -> None:
    with Rig(script("import signal\nsignal.pause()"), method=method) as rig:
        started = rig.spawn(worker(0), worker(1), cycle=3)
        pids = {each.local_rank: each.pid for each in started}
        os.kill(pids[1], signal.SIGSTOP)
        stopped = rig.receive(RankStopped)
        assert stopped[:4] == (3, 1, pids[1], signal.SIGSTOP)
        os.kill(pids[1], signal.SIGCONT)
        continued = rig.receive(RankContinued)
        assert continued[:2] == (3, 1)
        assert continued.at_ns >= stopped.at_ns


@pytest.mark.parametrize("method", ["fork", "exec"])
def test_a_signal_for_the_whole_job_ends_its_ranks_alone(script: Script, method: Literal["fork", "exec"]) -> None:
    """As a batch system sends it to each process of a job, a while before its time limit."""
    numbers = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGXCPU, signal.SIGTERM]
    with Rig(script("import signal\nsignal.pause()"), method=method) as rig:
        store = rig.serve_store()
        for cycle, number in enumerate(numbers):
            (started,) = rig.spawn(worker(), cycle=cycle)
            for pid in (rig.process.pid, store, started.pid):
                os.kill(pid, number)
            assert rig.receive(Exited).signal == number
        assert rig.process.poll() is None
        assert is_alive(store)


class TestSupervisorLoss:
    def test_a_private_spawner_ends_everything_within_5_s(self, script: Script, tmp_path: Path) -> None:
        with Rig(script(ESCAPES), str(tmp_path)) as rig:
            rig.spawn(worker())
            pids = [*escaped(tmp_path), rig.process.pid]
            began = time.monotonic()
            rig.socket.close()
            rig.process.wait(10)
            assert time.monotonic() - began < 5
            assert not [pid for pid in pids if is_alive(pid)]

    def test_workers_get_sigterm_first_and_an_early_end_is_not_waited_out(self, script: Script, tmp_path: Path) -> None:
        path = script(
            """
            import signal, sys, time
            def stop(*_):
                open(sys.argv[1] + "/saved", "w").close(); sys.exit(0)
            signal.signal(signal.SIGTERM, stop)
            open(sys.argv[1] + "/up", "w").close()
            time.sleep(60)
            """
        )
        with Rig(path, str(tmp_path)) as rig:
            rig.spawn(worker())
            until((tmp_path / "up").exists, what="the worker")
            began = time.monotonic()
            rig.socket.close()
            assert rig.process.wait(10) == 0
            assert time.monotonic() - began < 2
            assert (tmp_path / "saved").exists()

    def test_a_worker_saves_while_its_helpers_and_the_store_still_serve_it(
        self, script: Script, tmp_path: Path
    ) -> None:
        path = script(
            """
            import os, signal, sys, time
            def note(what):
                with open(sys.argv[1] + "/notes", "a") as file: file.write(what + chr(10))
            def got(*_): note("helper signalled"); os._exit(0)
            helper = os.fork()
            if not helper:
                signal.signal(signal.SIGTERM, got)
                note("up")
                while True: time.sleep(60)
            def save(*_):
                note("saving"); time.sleep(0.5)
                with open(sys.argv[1] + "/store") as file:
                    note(f"store: {os.path.exists('/proc/' + file.read())}")
                os._exit(0)
            signal.signal(signal.SIGTERM, save)
            note("up")
            while True: time.sleep(60)
            """
        )
        notes = tmp_path / "notes"
        notes.touch()
        with Rig(path, str(tmp_path)) as rig:
            store = rig.serve_store()
            (tmp_path / "store").write_text(str(store))
            rig.spawn(worker())
            until(lambda: notes.read_text().count("up") == 2, what="both processes")
            rig.socket.close()
            assert rig.process.wait(10) == 0
            assert notes.read_text().split("\n")[2:4] == ["saving", "store: True"]
            assert not is_alive(store)

    def test_a_shared_supervisor_may_be_away(self, script: Script, tmp_path: Path) -> None:
        path = script(
            """
            import os, sys, time
            print("up", flush=True)
            while not os.path.exists(sys.argv[1] + "/go"):
                time.sleep(0.01)
            print("on", flush=True)
            sys.exit(int(os.environ["RANK"]))
            """
        )
        away = Rig(path, str(tmp_path), private=False, supervisor_return_timeout_s=1.5, exit_record_dir=str(tmp_path))
        with away as rig:
            first, second = rig.spawn(worker(0), worker(1))
            rig.socket.close()
            (tmp_path / "go").touch()
            assert rig.process.stdout is not None
            printed = rig.process.stdout.read()  # lines of unprefixed ranks may share one, as under torchrun
            assert (printed.count(b"up"), printed.count(b"on")) == (2, 2)
            assert rig.process.wait(10) == 0
            record = (tmp_path / "job-1.exits.jsonl").read_text().splitlines()
            assert len(record) == 2
            assert not is_alive(first.pid)
            assert not is_alive(second.pid)
            assert any(f'"pid":{second.pid},"code":1' in line for line in record)

    def test_of_a_time_in_which_all_is_suspended_little_counts(self, script: Script, tmp_path: Path) -> None:
        """The next supervisor was suspended, too, as in a frozen container."""
        with listening(tmp_path) as at, returnable(script(ENDURING), tmp_path, at, within_s=3.0) as rig:
            (spawned,) = rig.spawn(worker())
            until((tmp_path / "up").exists, what="the worker")
            rig.send(Keep({"state": "s"}, 0))
            rig.socket.close()
            time.sleep(0.2)  # until it knows
            for pid in (rig.process.pid, spawned.pid):
                os.kill(pid, signal.SIGSTOP)
            time.sleep(4)
            for pid in (rig.process.pid, spawned.pid):
                os.kill(pid, signal.SIGCONT)
            time.sleep(0.5)
            rig.come_back(at)
            assert not (tmp_path / "signalled").exists()
            rig.end()

    def test_a_suspension_in_the_ranks_last_seconds_counts_little(self, script: Script, tmp_path: Path) -> None:
        """They still save, and the next supervisor was suspended, too."""
        with listening(tmp_path) as at, returnable(script(ENDURING), tmp_path, at, within_s=0.2) as rig:
            (spawned,) = rig.spawn(worker())
            until((tmp_path / "up").exists, what="the worker")
            rig.send(Keep({"state": "s"}, 0))
            rig.socket.close()
            until((tmp_path / "signalled").exists, what="the signal")
            for pid in (rig.process.pid, spawned.pid):
                os.kill(pid, signal.SIGSTOP)
            time.sleep(4)
            for pid in (rig.process.pid, spawned.pid):
                os.kill(pid, signal.SIGCONT)
            time.sleep(0.5)
            assert is_alive(spawned.pid)
            rig.come_back(at)
            rig.end()

    @pytest.mark.parametrize(
        ("within_s", "code", "unattended_s"), [(0.2, 3, None), (0.2, 143, 0.2), (0.2, 0, 0.2), (0.0, 0, 0.0)]
    )
    def test_a_supervisor_that_returns_in_the_ranks_last_seconds_has_those_that_live_on(
        self, script: Script, tmp_path: Path, within_s: float, code: int, unattended_s: float | None
    ) -> None:
        """A rank that only saves before it ends, however long, has ended for want of a supervisor."""
        with listening(tmp_path) as at, returnable(script(ENDURING), tmp_path, at, within_s=within_s) as rig:
            rig.spawn(worker())
            until((tmp_path / "up").exists, what="the worker")
            rig.send(Keep({"state": "s"}, 0))
            rig.socket.close()
            until((tmp_path / "signalled").exists, what="the signal")
            rig.come_back(at)
            time.sleep(3.5)
            (tmp_path / "new").write_text(str(code))
            (tmp_path / "new").rename(tmp_path / "go")
            ended = rig.exited()
            assert (ended.code, ended.unattended_s) == (code, unattended_s)
            rig.end()

    def test_a_supervisor_that_comes_when_all_were_killed_waits_for_the_end(
        self, script: Script, tmp_path: Path
    ) -> None:
        path = script("import time; print('x', flush=True); time.sleep(60)")
        with listening(tmp_path) as at, returnable(path, tmp_path, at, within_s=0.2) as rig:
            at.close()  # the spawner has it
            (spawned,) = rig.spawn(worker()._replace(cycle_log=str(tmp_path / "cycle.log")))
            writer = writer_of(rig)
            rig.seen.add(writer)
            os.kill(writer, signal.SIGSTOP)  # as a slow disk
            rig.send(Keep({"state": "s"}, 0))
            rig.socket.close()
            until(lambda: not is_alive(spawned.pid), what="the end of the worker")
            time.sleep(0.3)
            assert rig.process.poll() is None
            with socket.socket(socket.AF_UNIX) as late:
                late.settimeout(15)
                late.connect(str(tmp_path / "return"))
                with suppress(ConnectionResetError):
                    assert late.recv(1) == b""
            assert rig.process.wait(10) == 0
        reports = [decode(each.encode()) for each in json.loads((tmp_path / "kept").read_bytes())["reports"]]
        assert [each.unattended_s for each in reports if isinstance(each, Exited)] == [0.2]


def test_reports_that_were_dropped_do_not_shift_the_count_of_those_that_were_taken(
    script: Script, tmp_path: Path
) -> None:
    """Else the next supervisor gets old reports again."""
    path = script("import os, sys, time; open(sys.argv[1] + '/' + os.environ['RANK'], 'w').close(); time.sleep(60)")
    long = StreamPlan(file="/dev/null/" + ("d" * 200 + "/") * 18, direct=True)
    refused = tuple(worker(rank, stdout=long) for rank in range(400))
    dropping = tuple(worker(rank, stdout=StreamPlan(file="/dev/null/log", direct=True)) for rank in range(3))
    with listening(tmp_path) as at, returnable(path, tmp_path, at, within_s=60.0) as rig:
        rig.send(Spawn(0, refused))  # 400 long reports, which are not read yet
        rig.send(Spawn(1, dropping))
        until(lambda: all((tmp_path / str(rank)).exists() for rank in range(3)), what="the workers")
        time.sleep(0.2)
        rig.send(KillTree(9))
        rig.receive(Emptied)
        taken = 1 + len(rig.pending(object))
        assert taken > 400
        assert not rig.pending(OutputDropped)
        rig.send(Keep({"state": "s"}, taken))
        assert rig.come_back(at).taken == taken
        rig.send(KillTree(8))
        rig.receive(Emptied)
        assert [type(each) for each in rig.pending(object)] == [Kept]


def test_an_order_that_only_a_newer_supervisor_gives_is_skipped(script: Script) -> None:
    with Rig(script("raise SystemExit(3)")) as rig:
        rig.send(Unknown("Rewind"))
        (end,) = rig.run(worker())
    assert end.code == 3


def test_orphans_that_end_by_themselves_are_reaped(script: Script, tmp_path: Path) -> None:
    """A long training makes many daemons: no zombie may wait for the end of the job."""
    path = script(
        """
        import os, sys, time
        if os.fork() == 0:
            parent = os.getpid()
            if os.fork() == 0:
                while os.getppid() == parent:
                    time.sleep(0.01)
                open(sys.argv[1] + "/gone", "w").write(str(os.getppid()))
                os._exit(0)
            os._exit(0)
        os.wait()
        time.sleep(60)
        """
    )
    with Rig(path, str(tmp_path)) as rig:
        (spawned,) = rig.spawn(worker())
        until(lambda: (tmp_path / "gone").exists() and (tmp_path / "gone").read_text(), what="the daemon's end")
        assert (tmp_path / "gone").read_text() == str(rig.process.pid), "who is not its parent can't reap it"
        children = Path(f"/proc/{rig.process.pid}/task/{rig.process.pid}/children")
        until(lambda: children.read_text().split() == [str(spawned.pid)], what="its reaping", wait_s=5)
