"""Where does a supervisor live, and who owns it?"""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec

from supervisor.config.log_limits import LogLimits
from supervisor.edges.machine.folders import socket_dir, state_dir
from supervisor.engine.output_plan import Console


class SupervisorPaths(msgspec.Struct, frozen=True):
    """Where a supervisor lives, and its identity."""

    socket_dir: Path
    state_dir: Path
    console: Console
    private: bool
    supervisor_return_timeout_s: float = 60.0  # how long jobs outlive their node's supervisor
    log_limits: LogLimits = LogLimits()
    node_name: str = msgspec.field(default_factory=socket.gethostname)
    warning: str = ""  # logged once the log is open

    @property
    def control_socket(self) -> Path:
        return self.socket_dir / socket_dir.CONTROL_SOCKET

    @property
    def worker_socket(self) -> Path:
        return socket_dir.worker_socket(self.socket_dir)

    @property
    def log_dir(self) -> Path:
        return state_dir.default_log_dir(self.state_dir)
