"""How did a process end?"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from holdfast_wire.spawner_link import Ready

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, worker


@pytest.mark.parametrize("method", ["fork", "exec"])
def test_exit_codes_are_exact(script: Script, method: str) -> None:
    path = script("import os; os._exit(int(os.environ['CODE']))")
    with Rig(path, method=method) as rig:
        assert rig.receive(Ready).method == method
        ends = rig.run(*(worker(at, CODE=str(code)) for at, code in enumerate((0, 1, 77, 255))))
    assert [(each.code, each.signal) for each in ends] == [(0, None), (1, None), (77, None), (255, None)]


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGKILL, signal.SIGUSR1])
def test_a_signal_is_a_signal_and_not_a_code(script: Script, number: int) -> None:
    with Rig(script(f"import os; os.kill(os.getpid(), {int(number)})")) as rig:
        (end,) = rig.run(worker())
    assert (end.code, end.signal, end.out_of_memory) == (None, number, False)


def test_a_core_dump_is_said(script: Script, tmp_path: Path) -> None:
    path = script(
        """
        import os, resource
        resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
        os.abort()
        """
    )
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("core dumps are forbidden here")
    with Rig(path, cwd=tmp_path) as rig:
        (end,) = rig.run(worker())
    expected = subprocess.Popen([sys.executable, path], cwd=tmp_path)
    dumped = os.WCOREDUMP(os.waitpid(expected.pid, 0)[1])
    expected.returncode = 0
    assert end.core_dumped == dumped


def test_eight_deaths_at_once_are_eight_reports(script: Script) -> None:
    with Rig(script("import sys, time; print('up', flush=True); time.sleep(60)")) as rig:
        spawned = rig.spawn(*(worker(rank) for rank in range(8)))
        for each in spawned:
            os.kill(each.pid, signal.SIGKILL)
        ends = [rig.exited(rank) for rank in range(8)]
    assert [each.signal for each in ends] == [9] * 8
    assert not any(each.out_of_memory for each in ends)
