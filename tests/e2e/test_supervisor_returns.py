"""Rows B1, B2, B4 and B5: a killed supervisor comes back and continues its jobs; nothing is lost."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from supervisor.edges.operators.control_client import ControlClient
from supervisor.ports.reports import JobReport, RecordedEvent
from tests.e2e.daemons import NodeDaemon
from tests.e2e.hangs import BUSY_S, EARLY_S, MONITORED, overshoot_s, told, verdict
from tests.e2e.launch import SCRIPTS, Launch, assert_nothing_left, wait_until
from tests.soak import kill_verdicts, supervisor_kills

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def daemon(tmp_path: Path) -> Generator[NodeDaemon]:
    with NodeDaemon(tmp_path / "daemon") as running:
        yield running


def run_under(start: Start, daemon: NodeDaemon, *arguments: str) -> Launch:
    return start("--nproc-per-node", "2", *arguments, environment={"HOLDFAST_SOCKET_DIR": str(daemon.socket_dir)})


def holdfast(daemon: NodeDaemon, *arguments: str) -> str:
    command = [sys.executable, "-m", "supervisor", *arguments, "--socket-dir", str(daemon.socket_dir)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


def state_of(daemon: NodeDaemon) -> tuple[str, str]:
    (node,) = json.loads(holdfast(daemon, "nodes", "-o", "json"))["nodes"]
    return node["name"], node["state"]


def numbers(launch: Launch) -> list[int]:
    return [int(str(event["sequence"])) for event in launch.events()]


def test_b1_an_exit_while_the_supervisor_is_away_is_handled_when_it_comes_back(
    start: Start, daemon: NodeDaemon
) -> None:
    launch = run_under(
        start, daemon, "--max-restarts", "1",
        MONITORED, "0:0/init,beat-for=600", "0:1/init,beat,await-file,exit=3", "1:*/init,beat-for=0.5,exit=0",
    )  # fmt: skip
    launch.wait_for_trace("initialised", count=2)
    (survivor,) = {line["pid"] for line in launch.traced("initialised") if line["rank"] == 0}
    daemon.kill()
    (launch.folder / "go").touch()
    asked = subprocess.Popen(
        [sys.executable, "-m", "supervisor", "events", launch.job_id, "-o", "jsonl"],
        env=launch.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert asked.stderr is not None
    assert "its jobs run on; waiting" in asked.stderr.readline()
    daemon.start()
    shown, _ = asked.communicate(timeout=30)
    assert (asked.returncode, json.loads(shown.splitlines()[0])["kind"]) == (0, "job_submitted")
    assert launch.wait() == 0, launch.stderr_text()
    assert numbers(launch) == [*range(1, len(launch.events()) + 1)]
    (failed,) = told(launch, "worker_failed")
    assert "failed with exit code 3" in str(failed["reason"])
    (ended,) = [event for event in told(launch, "worker_exited") if (event["cycle"], event["rank"]) == (0, 0)]
    assert f"pid {survivor}" in str(ended["reason"])  # it continued, and was ended when the fault was handled
    assert len(told(launch, "restart_decided")) == 1
    assert_nothing_left(launch, within_s=10)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can rename the node")
def test_b1_a_job_goes_on_after_its_node_was_renamed(start: Start, daemon: NodeDaemon) -> None:
    launch = run_under(
        start, daemon, "--max-restarts", "1",
        MONITORED, "0:0/init,beat-for=600", "0:1/init,beat,await-file,exit=3", "1:*/init,beat-for=0.5,exit=0",
    )  # fmt: skip
    launch.wait_for_trace("initialised", count=2)
    daemon.kill()
    daemon.host_name = "renamed"
    daemon.start()
    assert state_of(daemon)[0] == "renamed"
    (launch.folder / "go").touch()
    assert launch.wait() == 0, launch.stderr_text()
    assert len(told(launch, "restart_decided")) == 1
    assert_nothing_left(launch, within_s=10)


def test_b1_a_hang_that_began_before_the_supervisor_was_killed_is_found(start: Start, daemon: NodeDaemon) -> None:
    launch = run_under(
        start, daemon, "--max-restarts", "1", "--ft-rank-heartbeat-timeout", "1.5",
        MONITORED, "0:1/init,beat,hang=sleep", "1:*/init,beat,exit=0",
    )  # fmt: skip
    launch.wait_for_trace("beat", count=1)
    daemon.kill()
    daemon.start()
    assert launch.wait() == 0, launch.stderr_text()
    (hang,) = told(launch, "hang_detected")
    assert hang["rank"] == 1


def test_b1_a_rank_that_holds_the_gil_is_judged_by_its_own_heartbeats(start: Start, daemon: NodeDaemon) -> None:
    """It can't connect to the next supervisors, which have its page from the spawner. The time without one is free."""
    limit_s = 4.0
    launch = run_under(
        start, daemon, "--max-restarts", "1", "--ft-rank-heartbeat-timeout", str(limit_s), "--evidence-budget-s", "2",
        MONITORED, "0:0/init,beat-for=600", "0:1/init,beat,sleep=0.2,hang=gil", "1:*/init,beat,exit=0",
    )  # fmt: skip
    (hangs,) = launch.wait_for_trace("hangs")
    # More than the bound: the next supervisor must not begin with what was kept of the rank at its start.
    wait_until(lambda: time.monotonic() > float(str(hangs["at"])) + BUSY_S + 0.5, timeout_s=10, what="some silence")
    away_s = 0.0
    for _ in range(2):
        daemon.kill()
        began_s = time.monotonic()
        daemon.start()
        away_s += time.monotonic() - began_s
    assert launch.wait() == 0, launch.stderr_text()
    found = verdict(launch)
    assert re.fullmatch(r"rank 1 sent no heartbeat for [\d.]+ s \(limit 4.0 s\)", found.reason)
    (begun,) = [line for line in launch.traced("beat") if line["rank"] == 1 and line["cycle"] == 0]
    late_s = overshoot_s(found.event, begun, limit_s)
    assert -EARLY_S <= late_s <= away_s + BUSY_S, f"{late_s:.3f} s after the limit, without a supervisor for {away_s} s"
    assert "hang_in_the_data_loader" in found.details["ranks 1"]
    (explained,) = told(launch, "hang_explained")
    assert "rank 1 holds the GIL" in str(explained["reason"])
    print(f"{late_s - away_s:.3f} s after the limit and {away_s:.3f} s without a supervisor; {found.reason}")


def test_b1_a_script_without_our_client_is_watched_on(start: Start, daemon: NodeDaemon) -> None:
    """The spawner hands the pages of the main threads to the next supervisor."""
    launch = run_under(
        start, daemon, "--max-restarts", "1", "--ft-auto-heartbeat-timeout", "3",
        str(SCRIPTS / "plain_ddp.py"), "20", "5:1:call",
    )  # fmt: skip
    launch.wait_for_trace("call")
    daemon.kill()
    daemon.start()
    assert launch.wait() == 0, launch.stderr_text()
    (explained,) = told(launch, "hang_explained")
    assert str(explained["reason"]).startswith("rank 1 holds the GIL in ")
    assert_nothing_left(launch, within_s=10)


def test_b1_a_job_whose_spawner_still_loads_what_the_script_imports_goes_on(start: Start, daemon: NodeDaemon) -> None:
    """People may ask the next supervisor before it has the job: they wait until it has."""
    library = daemon.state_dir.parent / "library"
    library.mkdir()
    (library / "large.py").write_text(
        "import os, time\nwhile not os.path.exists(f'{os.path.dirname(__file__)}/go'): time.sleep(0.02)\n"
    )
    script = library / "script.py"
    script.write_text("import large\n")
    launch = start(
        "--nproc-per-node", "1", "--preload", "large", str(script),
        environment={"HOLDFAST_SOCKET_DIR": str(daemon.socket_dir), "PYTHONPATH": str(library)},
    )  # fmt: skip
    wait_until(lambda: [*(daemon.socket_dir / "spawners").glob("*.json")], timeout_s=30, what="the spawner")
    launch.holdfast("status", launch.job_id)  # The supervisor has heard of it, too.
    daemon.kill()
    daemon.start()
    with ControlClient(daemon.socket_dir / "control.sock") as client:
        told: list[JobReport | RecordedEvent] = []
        asking = Thread(target=lambda: told.extend(client.watch(launch.job_id, follow=True)), daemon=True)
        asking.start()
        asking.join(1.0)
        assert asking.is_alive()
        (library / "go").touch()
        assert launch.wait() == 0, launch.stderr_text()
        asking.join(30)
    assert [each.sequence for each in told if isinstance(each, RecordedEvent)] == numbers(launch)
    assert numbers(launch) == [*range(1, len(launch.events()) + 1)]


def test_b1_a_job_whose_lost_spawner_is_being_replaced_goes_on(start: Start, daemon: NodeDaemon) -> None:
    """The new one loads, and has nothing of the job but what waits in its socket."""
    library = daemon.state_dir.parent / "library"
    library.mkdir()
    (library / "large.py").write_text(
        "import os, time\nfolder = os.path.dirname(__file__)\n"
        "while os.path.exists(f'{folder}/lost') and not os.path.exists(f'{folder}/go'): time.sleep(0.02)\n"
    )
    script = library / "script.py"
    script.write_text(
        "import large, os, time\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n    time.sleep(600)\n"
    )
    launch = start(
        "--nproc-per-node", "1", "--max-restarts", "1", "--preload", "large", str(script),
        environment={"HOLDFAST_SOCKET_DIR": str(daemon.socket_dir), "PYTHONPATH": str(library)},
    )  # fmt: skip
    records = daemon.socket_dir / "spawners"
    wait_until(lambda: "worker_started" in launch.kinds(), timeout_s=30, what="the worker")
    (record,) = records.glob("*.json")
    (library / "lost").touch()
    os.kill(json.loads(record.read_bytes())["pid"], signal.SIGKILL)
    wait_until(lambda: len([*records.glob("*.json")]) == 2, timeout_s=30, what="the next spawner")
    launch.holdfast("status", launch.job_id)  # The supervisor has told that one all.
    daemon.kill()
    daemon.start()
    time.sleep(1.5)  # more than a spawner has to answer before people are told
    (library / "go").touch()
    assert launch.wait() == 0, launch.stderr_text()
    assert "supervisor_returned" in launch.kinds()
    assert_nothing_left(launch, within_s=10)


def test_b1_a_supervisor_that_can_start_no_thread_as_it_returns_takes_its_jobs_back(
    start: Start, daemon: NodeDaemon
) -> None:
    launch = run_under(start, daemon, MONITORED, "0:*/init,beat,await-file,exit=0")
    launch.wait_for_trace("beat", count=2)
    daemon.kill()
    daemon.script = SCRIPTS / "threadless_supervisor.py"
    daemon.start()
    (launch.folder / "go").touch()
    assert launch.wait() == 0, launch.stderr_text()
    (returned,) = told(launch, "supervisor_returned")
    assert "goes on with 2 workers" in str(returned["reason"])


def test_b1_a_wrapped_call_goes_on(start: Start, daemon: NodeDaemon) -> None:
    """The exception happens while no supervisor is there to tell the other rank."""
    launch = run_under(start, daemon, str(SCRIPTS / "wrapped.py"), "exception-at-go")
    launch.wait_for_trace("fn", count=2)
    daemon.kill()
    (launch.folder / "go").touch()
    launch.wait_for_trace("fault")
    daemon.start()
    assert launch.wait() == 0, launch.stderr_text()
    assert sorted((line["iteration"], line["rank"]) for line in launch.traced("fn")) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    (interrupted,) = told(launch, "iteration_interrupted")
    assert "by intention" in str(interrupted["reason"])
    assert not told(launch, "restart_decided")


def test_b4_a_supervisor_that_is_replaced_leaves_its_jobs_to_the_next_one(start: Start, daemon: NodeDaemon) -> None:
    launch = run_under(start, daemon, MONITORED, "0:*/init,beat,await-file,exit=0")
    launch.wait_for_trace("beat", count=2)
    watch = subprocess.Popen(
        [sys.executable, "-m", "supervisor", "status", launch.job_id, "--watch", "-o", "jsonl"],
        env=launch.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watch.stdout is not None
    assert json.loads(watch.stdout.readline())["state"] == "running"
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGUSR1)
    assert daemon.process.wait(30) == 0
    assert watch.stderr is not None
    assert "this command waits for the next one" in watch.stderr.readline()
    daemon.start()
    (launch.folder / "go").touch()
    assert launch.wait() == 0, launch.stderr_text()
    assert len(launch.traced("started")) == 2
    shown, _ = watch.communicate(timeout=30)
    assert (watch.returncode, json.loads(shown.splitlines()[-1])["state"]) == (0, "succeeded")


def test_b4_a_node_stays_cordoned_whatever_becomes_of_its_supervisor(daemon: NodeDaemon) -> None:
    node, _ = state_of(daemon)
    holdfast(daemon, "cordon", node, "--reason", "bad memory")
    daemon.kill()
    daemon.start()
    assert state_of(daemon) == (node, "cordoned")
    holdfast(daemon, "uncordon", node)
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGTERM)  # it ends all jobs, and takes no new ones meanwhile
    assert daemon.process.wait(30) == 0
    daemon.start()
    assert state_of(daemon) == (node, "ready")


def test_b5_a_job_whose_spawner_died_too_ends_with_a_verdict_and_nothing_is_left(
    start: Start, daemon: NodeDaemon
) -> None:
    launch = run_under(start, daemon, "--max-restarts", "3", str(SCRIPTS / "faulty.py"), "0:*/escape,sleep")
    launch.wait_for_trace("escaped", count=2)  # with the workers, the kernel ends their children, but not these
    daemon.kill()
    (spawner,) = {int(Path(f"/proc/{line['pid']}/stat").read_text().split()[3]) for line in launch.traced("started")}
    os.kill(spawner, signal.SIGKILL)
    daemon.dies = "before-flush -"  # once it has ended the job: the next one must know that as well
    daemon.launch()
    daemon.wait_for_death()
    daemon.dies = ""
    daemon.start()
    assert launch.wait() == 1, launch.stderr_text()
    assert "its spawner has ended while no supervisor was there" in launch.stderr_text()
    assert_nothing_left(launch, within_s=10)


def test_b5_a_verdict_that_was_recorded_before_the_end_of_the_job_is_how_it_ends(
    start: Start, daemon: NodeDaemon
) -> None:
    """The supervisor is lost while the spawner ends, which it does by itself."""
    daemon.kill()
    daemon.dies = "concluded -"
    daemon.start()
    launch = run_under(start, daemon, MONITORED, "0:*/init,beat,exit=0")
    daemon.wait_for_death()
    daemon.dies = ""
    daemon.start()
    assert launch.wait() == 0, launch.stderr_text()
    assert numbers(launch) == [*range(1, len(launch.events()) + 1)]
    assert_nothing_left(launch, within_s=10)


def test_b5_a_job_of_the_same_id_in_another_container_is_left_alone(
    start: Start, daemon: NodeDaemon, tmp_path: Path
) -> None:
    sleeping = (str(SCRIPTS / "faulty.py"), "0:*/sleep")
    launch = run_under(start, daemon, *sleeping)
    started = launch.wait_for_trace("started", count=2)
    apart = {"HOLDFAST_CLAIM_DIR": str(tmp_path / "claims")}  # as with a /tmp of its own
    neighbour = start("--job-id", launch.job_id, "--nproc-per-node", "2", *sleeping, environment=apart)
    neighbour.wait_for_trace("started", count=2)
    daemon.kill()
    daemon.start()
    (spawner,) = {int(Path(f"/proc/{line['pid']}/stat").read_text().split()[3]) for line in started}
    os.kill(spawner, signal.SIGKILL)
    assert launch.wait() == 1, launch.stderr_text()
    assert neighbour.process.poll() is None, neighbour.stderr_text()
    assert all(Path(f"/proc/{line['pid']}").exists() for line in neighbour.traced("started"))


def test_b2_supervisors_that_are_lost_in_the_middle_of_a_turn_leave_a_history_without_a_gap(
    start: Start, daemon: NodeDaemon
) -> None:
    """One is lost with what it has decided, one before anybody was told of it, one right after that, and again."""
    daemon.kill()
    daemon.dies = "decided hang_detected"
    daemon.start()
    launch = start(
        "--nproc-per-node", "2", "--max-restarts", "3", "--ft-rank-heartbeat-timeout", "1",
        str(supervisor_kills.SCRIPTS / "failing_as_planned.py"),
        environment={"HOLDFAST_SOCKET_DIR": str(daemon.socket_dir), "LAST_CYCLE": "3"},
    )  # fmt: skip
    for dies in ("kept stacks_collected", "decided restart_decided", "told worker_started", ""):
        daemon.wait_for_death()
        daemon.dies = dies
        daemon.launch()
    assert launch.wait() == 0, launch.stderr_text()
    started = launch.traced("started")
    assert kill_verdicts.failing_as_planned(launch.events(), started, cycles=3, ranks=2) == []
    kinds = launch.kinds()
    assert kinds.count("stacks_collected") + kinds.count("stacks_missing") == 1


def test_b2_supervisors_that_are_lost_before_anything_of_a_job_is_kept_cost_the_submitter_nothing(
    start: Start, daemon: NodeDaemon
) -> None:
    """One is lost before it answers, one before it starts the spawner, and two before the spawner keeps anything."""
    daemon.kill()
    daemon.dies = "unanswered -"
    daemon.start()
    launch = run_under(start, daemon, MONITORED, "0:*/init,beat,exit=0")
    for dies in ("unstarted -", "unrecorded -", "unkept -", ""):
        daemon.wait_for_death()
        daemon.dies = dies
        daemon.launch()
    assert launch.wait() == 0, launch.stderr_text()
    assert len(launch.traced("started")) == 2
    assert launch.stderr_text().count(f"the supervisor has gone before job {launch.job_id} began") == 3
    assert numbers(launch) == [*range(1, len(launch.events()) + 1)]
    assert_nothing_left(launch, within_s=10)


def test_b2_supervisors_that_are_killed_at_random_moments_lose_nothing() -> None:
    kills = supervisor_kills.run(random.Random(20), seconds=60, kills_max=5, cycles=3)
    assert not kills.wrong
    assert kills.kills >= 5


def test_a_supervisor_that_returns_too_late_names_the_limit(start: Start, tmp_path: Path) -> None:
    with NodeDaemon(tmp_path / "hasty", "--supervisor-return-timeout", "0.5") as daemon:
        launch = run_under(start, daemon, "--max-restarts", "1", MONITORED, "0:*/init,beat-for=600")
        launch.wait_for_trace("initialised", count=2)
        daemon.kill()
        wait_until(lambda: not launch.leftovers(), timeout_s=60, what="the end of the ranks")
        daemon.start()
        events = [json.loads(line) for line in holdfast(daemon, "events", launch.job_id, "-o", "jsonl").splitlines()]
        assert launch.wait() == 1
    late = "no supervisor came back within --supervisor-return-timeout (0.5 s)"
    ends = [event["reason"] for event in events if event["kind"] in ("worker_failed", "worker_exited")]
    assert [end.partition(" was ")[2] for end in ends] == [f"killed by SIGTERM: {late}"] * 2
    assert f"{late}; raise that limit if a supervisor may be away for longer" in events[-1]["reason"]
    assert late in launch.stderr_text()


@pytest.mark.parametrize("is_late", [False, True])
def test_ranks_that_save_and_exit_0_for_want_of_a_supervisor_have_not_finished_the_job(
    start: Start, tmp_path: Path, is_late: bool
) -> None:
    """One has exited when the next supervisor comes, and one still saves. Or both have, and so has their spawner."""
    is_saved = tmp_path / "is saved"
    with NodeDaemon(tmp_path / "hasty", "--supervisor-return-timeout", "0.5") as daemon:
        launch = run_under(start, daemon, str(SCRIPTS / "polite.py"), str(is_saved))
        launch.wait_for_trace("started", count=2)
        daemon.kill()
        launch.wait_for_trace("saved", count=2)
        if is_late:
            is_saved.touch()
            wait_until(lambda: not launch.leftovers(), timeout_s=60, what="the end of the ranks")
        daemon.start()
        is_saved.touch()
        assert launch.wait() == 1, launch.stderr_text()
        reasons = [str(event["reason"]) for event in launch.events()]
        assert any(" exited with code 0: no supervisor came back within " in each for each in reasons)
