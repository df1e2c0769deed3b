"""Can a rank in a container (with its own users, pids and mounts) reach the supervisor outside?"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.e2e.daemons import NodeDaemon
from tests.e2e.launch import SCRIPTS

ROOT = Path(__file__).parents[2]
LINTER = Path(sys.executable).with_name("hadolint")

# As enroot and docker do with `-v DIR/worker:DIR/worker`: only the worker's part of the supervisor's folder exists.
CONTAINER = """
set -eu
kept=$(mktemp -d)
mount --bind "$PLACE/worker" "$kept"
mount -t tmpfs tmpfs "$PLACE"
mkdir "$PLACE/worker"
mount --bind "$kept" "$PLACE/worker"
exec "$@"
"""

# In its first cycle it falls silent after its heartbeats.
SCRIPT = """
import json, os, signal
from worker_client import RankMonitorClient

client = RankMonitorClient()
client.init_workload_monitoring()
client.send_heartbeat()
place = os.environ["PLACE"]
facts = {"pid": os.getpid(), "uid": os.geteuid(), "seen": sorted(os.listdir(place))}
print(json.dumps(facts) + "\\n", end="", flush=True)  # in one write, whatever PYTHONUNBUFFERED says
if os.environ["HOLDFAST_CYCLE"] == "0":
    signal.pause()
client.shutdown_workload_monitoring()
"""

MOUNTED = ["sh", "-c", CONTAINER, "sh"]


def _needs(*flags: str) -> str:
    """Returns why such namespaces are not possible here, "" if they are."""
    if not shutil.which("unshare"):
        return "needs unshare (Debian: util-linux)"
    tried = subprocess.run(["unshare", *flags, "true"], capture_output=True, text=True, timeout=10, check=False)
    return f"needs namespaces: {tried.stderr.strip()}" if tried.returncode else ""


@pytest.mark.parametrize(
    ("flags", "inside", "uid"),
    [
        pytest.param(["-Urmpf", "--mount-proc"], MOUNTED, 0, id="root inside, the worker's folder mounted"),
        pytest.param(["-Umpf", "--mount-proc"], [], None, id="a user without a name"),
        pytest.param(["-Umpf", "--mount-proc", "--map-user=12345"], [], 12345, id="another user inside"),
    ],
)
def test_a_rank_in_a_container_is_served(tmp_path: Path, flags: list[str], inside: list[str], uid: int | None):
    if why_not := _needs(*flags):
        pytest.skip(why_not)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with NodeDaemon(tmp_path / "node") as daemon:
        place = str(daemon.socket_dir)
        holdfast = [sys.executable, "-m", "supervisor"]
        ran = subprocess.run(
            [
                *holdfast, "run", "--socket-dir", place, "--job-id", "contained", "--nproc-per-node", "2",
                "--max-restarts", "1", "--ft-rank-heartbeat-timeout", "1", "--workers-stop-timeout", "1", "--no-python",
                "env", f"PLACE={place}", "unshare", *flags, *inside, sys.executable, str(script),
            ],
            capture_output=True, text=True, timeout=90, check=False, stdin=subprocess.DEVNULL, cwd=ROOT,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        told = subprocess.run(
            [*holdfast, "events", "contained", "--socket-dir", place, "-o", "jsonl"],
            capture_output=True, text=True, timeout=30, check=True,
        )  # fmt: skip
    ranks = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(ranks) == 4, "two ranks in two cycles"
    for each in ranks:
        assert each["pid"] < 100, "it has pids of its own"
        assert uid is None or each["uid"] == uid
        assert each["seen"] == ["worker"] if inside else "control.sock" in each["seen"]
    events = [json.loads(line) for line in told.stdout.splitlines()]
    (silent,) = [event["reason"] for event in events if event["kind"] == "hang_detected"]
    assert "no heartbeat" in silent, silent
    assert "no first heartbeat" not in silent, "heartbeats from inside the container have arrived"
    assert [event["kind"] for event in events if event["kind"] in ("restart_decided", "job_succeeded")] == [
        "restart_decided",
        "job_succeeded",
    ]


# As with a /tmp of its own, which systemd's PrivateTmp and containers give: the claims of its user are hidden.
HIDDEN_CLAIMS = 'mkdir -p "$CLAIMS" && mount -t tmpfs -o mode=0700 tmpfs "$CLAIMS" && exec "$@"'


@pytest.mark.parametrize(
    "namespaces",
    [
        pytest.param(["-m"], id="a /tmp of its own"),
        pytest.param(["-Urmpf", "--mount-proc"], id="its own users and pids, too"),
    ],
)
def test_a_command_that_sees_no_claim_learns_from_the_spawner_that_its_job_may_have_started(
    tmp_path: Path, namespaces: list[str]
):
    """The supervisor is lost before it has answered the submission, and its spawner has the job."""
    if why_not := _needs(*namespaces):
        pytest.skip(why_not)
    trace, claims = tmp_path / "trace", f"/tmp/holdfast-{os.geteuid()}"
    with NodeDaemon(tmp_path / "node") as daemon:
        daemon.kill()
        daemon.dies = "unanswered worker_started"
        daemon.start()
        command = [
            "unshare", *namespaces, "sh", "-c", HIDDEN_CLAIMS, "sh",
            sys.executable, "-m", "supervisor", "run", "--socket-dir", str(daemon.socket_dir), "--job-id", "unseen",
            str(SCRIPTS / "faulty.py"), "0:*/sleep",
        ]  # fmt: skip
        environment = {**os.environ, "CLAIMS": claims, "TRACE": str(trace)}
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, cwd=ROOT) as ran:
            daemon.wait_for_death()
            (process,) = psutil.Process(ran.pid).children() if "-Urmpf" in namespaces else [psutil.Process(ran.pid)]
            process.terminate()  # Else it waits for a minute.
            assert ran.stderr is not None
            told = ran.stderr.read()
        daemon.dies = ""
        daemon.start()  # It takes the job over, and ends it at its own end.
    assert ran.returncode == 93, told
    assert "cannot tell whether job unseen has started: " in told


FAULTY = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", "pass"], start_new_session=True)  # nobody waits for it
if os.environ["HOLDFAST_CYCLE"] == "0" and os.environ["RANK"] == "1":
    sys.exit(1)
os.write(1, f"rank {os.environ['RANK']} of pid {os.getppid()}\\n".encode())
"""


def test_holdfast_run_may_be_the_first_process_of_a_container(tmp_path: Path):
    namespaces = ["-Urmpf", "--mount-proc"]
    if why_not := _needs(*namespaces):
        pytest.skip(why_not)
    script = tmp_path / "train.py"
    script.write_text(FAULTY)
    run = [sys.executable, "-m", "supervisor", "run", "--nproc-per-node", "2", "--max-restarts", "1", str(script)]
    environment = {**os.environ, "HOLDFAST_STATE_DIR": str(tmp_path / "state"), "XDG_RUNTIME_DIR": str(tmp_path)}
    ran = subprocess.run(
        ["unshare", *namespaces, *run], env=environment, capture_output=True, text=True, timeout=90, check=False,
        stdin=subprocess.DEVNULL, cwd=ROOT,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "running again after" in ran.stderr
    assert sorted(line.split()[1] for line in ran.stdout.splitlines()[-2:]) == ["0", "1"]


@pytest.mark.skipif(not LINTER.exists(), reason="needs hadolint: pip install --group e2e")
def test_the_linter_of_the_image_has_nothing_to_say():
    """Except that versions are not pinned: the user chooses torch."""
    lint = [LINTER, "--no-color", "--ignore", "DL3013", ROOT / "deploy/Containerfile"]
    done = subprocess.run(lint, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
