"""How are connections accepted where descriptors may run out, and many may arrive at once?"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Callable

import anyio

from supervisor.edges.machine.own_process import kernel_error_remedies
from supervisor.ports.timed_waits import pause

AT_ONCE_MAX = 256  # accepted before those that are in are served: a turn of the event loop for each would cost as much
SHORTAGE_PAUSE_S = 0.25


async def connections(
    listener: socket.socket, tell_shortage: Callable[[OSError], None] | None = None
) -> AsyncGenerator[socket.socket]:
    """Yields connections that do not block, without end. While no descriptor is free, the others wait.

    `tell_shortage` is called each time that none was free. Raises OSError for whatever else keeps it from accepting.
    """
    while True:
        await anyio.wait_readable(listener)
        for _ in range(AT_ONCE_MAX):
            try:
                client, _ = listener.accept()
            except BlockingIOError:
                break
            except (InterruptedError, ConnectionAbortedError):
                continue
            except OSError as error:
                if error.errno not in kernel_error_remedies.OF_DESCRIPTORS:
                    raise
                if tell_shortage is not None:
                    tell_shortage(error)
                await pause(SHORTAGE_PAUSE_S, why="the kernel does not tell when a descriptor is free again")
                break
            client.setblocking(False)
            yield client
