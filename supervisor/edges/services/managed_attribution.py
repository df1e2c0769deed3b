"""How is a job's own attribution service kept: started, awaited, restarted, ended?

It runs as this supervisor's user, at a low priority, and ends with this process, however that ends. Only the service's
process touches the disk with the logs.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import anyio

from supervisor.config.attribution_settings import (
    EXPORT_VARIABLE,
    MANAGED_ADDRESS,
    NO_MODEL,
    Attribution,
    attribution_log_path,
    read_key,
)
from supervisor.edges.machine.own_process import kernel_error_remedies
from supervisor.edges.machine.own_process.own_descriptors import separately
from supervisor.edges.machine.own_process.side_threads import SideThreads
from supervisor.edges.machine.processes import process_table
from supervisor.edges.services.attribution_client import AttributionClient
from supervisor.edges.services.parent_link import where_it_serves
from supervisor.errors import ConfigurationError
from supervisor.ports.edges import Clock
from supervisor.ports.timed_waits import pause

PROGRAM = Path(__file__).parents[3] / "holdfast_command.py"  # by its path, so that nothing of the user's is imported
END_TIMEOUT_S = 5.0  # from SIGTERM to SIGKILL
AGAIN_S = 1.0  # before a restart; doubled each time
AGAIN_MAX_S = 60.0
STEADY_S = 60.0  # a service that ran this long is restarted at once
HEALTHY_AGAIN_S = 0.2
STUCK_MAX = 4


class ManagedAttribution:
    """Keeps the service of one job. Use it only from the event loop's thread."""

    def __init__(
        self,
        settings: Attribution,
        log_prefix: str,
        environment: Mapping[str, str],
        who: Mapping[str, str],
        clock: Clock,
        command: Sequence[str] = (sys.executable, "-I", str(PROGRAM), "attribution"),
    ) -> None:
        self._settings = settings
        self._log_prefix = log_prefix
        self._environment = environment
        self._who = who
        self._clock = clock
        self._command = command
        self._threads = SideThreads(stuck_max=STUCK_MAX)
        self.pid: int | None = None

    @property
    def log_path(self) -> str:
        return attribution_log_path(self._log_prefix)

    async def check_key(self) -> None:
        """Raises ConfigurationError if the key can't be read."""
        if not self._settings.needs_key:
            return
        path, timeout_s = self._settings.llm_api_key_file, self._settings.startup_timeout_s
        try:
            await self._threads.call(partial(read_key, path), timeout_s=timeout_s, discard=len)
        except OSError as error:
            raise ConfigurationError(f"cannot read the language model's key {path}: {error}; check its disk") from error

    async def run(self, on_up: Callable[[AttributionClient], None], on_down: Callable[[str], None]) -> None:
        """Keeps the service until cancelled, then ends it in bounded time. Never raises."""
        delay_s = 0.0
        while True:
            started_s = self._clock.now_s()
            on_down(f"{await self._keep_one(on_up)}; its messages are in {self.log_path}")
            is_steady = self._clock.now_s() - started_s >= STEADY_S
            delay_s = 0.0 if is_steady else min(max(2 * delay_s, AGAIN_S), AGAIN_MAX_S)
            await pause(delay_s, why="a service that ends at once would be started without end")

    async def _keep_one(self, on_up: Callable[[AttributionClient], None]) -> str:
        """Starts one process, and returns why it ended."""
        timeout_s = self._settings.startup_timeout_s
        with ExitStack() as held:
            try:
                process, own = await self._threads.call(self._start, timeout_s=timeout_s, discard=_discard)
                held.enter_context(own)
                handle = process_table.descriptor_of_child(process)
            except OSError as error:
                return _cannot_start(error)
            self.pid = process.pid
            try:
                with anyio.move_on_after(timeout_s) as starting:
                    where = await where_it_serves(own)
                    if where is not None:
                        await self._come_up(where, on_up)
                if starting.cancelled_caught:
                    return f"the attribution service has not come up within {timeout_s:g} s"
                await anyio.wait_readable(handle)
                return f"the attribution service has ended with {_code(process.wait())}"
            finally:
                self.pid = None
                with anyio.CancelScope(shield=True):
                    await _end(process, handle)
                os.close(handle)

    async def _come_up(self, where: tuple[str, int], on_up: Callable[[AttributionClient], None]) -> None:
        """Returns once the service answers."""
        host, port = where
        client = AttributionClient(f"http://{host}:{port}", self._who, only_own_user=True)
        while not await client.is_healthy():
            await pause(HEALTHY_AGAIN_S, why="it listens, and does not answer yet")
        on_up(client)

    def _app_log_dir(self) -> str:
        """Returns the folder of the job's logs. Blocks on their disk. Raises OSError."""
        folder = os.path.dirname(os.path.realpath(self._log_prefix))
        os.makedirs(folder, exist_ok=True)
        return folder

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Starts the process; returns our end of its link, too. Blocks on the disks of logs and interpreter.

        Raises OSError.
        """
        folder = separately(self._app_log_dir)
        own, theirs = socket.socketpair()
        with theirs:
            try:
                own.setblocking(False)
                return self._execute(folder, theirs), own
            except BaseException:  # whatever it was, close the descriptor; raised again
                own.close()
                raise

    def _execute(self, folder: str, link: socket.socket) -> subprocess.Popen[bytes]:
        settings = self._settings
        arguments = [
            "--app-log-dir", folder, "--listen", "{}:{}".format(*MANAGED_ADDRESS), "--log-file", self.log_path,
            "--log-level", settings.log_level, "--parent-fd", str(link.fileno()),
        ]  # fmt: skip
        if settings.llm_base_url and settings.llm_model != NO_MODEL:
            arguments += ["--llm-base-url", settings.llm_base_url, "--llm-model", settings.llm_model]
            arguments += ["--llm-api-key-file", settings.llm_api_key_file]
        exports = {EXPORT_VARIABLE: settings.export_url} if settings.export_url else {}
        return subprocess.Popen(
            [*self._command, *arguments],
            env={**self._environment, **exports},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=2,
            pass_fds=(link.fileno(),),
            start_new_session=True,
        )


def _discard(started: tuple[subprocess.Popen[bytes], socket.socket]) -> None:
    process, own = started
    own.close()
    process_table.discard(process)


def _cannot_start(error: OSError) -> str:
    remedy = kernel_error_remedies.remedy(error) if error.strerror else ""  # else the error names it itself
    return f"cannot start the attribution service: {error.strerror or error}{remedy and f'; {remedy}'}"


async def _end(process: subprocess.Popen[bytes], handle: int) -> None:
    """Ends the process and waits until it is gone; one that can't be killed is left alone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
        with anyio.move_on_after(END_TIMEOUT_S):
            await anyio.wait_readable(handle)
    process.poll()


def _code(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
