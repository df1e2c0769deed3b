"""Where are a leader's TLS handshakes computed, so that its event loop serves other nodes meanwhile?

Here, in threads: OpenSSL needs about 2 ms of CPU for each and does not hold Python's lock. So thousands of nodes that
connect at once use several cores of the leader, and delay no heartbeat. Relays do the same for their nodes.
"""

from __future__ import annotations

import asyncio  # anyio has no callbacks
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

THREADS_MAX = 4  # with these, the event loop has more to do for each connection than they have

Step = Callable[[], object]
Done = Callable[[BaseException | None], None]


class Handshakes:
    """The threads of one server. Call its methods only in the event loop's thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(min(THREADS_MAX, len(os.sched_getaffinity(0))), "handshake")

    def compute(self, step: Step, done: Done) -> None:
        """Makes the call in a thread, then calls `done` in the event loop, with the error that it raised, if any."""
        is_given_up = False

        def make() -> object:
            return None if is_given_up else step()

        def tell(ended: Future[object]) -> None:
            with suppress(RuntimeError):  # The event loop is closed: nobody waits for it any more.
                self._loop.call_soon_threadsafe(done, ended.exception())

        try:
            self._threads.submit(make).add_done_callback(tell)
        except RuntimeError as error:  # It may still be in the queue of another thread.
            is_given_up = True
            self._loop.call_soon(done, OSError(f"no thread can be started ({error}); raise ulimit -u"))

    def close(self) -> None:
        """Ends the threads once they have made the calls that wait. Does not wait for that."""
        self._threads.shutdown(wait=False)
