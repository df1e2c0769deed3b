"""Does what is said of a silent supervisor name its process, what that does, and a remedy?"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from supervisor.cli.unresponsive_supervisor import Silence, silence
from supervisor.errors import ExhaustedError

PATH = Path("/run/holdfast/control.sock")


def test_a_stopped_process_is_named_with_what_continues_it():
    with subprocess.Popen(["sleep", "60"]) as process:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        told = silence(PATH, process.pid, "no answer within 5 s")
        process.kill()
    assert told == (
        f"cannot ask the supervisor at {PATH}: no answer within 5 s; its process {process.pid} is stopped (state T); "
        f"kill -CONT {process.pid} continues it"
    )
    assert silence(PATH, process.pid, "it hangs") == f"cannot ask the supervisor at {PATH}: it hangs; try again"


def test_a_process_that_runs_is_tried_again():
    assert silence(PATH, os.getpid(), "it hangs").endswith(f"its process {os.getpid()} runs; try again")


def test_who_is_silent_decides_the_exit_code_and_is_told_once():
    silent = Silence()
    assert silent.exit_code == 0
    silent.check("stop job x")
    assert silent.add(PATH, "one")
    assert not silent.add(PATH, "two")
    assert silent.exit_code == 75
    with pytest.raises(ExhaustedError, match=f"cannot stop job x: the supervisor at {PATH}, which may know more"):
        silent.check("stop job x")
