"""Runs many scripts that load the same modules, and loads these once: each script runs in a fork of one process.

A script that judges how something is loaded, or what a start of Python makes of its variables, needs one of its own.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

# Each script has a parent of its own, which waits for it.
SERVER = """
import importlib, json, os, signal, socket, sys, time, types

server = socket.socket(fileno=int(sys.argv[1]))
for name in sys.argv[2:]:
    importlib.import_module(name)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    asked, descriptors, _, _ = socket.recv_fds(server, 1 << 20, 3)
    if not asked:
        break
    out, err, ended = descriptors
    if os.fork():
        for each in descriptors:
            os.close(each)
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    server.close()
    if pid := os.fork():
        os.write(ended, b"%d\\n" % pid)
        os.write(ended, b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    asked = json.loads(asked)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, 1024)
    os.environ.clear()
    os.environ.update(asked["environment"])
    time.tzset()
    os.chdir(asked["folder"])
    sys.argv = ["-c", *asked["arguments"]]
    sys.path[:0] = ["", *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(asked["script"], "<string>", "exec"), vars(main))
    break
"""


class Forked:
    """A script that runs, with what tests use of subprocess.Popen. Its end is to be awaited."""

    stdout = None

    def __init__(self, out: IO[bytes], err: IO[bytes], ended: IO[bytes]) -> None:
        self._out, self._err, self._ended = out, err, ended
        self.pid = int(ended.readline())
        self.returncode: int | Any = None
        self._told = ("", "")

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._ended, select.POLLIN)
            if not waiting.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired("a fork", timeout or 0.0)
            self.returncode = int(self._ended.readline())
            self._told = _read(self._out), _read(self._err)
            self._ended.close()
        return self._told

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


def _read(file: IO[bytes]) -> str:
    with file:
        file.seek(0)
        return file.read().decode()


class ForkServer:
    """Has loaded `modules`. It ends with this process."""

    def __init__(self, *modules: str) -> None:
        self._socket, server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-c", SERVER, str(server.fileno()), *modules]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[server.fileno()])
        server.close()

    def start(self, script: str, *arguments: str, environment: Mapping[str, str], folder: Path) -> Forked:
        """Starts the script as `python -c` would, in that folder."""
        asked = {"script": script, "arguments": arguments, "environment": {**environment}, "folder": str(folder)}
        ended, tells_end = os.pipe()
        out, err = (os.fdopen(os.memfd_create(name), "rb") for name in ("out", "err"))
        socket.send_fds(self._socket, [json.dumps(asked).encode()], [out.fileno(), err.fileno(), tells_end])
        os.close(tells_end)
        return Forked(out, err, os.fdopen(ended, "rb", buffering=0))

    def ran(
        self, script: str, *arguments: str, environment: Mapping[str, str], folder: Path, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        forked = self.start(script, *arguments, environment=environment, folder=folder)
        try:
            out, err = forked.communicate(timeout_s)
        finally:
            forked.kill()
            forked.communicate()
        assert forked.returncode is not None
        return subprocess.CompletedProcess([], forked.returncode, out, err)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(60)


@functools.cache
def fork_server(*modules: str) -> ForkServer:
    server = ForkServer(*modules)
    atexit.register(server.close)
    return server
