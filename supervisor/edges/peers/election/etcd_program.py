"""How is the program of this node's member of the job's own etcd found, started, kept running, and ended?

The program ends with this process, however that ends. If it ends by itself, it is started again with its data.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec

from supervisor.config.launch_values import join_endpoint
from supervisor.edges.machine.own_process.side_threads import SideThreads
from supervisor.edges.machine.processes import process_table
from supervisor.edges.peers.election.etcd_member_connection import Endpoint
from supervisor.edges.peers.election.member_tls import MemberFiles
from supervisor.errors import ConfigurationError

PROGRAM = "etcd"
AGAIN_S = 0.5  # before it is started again
END_TIMEOUT_S = 3.0  # a killed process may wait for its disk
STEADY_S = 10.0  # one that ends sooner than that, FAILS_MAX times in a row, has a fault that stays
FAILS_MAX = 5
LOG_BYTES_MAX = 64 * 1024  # as much of it is read for the last line
LOG_KEPT_BYTES_MAX = 4 * 1024 * 1024
OLDEST = (3, 4)
VERSION_TIMEOUT_S = 30.0
DISK_TIMEOUT_S = 1.0
NO_LOG = 127  # plus the number of the error: the exit code of a process that can't open its log
# Its parent's death ends it: set by the process itself, which then opens the log, on whatever disk, and becomes etcd.
BEGIN = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
os.getppid() == int(sys.argv[1]) or os._exit(1)
try:
    log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
except OSError as error:
    os._exit({NO_LOG} + error.errno)
os.dup2(log, 1)
os.dup2(log, 2)
os.execv(sys.argv[3], sys.argv[3:])
"""
INHERITED = ("LD_LIBRARY_PATH",)  # Python may need it; a proxy's variables would divert etcd's members
# A member may have several addresses, and connect from another one than it listens at. The flag's name depends on the
# version; an unknown variable does no harm.
ANY_ADDRESS = ("ETCD_EXPERIMENTAL_PEER_SKIP_CLIENT_SAN_VERIFICATION", "ETCD_PEER_SKIP_CLIENT_SAN_VERIFICATION")


class _Line(msgspec.Struct):
    """What a line of etcd's log says."""

    msg: str
    error: str = ""


def find() -> str:
    """Returns the program's path. Blocks until it has told its version. Raises ConfigurationError."""
    path = shutil.which(PROGRAM)
    if path is None:
        raise _unusable("there is no program etcd on this node")
    try:
        told = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        raise _unusable(f"{path} does not start: {error}") from error
    version = re.search(r"etcd Version: (\d+)\.(\d+)", told.stdout)
    if version is not None and (int(version[1]), int(version[2])) < OLDEST:
        raise _unusable(f"{path} is version {version[1]}.{version[2]}, which knows no learners")
    return path


def _unusable(why: str) -> ConfigurationError:
    return ConfigurationError(
        f"cannot use --rdzv-conf members=3: {why}; install etcd 3.4 or newer, such as by apt-get install etcd-server, "
        "or give --rdzv-endpoint an etcd that runs and leave members out"
    )


class EtcdProgram:
    """The program of one member. Use it only from the event loop's thread."""

    def __init__(self, path: str, folder: Path, own: Endpoint, files: MemberFiles) -> None:
        self._path = path
        self._folder = folder
        self._files = files
        self._port = own.port
        self.client_url = f"https://{join_endpoint(own.host, own.port)}"
        self.peer_url = f"https://{join_endpoint(own.host, own.port + 1)}"
        self.name = ""  # of the member
        self._process: subprocess.Popen[bytes] | None = None
        self._unwanted, self._over = anyio.Event(), anyio.Event()
        self._over.set()
        self._is_hung = False
        self._begun_s = 0.0
        self._fails = 0
        self._why = ""  # it does not start
        self._disk = SideThreads(stuck_max=1)

    @property
    def pid(self) -> int | None:
        """Returns the process; None: none runs."""
        return self._process.pid if self._process is not None else None

    @property
    def is_broken(self) -> bool:
        """Whether it ends or hangs soon each time, such as on a full disk, or could not be started for a while.

        Not once it has run for a while.
        """
        return self._fails >= FAILS_MAX and (self._process is None or not self._is_steady)

    @property
    def _is_steady(self) -> bool:
        return anyio.current_time() - self._begun_s > STEADY_S and not self._is_hung

    async def run(self, cluster: Sequence[str], *, hosts: Sequence[str] = (), token: str = "") -> None:
        """Keeps it running until cancelled or ended. Never raises.

        `cluster`: where each member meets the others. `hosts`: more addresses at which it serves nodes. `token`: of a
        new cluster; "": it joins one.
        """
        self._unwanted, self._over = unwanted, over = anyio.Event(), anyio.Event()
        self._fails = 0
        self.name = _name(self.peer_url) + (f"-{token}" if token else "")
        try:
            await anyio.lowlevel.checkpoint()  # None starts if this has ended already.
            startless_since_s: float | None = None
            while not unwanted.is_set():
                self._begun_s = anyio.current_time()
                if await self._run_once(cluster, hosts, token):
                    startless_since_s = None
                    self._fails = 0 if self._is_steady else self._fails + 1
                else:
                    startless_since_s = startless_since_s or self._begun_s
                    self._fails += self._begun_s - startless_since_s > STEADY_S
                with anyio.move_on_after(AGAIN_S):  # A program that ends at once would be started without end.
                    await unwanted.wait()
        finally:
            over.set()

    async def _run_once(self, cluster: Sequence[str], hosts: Sequence[str], token: str) -> bool:
        """Returns False if no process can be started, such as for lack of room."""
        self._is_hung = False
        try:
            process = self._start(cluster, hosts, token)
            handle = process_table.descriptor_of_child(process)
        except OSError as error:
            self._why = f"its process can't be started: {error}"
            return False
        self._process, self._why = process, ""
        try:
            await anyio.wait_readable(handle)
            code = process.wait()
            self._why = f"cannot open {self._folder}/log: {os.strerror(code - NO_LOG)}" if code > NO_LOG else ""
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process, handle)
            os.close(handle)
            self._process = None
        return True

    def restart(self) -> None:
        """Kills the program, which hangs, so that it is started again."""
        self._is_hung = True
        self._kill()

    async def end(self) -> None:
        """Ends the program, whose data nobody needs any more: with SIGTERM, it would wait for its clients."""
        self._unwanted.set()
        self._kill()
        with anyio.move_on_after(END_TIMEOUT_S):
            await self._over.wait()

    def _kill(self) -> None:
        if (process := self._process) is not None:
            with suppress(ProcessLookupError):
                process.kill()

    async def trim_log(self) -> None:
        """Empties the log if it has become long: a member that meets no other one complains all the time."""

        def trim() -> None:
            if (self._folder / "log").stat().st_size > LOG_KEPT_BYTES_MAX:
                os.truncate(self._folder / "log", 0)

        with suppress(OSError):
            await self._disk.call(trim, timeout_s=DISK_TIMEOUT_S, discard=bool)

    async def last_words(self) -> str:
        """Returns why it does not start, or what its log says last; "" if it says nothing or can't be read in time."""

        def lines() -> list[str]:
            with (self._folder / "log").open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_BYTES_MAX))
                return log.read().decode(errors="replace").strip().splitlines()

        if self._why:
            return self._why
        try:
            said_last = await self._disk.call(lines, timeout_s=DISK_TIMEOUT_S, discard=bool)
        except OSError:
            return ""
        said = (_said(line) for line in reversed(said_last))
        return next(filter(None, said), said_last[-1] if said_last else "")

    def _start(self, cluster: Sequence[str], hosts: Sequence[str], token: str) -> subprocess.Popen[bytes]:
        """Raises OSError. Waits for no disk but that of the interpreter."""
        files = self._files
        everywhere = next((each for each in ("::", "0.0.0.0") if each in hosts), "")
        others = [everywhere] if everywhere else hosts
        serves_at = [f"https://{join_endpoint(each, self._port)}" for each in others]
        if not everywhere:
            serves_at.append(self.client_url)
        arguments = [
            "--name", self.name, "--data-dir", str(self._folder / "data"), "--logger", "zap",
            "--log-level", "warn",
            "--listen-client-urls", ",".join(serves_at), "--advertise-client-urls", self.client_url,
            "--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url,
            "--initial-cluster", ",".join(f"{self._name_of(url)}={url}" for url in cluster),
            "--initial-cluster-state", "new" if token else "existing", "--initial-cluster-token", token or "-",
            "--cert-file", files.certificate, "--key-file", files.key, "--trusted-ca-file", files.authority,
            "--client-cert-auth", "--peer-cert-file", files.certificate, "--peer-key-file", files.key,
            "--peer-trusted-ca-file", files.authority, "--peer-client-cert-auth", "--enable-grpc-gateway=false",
            "--auto-compaction-retention", "1",
        ]  # fmt: skip
        begin = [sys.executable, "-I", "-S", "-c", BEGIN, str(os.getpid()), str(self._folder / "log"), self._path]
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        return subprocess.Popen(
            [*begin, *arguments],
            env={"PATH": os.defpath, **inherited, **dict.fromkeys(ANY_ADDRESS, "true")},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _name_of(self, peer_url: str) -> str:
        return self.name if peer_url == self.peer_url else _name(peer_url)


def _said(line: str) -> str:
    """Returns what a line says; "": it is part of a stack, or of a text."""
    try:
        told = msgspec.json.decode(line, type=_Line)
    except msgspec.MsgspecError:
        return line if line.startswith("panic: ") else ""
    return f"{told.msg}: {told.error}" if told.error else told.msg


def _name(peer_url: str) -> str:
    """Returns the name of the member there: etcd finds its own address in the list by it."""
    return peer_url.partition("://")[2]


async def _end(process: subprocess.Popen[bytes], handle: int) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            process.kill()
        with anyio.move_on_after(END_TIMEOUT_S):
            await anyio.wait_readable(handle)
        process.poll()
