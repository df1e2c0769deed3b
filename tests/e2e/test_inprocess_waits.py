"""Are ranks that wait inside C++ for a missing one released, long before any timeout, and nothing else?"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.alone import alone
from tests.e2e.launch import SCRIPTS, assert_nothing_left, launched
from tests.e2e.torchrun import torchrun

SCRIPT = str(SCRIPTS / "wrapped_waiting.py")
WORLD_SIZE = 4
RELEASED_S = 45.0  # includes torch's own name lookups; the hard timeout is 90 s, the group's 20 minutes

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def echo() -> Iterator[dict[str, str]]:
    """Runs a server that is not the job's, at a port of none of its stores."""
    listener = socket.create_server(("127.0.0.1", 0))
    accepted: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := connection.recv(64):
                connection.sendall(data)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted.append(listener.accept()[0])
                threading.Thread(target=serve, args=(accepted[-1],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield {"ECHO_PORT": str(listener.getsockname()[1])}
    listener.shutdown(socket.SHUT_RDWR)
    for each in (listener, *accepted):
        each.close()


def assert_released(lines: list[dict[str, object]], times: int) -> None:
    """All ranks were released, each time, and connections from the first iteration on stayed open."""
    entries: dict[object, dict[object, float]] = defaultdict(dict)
    for line in lines:
        if line["what"] == "fn":
            entries[line["iteration"]][line["rank"]] = float(str(line["at"]))
    assert {iteration: set(ranks) for iteration, ranks in entries.items()} == {
        iteration: set(range(WORLD_SIZE)) for iteration in range(times + 1)
    }
    for fault in (line for line in lines if line["what"] == "fault"):
        again_s = max(entries[int(str(fault["iteration"])) + 1].values())
        assert again_s - float(str(fault["at"])) < RELEASED_S
    assert [line["is_kept"] for line in lines if line["what"] == "returned"] == [True] * WORLD_SIZE


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        ("init", "exception"),
        ("group", "kill"),
        ("own", "exception"),
        *(
            pytest.param(*each, marks=pytest.mark.soak)
            for each in [("init", "kill"), ("group", "exception"), ("own", "kill")]
        ),
    ],
)
def test_ranks_that_wait_for_one_that_fails_go_on(tmp_path: Path, echo: dict[str, str], place: str, fault: str):
    options = ("--nproc-per-node", str(WORLD_SIZE), "--max-restarts", "2", SCRIPT, place, fault, "2")
    with launched(tmp_path, *options, environment=echo) as launch:
        assert launch.wait(150) == 0, launch.explained()
        assert_released(launch.traced(), 2)
        assert "hard_timeout_reached" not in launch.kinds()
        pids = {line["pid"] for line in launch.traced("fn") if line["rank"] != 1}
        assert len(pids) == WORLD_SIZE - 1, "the ranks that waited are the same processes"
        assert_nothing_left(launch)


def test_ranks_that_wait_for_a_store_that_nobody_will_serve_go_on(tmp_path: Path, echo: dict[str, str]):
    """Without a launcher, rank 0 serves the store. Here it fails first, so the others can't even connect."""
    with alone(tmp_path, WORLD_SIZE, **echo) as job:
        job.start_ranks(command=(SCRIPT, "server", "exception", "2"))
        assert job.codes() == [0] * WORLD_SIZE, job.explained()
        assert_released(job.traced(), 2)


@pytest.mark.soak
def test_under_torchrun_too(tmp_path: Path, echo: dict[str, str]):
    options = ("--standalone", "--nproc-per-node", str(WORLD_SIZE), SCRIPT, "init", "exception", "2")
    done = torchrun(tmp_path, *options, environment=echo | {"HOLDFAST_STATE_DIR": str(tmp_path / "state")})
    assert done.code == 0, done.stderr.decode()
    lines = [json.loads(line) for line in (tmp_path / "torchrun.jsonl").read_text().splitlines()]
    assert_released(lines, 2)
    assert len({line["pid"] for line in lines}) == WORLD_SIZE


@pytest.mark.soak
def test_many_releases_leave_no_descriptor_open(tmp_path: Path, echo: dict[str, str]):
    times, early = 50, range(3, 8)
    options = ("--nproc-per-node", str(WORLD_SIZE), SCRIPT, "init", "exception", str(times))
    with launched(tmp_path, *options, environment=echo) as launch:
        assert launch.wait(170) == 0, launch.explained()
        held = {(line["rank"], line["iteration"]): int(str(line["descriptors"])) for line in launch.traced("fn")}
    for rank in range(WORLD_SIZE):
        at_first = max(held[rank, iteration] for iteration in early)
        assert min(held[rank, iteration] for iteration in range(times - 5, times)) <= at_first
