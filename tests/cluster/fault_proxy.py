"""A slow or faulty link between two nodes: forwards TCP connections with the faults that stdin lines request.

`delay MIN MAX`: each piece of data comes so many seconds later. `stall S`: nothing passes for S seconds. `cut`: all
connections break. `half-open`: from now on what comes on them is swallowed, and their ends, too; new ones are sound.
`dead`: new ones are not, either. The seed decides each delay. Prints "ready" once it listens.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from random import Random

import anyio
from anyio.abc import ByteStream, SocketStream

PIECE_BYTES = 4096
GONE = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


@dataclass
class Weather:
    """How the link treats data now."""

    dice: Random
    delay_s: tuple[float, float] = (0.0, 0.0)
    stalled_until_s: float = 0.0
    is_dead: bool = False
    connections: list[Connection] = field(default_factory=list["Connection"])


@dataclass
class Connection:
    scope: anyio.CancelScope
    is_half_open: bool = False


async def serve(weather: Weather, listener: anyio.abc.Listener[SocketStream], to: tuple[str, int]) -> None:
    async def hand_on(near: SocketStream) -> None:
        connection = Connection(anyio.CancelScope())
        weather.connections.append(connection)
        try:
            with connection.scope:
                async with near, await anyio.connect_tcp(*to) as far, anyio.create_task_group() as tasks:
                    tasks.start_soon(carry, weather, connection, near, far)
                    tasks.start_soon(carry, weather, connection, far, near)
        except OSError:
            return  # nobody to forward to: the near side sees its connection end
        finally:
            weather.connections.remove(connection)

    async with listener:
        await listener.serve(hand_on)


async def carry(weather: Weather, connection: Connection, source: ByteStream, sink: ByteStream) -> None:
    while True:
        try:
            data = await source.receive(PIECE_BYTES)
        except GONE:
            if connection.is_half_open:
                await anyio.sleep_forever()
            connection.scope.cancel()
            return
        await anyio.sleep(weather.dice.uniform(*weather.delay_s))
        await anyio.sleep_until(weather.stalled_until_s)
        if connection.is_half_open or weather.is_dead:
            continue
        try:
            await sink.send(data)
        except GONE:
            connection.scope.cancel()
            return


def obey(weather: Weather, line: str) -> None:
    match line.split():
        case ["delay", low, high]:
            weather.delay_s = (float(low), float(high))
        case ["stall", seconds]:
            weather.stalled_until_s = anyio.current_time() + float(seconds)
        case ["cut"]:
            for each in weather.connections:
                each.scope.cancel()
        case ["half-open"]:
            for each in weather.connections:
                each.is_half_open = True
        case ["dead"]:
            weather.is_dead = True
        case _:
            raise ValueError(f"cannot do {line!r} to a link")


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.fault_proxy", description=__doc__)
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--to", required=True, metavar="HOST:PORT")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    host, port = given.listen.rsplit(":", 1)
    far_host, far_port = given.to.rsplit(":", 1)
    weather = Weather(Random(given.seed))
    listeners = await anyio.create_tcp_listener(local_host=host, local_port=int(port))
    print("ready", flush=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve, weather, listeners.listeners[0], (far_host, int(far_port)))
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            obey(weather, line)
            print("done", flush=True)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main)
