"""A spawner that does what its first argument says, for tests of the link. Run as a program; the link is fd argv[2]."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

from holdfast_wire import framing, spawner_link
from holdfast_wire.spawner_link import End, Ended, Message, Ready, Spawn, Spawned, Unknown

link = socket.socket(fileno=int(sys.argv[2]))


def say(message: Message) -> None:
    link.sendall(framing.encode(spawner_link.encode(message), frame_bytes_max=framing.SPAWNER_FRAME_BYTES_MAX))


def ready() -> None:
    say(Ready(os.getpid(), 1, "3", "exec", "as asked", (), ""))


def obey() -> None:
    """Obeys spawn orders; each worker sleeps, with a child that has left its session."""
    decoder = framing.Decoder(frame_bytes_max=framing.SPAWNER_FRAME_BYTES_MAX)
    while data := link.recv(65536):
        for payload in decoder.feed(data):
            match spawner_link.decode(payload):
                case Spawn() as told:
                    for plan in told.workers:
                        script = "sleep 600 & setsid sleep 600 & wait"
                        worker = subprocess.Popen(["sh", "-c", script], start_new_session=True)
                        say(Spawned(told.cycle, plan.local_rank, worker.pid, time.monotonic_ns(), "exec"))
                case End():
                    say(Ended())
                    sys.exit(0)
                case other:
                    raise AssertionError(other)


match sys.argv[1]:
    case "obey":
        ready()
        obey()
    case "newer":
        ready()
        say(Unknown("Rewind"))
        obey()
    case "other protocol":
        say(Ready(os.getpid(), spawner_link.PROTOCOL + 1, "3", "exec", "as asked", (), ""))
        signal.pause()
    case "exit":
        ready()
        sys.exit(3)
    case "die":
        ready()
        os.kill(os.getpid(), signal.SIGKILL)
    case "garbage":
        link.sendall(b"\0\0\0\4{}}}")
        signal.pause()
    case "backwards":
        say(End())
        signal.pause()
    case "close":
        ready()
        link.close()
        signal.pause()
    case "deaf":
        ready()
        signal.pause()
    case _:
        raise AssertionError(sys.argv)
