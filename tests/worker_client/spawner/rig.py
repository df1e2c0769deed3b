"""A tiny supervisor for tests: starts a real spawner over a socket pair, speaks its link, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TypeVar

from holdfast_wire import framing, spawner_link
from holdfast_wire.spawner_link import (
    Exited,
    ForkAhead,
    Message,
    PrepareStore,
    Spawn,
    Spawned,
    SpawnFailed,
    StoreReady,
    StreamPlan,
    WelcomeBack,
    WorkerPlan,
)
from holdfast_wire.spawner_settings import SpawnerSettings, spawner_command

WAIT_S = 30.0
Stream = int | IO[bytes] | None
_T = TypeVar("_T")


def clean_env(**more: str) -> dict[str, str]:
    """Returns this process's environment without what the test runner added, and with `more`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV_", "HOLDFAST"))}
    return env | more


def until(condition: Callable[[], _T], *, what: str, wait_s: float = WAIT_S) -> _T:
    """Returns the first truthy value of `condition`; fails after `wait_s`."""
    deadline = time.monotonic() + wait_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {wait_s} s in vain for {what}"
        time.sleep(0.005)
    return value


def is_alive(pid: int) -> bool:
    """Returns whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@contextmanager
def listening(folder: Path) -> Generator[socket.socket]:
    """Yields a socket at which a spawner may listen for the next supervisor."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.setblocking(False)
        listener.bind(str(folder / "return"))
        yield listener


class Rig:
    """One spawner and our end of its link. A context manager: leaving it kills all descendants."""

    def __init__(
        self,
        *command: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdout: Stream = subprocess.PIPE,
        stderr: Stream = subprocess.PIPE,
        stdin: Stream = subprocess.DEVNULL,
        **settings: str | bool | float | tuple[int, ...] | tuple[str, ...],
    ) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            values = {"python": sys.executable} | settings
            whole = SpawnerSettings(job_id="job-1", command=command, **values)  # pyright: ignore[reportArgumentType]
            start = spawner_command(whole, clean_env() if env is None else env, link_fd=theirs.fileno())
            self.process = subprocess.Popen(
                start.argv,
                env=start.env,
                pass_fds={theirs.fileno(), start.settings_fd, whole.watch_fd, whole.return_fd, *whole.claim_fds} - {-1},
                cwd=cwd,
                stdout=stdout,
                stderr=stderr,
                stdin=stdin,
            )
            os.close(start.settings_fd)
        self._decoder = framing.Decoder(frame_bytes_max=framing.SPAWNER_FRAME_BYTES_MAX)
        self._inbox: list[Message] = []
        self.seen: set[int] = set()
        self._clients: list[socket.socket] = []

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_error: object) -> None:
        for each in (self.socket, *self._clients):
            each.close()
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(WAIT_S)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        for pid in self.seen:  # children of a killed spawner die with it; this is for processes that a test let escape
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def send(self, message: Message) -> None:
        payload = spawner_link.encode(message)
        self.socket.sendall(framing.encode(payload, frame_bytes_max=framing.SPAWNER_FRAME_BYTES_MAX))

    def receive(self, kind: type[_T], where: Callable[[_T], bool] = lambda _: True, *, wait_s: float = WAIT_S) -> _T:
        """Returns the next message of that kind; keeps others."""
        deadline = time.monotonic() + wait_s
        while True:
            for at, message in enumerate(self._inbox):
                if isinstance(message, kind) and where(message):
                    del self._inbox[at]
                    return message
            self.socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                data = self.socket.recv(65536)
            except TimeoutError:
                raise AssertionError(f"no {kind.__name__} within {wait_s} s; there were {self._inbox}") from None
            assert data, f"the spawner hung up before {kind.__name__}; there were {self._inbox}"
            self._inbox += [spawner_link.decode(payload) for payload in self._decoder.feed(data)]
            self.seen.update(message.pid for message in self._inbox if isinstance(message, Spawned))

    def come_back(self, listener: socket.socket) -> WelcomeBack:
        """Replaces our end, as the next supervisor; returns the spawner's first message."""
        self.socket.close()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(listener.getsockname())
        self._decoder = framing.Decoder(frame_bytes_max=framing.SPAWNER_FRAME_BYTES_MAX)
        self._inbox.clear()
        return self.receive(WelcomeBack)

    def pending(self, kind: type[_T]) -> list[_T]:
        """Returns received messages of that kind that nobody has asked for."""
        return [message for message in self._inbox if isinstance(message, kind)]

    def spawn(self, *plans: WorkerPlan, cycle: int = 0) -> list[Spawned]:
        self.send(Spawn(cycle, plans))
        return [self.receive(Spawned, lambda each, plan=plan: each.local_rank == plan.local_rank) for plan in plans]

    def children(self) -> set[int]:
        """Returns the spawner's children, including adopted ones and zombies."""
        return set(map(int, Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()))

    def serve_store(self, cycle: int = 0, *, port: int = 0) -> int:
        """Prepares a store and is its first client; returns the pid of its server, which loads torch for that."""
        others = self.children()
        self.send(PrepareStore(cycle, "127.0.0.1", port))
        ready = self.receive(StoreReady)
        self._clients.append(socket.create_connection((ready.host, ready.port)))
        (pid,) = until(lambda: self.children() - others, what="the store host")
        self.seen.add(pid)
        return pid

    def prefork(self, cycle: int, workers: int) -> set[int]:
        """Has workers forked ahead of `cycle`; returns their pids once all wait for their rank."""
        self.send(PrepareStore(cycle, "127.0.0.1"))
        self.receive(StoreReady)  # what a spawner forks at its start has ended by then
        others = self.children()
        self.send(ForkAhead(cycle, workers))
        until(lambda: len(self.children() - others) == workers, what="the forks")
        preforked = self.children() - others
        until(lambda: all(_waits_to_receive(pid) for pid in preforked), what="their wait")
        self.seen |= preforked
        return preforked

    def spawn_failing(self, plan: WorkerPlan) -> SpawnFailed:
        self.send(Spawn(0, (plan,)))
        return self.receive(SpawnFailed)

    def outcome(self, plan: WorkerPlan, *, cycle: int = 0) -> SpawnFailed | Exited:
        """Returns its first outcome."""
        self.send(Spawn(cycle, (plan,)))
        found = self.receive(object, lambda each: isinstance(each, SpawnFailed | Exited))
        assert isinstance(found, SpawnFailed | Exited)
        return found

    def run(self, *plans: WorkerPlan, cycle: int = 0) -> list[Exited]:
        """Spawns workers and waits for each end, in the order of `plans`."""
        self.spawn(*plans, cycle=cycle)
        return [self.exited(plan.local_rank) for plan in plans]

    def exited(self, local_rank: int = 0, *, wait_s: float = WAIT_S) -> Exited:
        return self.receive(Exited, lambda each: each.local_rank == local_rank, wait_s=wait_s)

    def send_end(self) -> None:
        self.send(spawner_link.End())

    def end(self) -> tuple[str, str]:
        """Ends the job properly; returns its stdout and stderr (if they were pipes)."""
        self.send_end()
        out, err = self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == 0
        return (out or b"").decode(), (err or b"").decode()


def _waits_to_receive(pid: int) -> bool:
    """Returns whether it left the spawner's session and sleeps: all its work is done by then."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0] == "S" and int(fields[3]) == pid
    return False


def worker(
    local_rank: int = 0, *, stdout: StreamPlan | None = None, stderr: StreamPlan | None = None, **env: str
) -> WorkerPlan:
    """Returns a plan with the variables by which the tests know the rank."""
    return with_env(local_rank, env, stdout=stdout, stderr=stderr)


def with_env(
    local_rank: int, env: Mapping[str, str], *, stdout: StreamPlan | None = None, stderr: StreamPlan | None = None
) -> WorkerPlan:
    """Returns the same, with the variables in a mapping."""
    ranks = {"RANK": str(local_rank), "LOCAL_RANK": str(local_rank)}
    return WorkerPlan(local_rank, local_rank, ranks | dict(env), stdout or StreamPlan(), stderr or StreamPlan())
