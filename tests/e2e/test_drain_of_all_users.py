"""Root drains a node of several users: one user's supervisor that refuses or is silent holds up none of the others."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import many_users
from tests.e2e.launch import SCRIPTS
from tests.e2e.many_users import Service

MALLORY, ALICE = 47114, 47115  # in the order in which supervisors are found
HOLDFAST = (sys.executable, "-m", "supervisor")
NODE = socket.gethostname()
WHO_AM_I = str(SCRIPTS / "who_am_i.py")
HERS = {"jobs": [{"jobId": "mine", "state": "JOB_STATE_RUNNING"}]}
NEVER_S = 3600

pytestmark = [
    pytest.mark.skipif(bool(many_users.missing()), reason=many_users.missing()),
    pytest.mark.timeout(180),
]


class Node:
    """A node on which alice has a job, and mallory a program of hers in the place of her supervisor."""

    def __init__(self, service: Service, lies: Path) -> None:
        self.service = service
        self._lies = lies
        self.run = service.started(ALICE, *HOLDFAST, "run", "--job-id", "of-alice", WHO_AM_I, "stay")
        assert self.run.stdout is not None
        assert self.run.stdout.readline()
        service.holdfast(MALLORY, "status")

    def tell(self, **said: object) -> None:
        draft = self._lies.with_suffix(".new")
        draft.write_text(json.dumps({**HERS, **said}))
        draft.chmod(0o644)
        draft.rename(self._lies)


@pytest.fixture
def node() -> Iterator[Node]:
    folder = Path("/tmp") / f"lies-{os.getpid()}-drain"
    folder.mkdir(mode=0o755)
    (folder / "lies.json").write_text(json.dumps(HERS))
    (folder / "lies.json").chmod(0o644)
    program = (str(SCRIPTS / "taken_over_service.py"), str(MALLORY), str(folder / "lies.json"))
    try:
        (folder / "calls").touch()
        (folder / "calls").chmod(0o666)
        with many_users.service("--users", "all", program=program) as service:
            made = Node(service, folder / "lies.json")
            try:
                yield made
            finally:
                made.run.kill()
                made.run.communicate()
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("said", "exit_code", "why"),
    [
        ({"refusals": {"CordonNode": "not today"}}, 1, "not today"),
        pytest.param(
            {"sleeps_s": {"CordonNode": NEVER_S}}, 75, "no answer within 10 s; try again", marks=pytest.mark.soak
        ),
    ],
    ids=["refuses", "is silent"],
)
def test_one_that_refuses_or_is_silent_is_named_and_the_others_are_drained(
    node: Node, said: dict[str, object], exit_code: int, why: str
) -> None:
    node.tell(**said)
    drain = node.service.holdfast(0, "drain", "--stop-jobs")
    assert drain.returncode == exit_code, drain.stderr
    assert f"node {NODE} (supervisor " in drain.stderr
    assert f"what user {MALLORY} has here is not drained: cannot" in drain.stderr
    assert why in drain.stderr
    assert f"waiting for job {ALICE}/of-alice" in drain.stderr
    assert "not every supervisor of this node is drained: see above; type holdfast drain again" in drain.stderr
    assert "this node has no jobs" not in drain.stderr
    assert "holdfast: drain by root" in node.run.communicate(timeout=many_users.END_S)[1]


def test_jobs_of_the_others_are_stopped_while_one_is_waited_for(node: Node) -> None:
    node.tell(sleeps_s={"WatchJob": NEVER_S})
    drain = node.service.started(0, *HOLDFAST, "drain", "--stop-jobs")
    try:
        assert "holdfast: drain by root" in node.run.communicate(timeout=many_users.END_S)[1]
        assert drain.poll() is None
        drain.send_signal(signal.SIGINT)
        assert f"waiting for job {MALLORY}/mine" in drain.communicate(timeout=many_users.END_S)[1]
        assert drain.returncode == 130
    finally:
        drain.kill()
