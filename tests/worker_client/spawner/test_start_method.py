"""What does a spawner first report about itself?"""

from __future__ import annotations

import os
import sys

from holdfast_wire import spawner_link

from worker_client.spawner.command_check import Refusal
from worker_client.spawner.start_method import Method


def test_it_says_what_it_is_and_how_it_starts_workers() -> None:
    method = Method("fork", "torch is loaded", ("torch",), lost="each worker loads heavy itself")
    ready = method.ready("/sys/fs/cgroup/job", holds_pages=True)
    assert spawner_link.decode(spawner_link.encode(ready)) == ready
    assert (ready.pid, ready.protocol) == (os.getpid(), spawner_link.PROTOCOL)
    assert ready.python == ".".join(map(str, sys.version_info[:3]))
    assert (ready.method, ready.method_reason, ready.preloaded) == ("fork", "torch is loaded", ("torch",))
    assert (ready.cgroup, ready.holds_pages, ready.lost) == (
        "/sys/fs/cgroup/job",
        True,
        "each worker loads heavy itself",
    )
    assert ready.refusal == ""


def test_a_command_that_cannot_run_is_refused_with_its_code() -> None:
    ready = Method("exec", "", (), Refusal("no such script", 2)).ready("", holds_pages=False)
    assert (ready.refusal, ready.refusal_code) == ("no such script", 2)
