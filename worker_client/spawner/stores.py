"""Which store waits for its first client, and which process serves it when one comes?

The listening socket exists from the start, and connections wait in its queue. An unused store gets no process, whose
start and end would only cost a restart time.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import NamedTuple

from holdfast_wire.spawner_link import PrepareStore, StoreFailed, StoreReady

from . import fork_and_exec, ports, process_attributes, process_tree, store_host
from .cgroup import CycleCgroups
from .child_state import Inherited
from .event_loop import READ, Events
from .fork_and_exec import Start


class Waiting(NamedTuple):
    """A store without a client yet."""

    cycle: int
    host: str
    port: int
    listen_fd: int
    port_is_wanted_again: bool  # by the next cycle's store


class Stores:
    """The stores of all cycles until each has its process."""

    def __init__(
        self,
        events: Events,
        cgroups: CycleCgroups,
        inherited: Inherited,
        serve_command: Callable[[Waiting], tuple[str, ...]] | None,
        *,
        on_started: Callable[[int, Waiting], None],
        on_failed: Callable[[StoreFailed], None],
    ) -> None:
        """`serve_command` returns what to execute as a store host; None: it is forked. `on_started`: pid, its store."""
        self._events = events
        self._cgroups = cgroups
        self._inherited = inherited
        self._serve_command = serve_command
        self._on_started = on_started
        self._on_failed = on_failed
        self._waiting: dict[int, Waiting] = {}

    def prepare(self, message: PrepareStore) -> StoreReady | StoreFailed:
        """Listens, or only chooses a port if rank 0 serves the store itself."""
        cycle, host = message.cycle, message.host
        within = range(message.first_port, message.last_port + 1) if message.first_port else None
        self.close(cycle)
        try:
            if not message.serve:
                return StoreReady(cycle, host, message.port or ports.choose(host, within))
            listen_fd, port = ports.listen(host, message.port, within)
        except OSError as error:
            return StoreFailed(cycle, str(error))
        except ValueError as error:  # no address that could be written down
            return StoreFailed(cycle, f"cannot serve a store on {host!r}: {error}; check --master-addr")
        self._waiting[cycle] = Waiting(cycle, host, port, listen_fd, port_is_wanted_again=message.port != 0)
        self._events.watch(listen_fd, READ, lambda: self._serve(cycle))
        return StoreReady(cycle, host, port)

    def close(self, cycle: int) -> None:
        """Frees the port of a store that gets no more clients. Does not touch a store that is being served."""
        store = self._waiting.pop(cycle, None)
        if store is not None:
            self._events.forget(store.listen_fd)
            os.close(store.listen_fd)

    def _serve(self, cycle: int) -> None:
        store = self._waiting[cycle]
        start = Start({}, {}, self._cgroups.make(cycle), keep=frozenset({store.listen_fd}))
        pid = 0
        try:
            pid = fork_and_exec.fork_and_call(self._inherited, start, lambda: self._be(store), leave=self._events.close)
            self._on_started(pid, store)
        except OSError as error:
            if pid:
                process_tree.send(pid, signal.SIGKILL)  # It can't be watched; the reaper of orphans reaps it.
            reason = f"cannot start the store host: {error.strerror}; check the limits on processes, memory and files"
            self._on_failed(StoreFailed(cycle, reason))
        finally:
            self.close(cycle)

    def _be(self, store: Waiting) -> None:
        """Serves the store, in the new process."""
        process_attributes.set_comm(b"hf-store")
        if self._serve_command is not None:
            os.set_inheritable(store.listen_fd, True)
            argv = self._serve_command(store)
            os.execvp(argv[0], argv)
        store_host.serve(store.host, store.port, store.listen_fd)
