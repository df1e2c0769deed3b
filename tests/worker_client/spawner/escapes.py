"""A worker whose children try to escape: their script, and their pids once all are up."""

from __future__ import annotations

from pathlib import Path

from tests.worker_client.spawner.rig import until

ESCAPES = """
    import os, signal, sys, time
    folder = sys.argv[1]
    def note(name):
        with open(f"{folder}/{name}.tmp", "w") as file:
            file.write(str(os.getpid()))
        os.rename(f"{folder}/{name}.tmp", f"{folder}/{name}")
    def child(name, *steps):
        if os.fork() == 0:
            for step in steps:
                step()
            note(name)
            while True:
                time.sleep(60)
    def again():
        if os.fork():
            os._exit(0)
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    child("plain")
    child("session", os.setsid)
    child("daemon", os.setsid, again)
    child("twice", again, again)
    child("stopped", lambda: note("stopped.early"), lambda: os.kill(os.getpid(), signal.SIGSTOP))
    note("main")
    if os.environ.get("LEAVE"):
        sys.exit(0)
    while True:
        time.sleep(60)
"""


NAMES = ("plain", "session", "daemon", "twice", "stopped.early", "main")


def escaped(folder: Path) -> list[int]:
    until(lambda: all((folder / name).exists() for name in NAMES), what="all escapees")
    return [int((folder / name).read_text()) for name in NAMES]
