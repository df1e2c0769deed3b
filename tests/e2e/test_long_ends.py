"""What do people read of ranks that take their time to end after a signal, and does anything take it from them?"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.e2e.launch import Launch, assert_nothing_left, wait_until

pytestmark = pytest.mark.timeout(120)

UPLOADING = """
import os, signal, threading, time
stopped = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopped.set())
def upload():
    stopped.wait()
    while not os.path.exists("go"): time.sleep(0.01)
    print("uploaded", flush=True)
threading.Thread(target=upload, name="uploader").start()
print("ready", flush=True)
while not stopped.wait(0.1): pass
"""
LOADING = """
import os, signal, time
import torch
from torch.utils.data import DataLoader, TensorDataset

stopped = False
def stop(*_):
    global stopped
    stopped = True

def main():
    signal.signal(signal.SIGTERM, stop)
    batches = DataLoader(TensorDataset(torch.zeros(1 << 20, 1)), num_workers=2, persistent_workers=True)
    for number, _ in enumerate(batches):
        if number == 10: print("ready", flush=True)
        if stopped: break
        time.sleep(0.01)
    print(f"left the loop at {time.time()}", flush=True)

main()
"""


def launched(folder: Path, script: str) -> Launch:
    (folder / "train.py").write_text(script)
    launch = Launch(("train.py",), folder)
    launch.wait_for_output("ready", count=1)
    return launch


def test_a_thread_that_keeps_a_rank_alive_is_told_and_may_finish(tmp_path: Path) -> None:
    launch = launched(tmp_path, UPLOADING)
    try:
        launch.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "left to end" in launch.stderr_text(), timeout_s=30, what="the sentence about the rank")
        (told,) = (line for line in launch.stderr_text().splitlines() if "left to end" in line)
        assert told.startswith("holdfast: rank 0 has 179")
        assert (
            "the main thread has ended, thread uploader in upload (train.py:7) still runs; another signal kills" in told
        )
        (tmp_path / "go").touch()
        assert launch.wait() == 0, launch.explained()
        assert "uploaded" in launch.stdout_text()
        assert_nothing_left(launch)
    finally:
        launch.end()


def test_a_second_signal_ends_a_rank_that_waits_for_its_thread(tmp_path: Path) -> None:
    launch = launched(tmp_path, UPLOADING)
    try:
        launch.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "left to end" in launch.stderr_text(), timeout_s=30, what="the sentence about the rank")
        launch.process.send_signal(signal.SIGTERM)
        assert launch.wait(10) == 128 + signal.SIGTERM, launch.explained()
        assert "uploaded" not in launch.stdout_text()
    finally:
        launch.end()


ENDS_WELL = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", flush=True)
while True: time.sleep(0.1)
"""


def test_signals_after_the_end_of_a_job_do_not_replace_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ENDS_WELL)
    hook = f"touch {tmp_path}/told; sleep 2"
    launch = Launch(("--on-event", hook, "--on-event-kinds", "job_succeeded", "train.py"), tmp_path)
    try:
        launch.wait_for_output("ready", count=1)
        launch.process.send_signal(signal.SIGTERM)
        wait_until((tmp_path / "told").exists, timeout_s=30, what="the event")
        while launch.process.poll() is None:  # Which of its last steps they meet is not the same each time.
            launch.process.send_signal(signal.SIGTERM)
            time.sleep(0.02)
        assert launch.wait() == 0, launch.explained()
        assert "succeeded" in launch.holdfast("jobs").stdout
        assert_nothing_left(launch)
    finally:
        launch.end()


@pytest.mark.alone
def test_a_script_with_a_handler_and_the_workers_of_a_data_loader_ends_at_once(tmp_path: Path) -> None:
    """Its helpers get the signal after it: they end as the script tells them, and it does not wait for dead ones."""
    launch = launched(tmp_path, LOADING)
    try:
        launch.process.send_signal(signal.SIGTERM)
        began_s = time.monotonic()
        assert launch.wait() == 0, launch.explained()
        assert time.monotonic() - began_s < 3.0
        assert "left the loop" in launch.stdout_text()
        assert "left to end" not in launch.stderr_text()
        assert "killed by signal" not in launch.stderr_text()
    finally:
        launch.end()
