"""The command `holdfast`, whose supervisor can start no thread while it takes back the jobs of the one before it."""

import sys
from typing import NoReturn

from anyio import to_thread
from anyio.abc import TaskGroup

from supervisor.cli import main
from supervisor.wiring.supervisor_return import Returning

run, run_sync = Returning.run, to_thread.run_sync


async def refuse(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("can't start new thread")


async def run_without_threads(self: Returning, tasks: TaskGroup) -> None:
    to_thread.run_sync = refuse
    try:
        await run(self, tasks)
    finally:
        to_thread.run_sync = run_sync


Returning.run = run_without_threads
sys.exit(main())
