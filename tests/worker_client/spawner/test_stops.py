"""The kernel tells the spawner that a worker was stopped, and that it goes on; nobody asks the worker."""

from __future__ import annotations

import os
import signal
from typing import Literal

import pytest
from holdfast_wire.spawner_link import RankContinued, RankStopped

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, worker


@pytest.mark.parametrize("method", ["fork", "exec"])
def test_a_worker_that_is_stopped_and_continued_is_reported(script: Script, method: Literal["fork", "exec"]) -> None:
    with Rig(script("import signal\nsignal.pause()"), method=method) as rig:
        started = rig.spawn(worker(0), worker(1), cycle=3)
        pids = {each.local_rank: each.pid for each in started}
        os.kill(pids[1], signal.SIGSTOP)
        stopped = rig.receive(RankStopped)
        assert stopped[:4] == (3, 1, pids[1], signal.SIGSTOP)
        os.kill(pids[1], signal.SIGCONT)
        continued = rig.receive(RankContinued)
        assert continued[:2] == (3, 1)
        assert continued.at_ns >= stopped.at_ns
