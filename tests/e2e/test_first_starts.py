"""A first start waits for nodes that may train unheard only if etcd can't prove that there are none."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from supervisor.core.election.first_start import HELD_S
from supervisor.core.fence_times import TAKE_OVER_S
from tests.e2e.test_many_nodes import LIMIT_S, nodes
from tests.etcd_server import Etcd, etcd


def _first_start_s(folder: Path, server: Etcd) -> float:
    """Returns how long a new job takes from its start to its first ranks."""
    folder.mkdir()
    with nodes(folder, "2") as job:
        job.endpoint = server.endpoint
        began_s = time.monotonic()
        for number in (1, 2):
            job.start(number, "60", flags=("--rdzv-backend", "etcd"))
        job.until_running(0, 4)
        took_s = time.monotonic() - began_s
        job.let_end()
        assert [process.wait(LIMIT_S) for process in job.processes] == [0, 0]
    return took_s


def _held_for_s(server: Etcd) -> int:
    """Returns what has passed of the lease of the key that proves it."""
    for lease in server.ctl("lease", "list").split()[3:]:
        told = server.ctl("lease", "timetolive", "--keys", lease)
        if "/holdfast/.held" in told:
            granted, left = re.findall(r"\((\d+)s\)", told)
            return int(granted) - int(left)
    return 0


def _wait_for_age(server: Etcd) -> None:
    deadline_s = time.monotonic() + 2 * HELD_S
    while (left_s := HELD_S + 1 - _held_for_s(server)) >= 0:
        assert time.monotonic() < deadline_s, "etcd does not prove its age"
        time.sleep(left_s + 0.1)  # the key ages with the clock; each look starts three programs


@pytest.mark.soak
def test_a_job_begins_at_once_on_an_etcd_that_has_held_its_data_and_waits_on_one_that_has_lost_them(tmp_path: Path):
    with etcd(tmp_path / "etcd") as server:
        server.ctl("endpoint", "health")
        new_s = _first_start_s(tmp_path / "new", server)
        _wait_for_age(server)
        held_s = _first_start_s(tmp_path / "held", server)
        server.wipe()
        server.start()
        server.ctl("endpoint", "health")
        wiped_s = _first_start_s(tmp_path / "wiped", server)
    print(f"\nfirst start: {new_s:.1f} s on a new etcd, {held_s:.1f} s on one that ran, {wiped_s:.1f} s on a wiped one")
    assert min(new_s, wiped_s) > TAKE_OVER_S
    assert held_s < min(new_s, wiped_s) - 0.6 * TAKE_OVER_S
