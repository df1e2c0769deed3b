"""A real etcd with one member on free ports, for a test: started, stopped, killed and restarted by process id."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

LIMIT_S = 60.0


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


class Etcd:
    """One member. `scheme` and `flags` are for TLS."""

    def __init__(self, folder: Path, *, scheme: str = "http", flags: Sequence[str] = (), name: str = "m") -> None:
        self.folder = folder
        self.name = name
        self.port, self.peer_port = free_ports(2)
        self.cluster = f"{name}=http://127.0.0.1:{self.peer_port}"  # all its members
        self._scheme = scheme
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        client, peer = f"{self._scheme}://{self.endpoint}", f"http://127.0.0.1:{self.peer_port}"
        arguments = ["--name", self.name, "--data-dir", str(self.folder / "data"), "--listen-client-urls", client]
        arguments += ["--advertise-client-urls", client, "--listen-peer-urls", peer, "--logger", "zap"]
        arguments += ["--initial-advertise-peer-urls", peer, "--initial-cluster", self.cluster, *self._flags]
        with (self.folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(["etcd", *arguments], stdout=log, stderr=log)

    def ctl(self, *arguments: str) -> str:
        """Runs etcdctl; waits as long as the server may take to start."""
        told = subprocess.run(
            ["etcdctl", "--endpoints", f"{self._scheme}://{self.endpoint}", "--dial-timeout", "20s",
             "--command-timeout", "20s", *arguments],
            env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"},
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert told.returncode == 0, told.stderr
        return told.stdout

    def record(self, key: str) -> dict[str, object]:
        """Returns the JSON record of that key; {}: there is none."""
        found = self.ctl("get", "--print-value-only", key).strip()
        return json.loads(found) if found else {}

    def end_lead(self, job_id: str) -> None:
        """Revokes the lease of the job's leader, so a later record is of a node that has been elected since."""
        (found,) = json.loads(self.ctl("get", "-w", "json", f"/holdfast/{job_id}/leader"))["kvs"]
        self.ctl("lease", "revoke", f"{found['lease']:x}")

    def restore(self, backup: Path) -> None:
        """Stops it. The next start begins with that snapshot."""
        self.wipe()
        subprocess.run(
            ["etcdctl", "snapshot", "restore", str(backup), "--data-dir", str(self.folder / "data"),
             "--name", self.name, "--initial-cluster", self.cluster,
             "--initial-advertise-peer-urls", self.cluster.partition("=")[2]],
            env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"}, check=True, capture_output=True, timeout=LIMIT_S,
        )  # fmt: skip

    def wipe(self) -> None:
        """Stops it, and takes all its data."""
        self.stop()
        shutil.rmtree(self.folder / "data")

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait(LIMIT_S)
            self._process = None


@contextmanager
def etcd(folder: Path, *, scheme: str = "http", flags: Sequence[str] = ()) -> Generator[Etcd]:
    if shutil.which("etcd") is None or shutil.which("etcdctl") is None:
        pytest.skip("needs etcd: apt-get install etcd-server etcd-client")
    folder.mkdir(exist_ok=True)
    server = Etcd(folder, scheme=scheme, flags=flags)
    server.start()
    try:
        yield server
    finally:
        server.stop()
