"""Does `holdfast run` ask an attribution service about its cycles, and obey it? Real jobs, a real service."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from tests.e2e.daemons import NodeDaemon
from tests.e2e.launch import Launch, assert_nothing_left, launched, wait_until
from tests.e2e.test_many_nodes import Nodes
from tests.e2e.test_many_nodes import nodes as several
from tests.edges.services.hostile import hostile, says, silent
from tests.etcd_server import etcd, free_ports
from tests.programs.attribution.played import played
from tests.programs.attribution.test_service import asked, served

FAILING = """
import os, sys, time
rank, cycle = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("step 1", flush=True)
if cycle == 0 and rank == "1":
    raise OSError(28, "No space left on device")
if cycle:
    time.sleep({later_s})
"""

LED = """
import os, sys, time
folder, rank, cycle = sys.argv[1], os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
with open(f"{folder}/{cycle}-{rank}", "w") as seen:
    seen.write(f"{rank} of {os.environ['WORLD_SIZE']} in {cycle} store {os.environ['MASTER_PORT']}")
print("step 1", flush=True)
while not os.path.exists(f"{folder}/end"):
    if (rank, cycle) == ("3", "1") and os.path.exists(f"{folder}/fail"):
        raise ValueError("found by the second")
    time.sleep(0.02)
"""


def outputs(nodes: Nodes) -> str:
    return "\n".join(nodes.output(number) for number in (1, 2))


def attributed(launch: Launch) -> list[dict[str, object]]:
    return [event for event in launch.events() if event["kind"] == "cycle_attributed"]


def test_advice_to_stop_ends_the_job_with_the_code_that_forbids_another_start(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "train.py").write_text(FAILING.format(later_s=60))
    with served(tmp_path / "logs") as url:
        arguments = (
            "--nproc-per-node", "2", "--max-restarts", "3",
            "--ft-per-cycle-applog-prefix", f"{tmp_path}/logs/train.log",
            "--ft-attribution-endpoint", url, "--ft-attribution-stop-action", "no-restart", "train.py",
        )  # fmt: skip
        who = {"SLURM_JOB_USER": "ada", "SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "11"}
        with launched(tmp_path, *arguments, environment=who) as launch:
            assert launch.wait() == 93, launch.explained()
            assert_nothing_left(launch)
            (told,) = [event for event in attributed(launch) if event["cycle"] == 0]
        known = asked(f"{url}/jobs")[1]
    assert "No space left on device" in str(told["reason"])
    assert "attribution service advises to stop" in launch.stderr_text()
    assert {log["log_path"] for log in known["11"]} == {f"{tmp_path}/logs/train_cycle{n}.log" for n in (0, 1)}
    assert {log["user"] for log in known["11"]} == {"ada"}
    assert {log["analysis_intent"] for log in known["11"]} == {"terminal"}


def test_otherwise_the_advice_is_only_told(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "train.py").write_text(FAILING.format(later_s=1.5))
    with served(tmp_path / "logs") as url:
        arguments = (
            "--nproc-per-node", "2", "--max-restarts", "3",
            "--ft-per-cycle-applog-prefix", f"{tmp_path}/logs/train.log", "--ft-attribution-endpoint", url, "train.py",
        )  # fmt: skip
        with launched(tmp_path, *arguments) as launch:
            assert launch.wait() == 0, launch.explained()
            (told,) = attributed(launch)
    assert "its advice is STOP, which --ft-attribution-stop-action no-restart would follow" in str(told["reason"])


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "connection refused"),
        pytest.param(silent, "it has not answered within 5 s", marks=pytest.mark.soak),
        pytest.param(
            says(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n\xff\xfe{[[[]"),
            "its answer can't be read",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_a_service_that_does_not_answer_costs_one_warning_and_no_time(
    tmp_path: Path, answer: Callable[[socket.socket], None] | None, why: str
) -> None:
    (tmp_path / "train.py").write_text(FAILING.format(later_s=6 if answer is silent else 1))
    with hostile(answer or silent) as server:
        arguments = (
            "--nproc-per-node", "2", "--max-restarts", "3",
            "--ft-per-cycle-applog-prefix", f"{tmp_path}/logs/train.log",
            "--ft-attribution-endpoint", server.url if answer else "http://127.0.0.1:1", "train.py",
        )  # fmt: skip
        with launched(tmp_path, *arguments) as launch:
            assert launch.wait() == 0, launch.explained()
            events = launch.events()
    assert [why in str(event["reason"]) for event in events if event["kind"] == "attribution_unavailable"] == [True]
    assert launch.stderr_text().count("cannot ask the attribution service") == 1
    moments = {(event["kind"], event["cycle"]): datetime.fromisoformat(str(event["at"])) for event in events}
    failed, running = moments["worker_failed", 0], moments["workers_started", 1]
    assert (running - failed).total_seconds() < 4, "the restart has waited for an answer"


def test_the_guides_example_of_a_service_of_the_jobs_own(tmp_path: Path) -> None:
    """With this test's paths and URLs: a model's STOP is followed, and its answer is exported."""
    (tmp_path / "train.py").write_text(FAILING.format(later_s=60))
    (tmp_path / "llm_api_key").write_text("the key\n")
    with played() as model, played() as export:
        advice = '{"action": "STOP", "reason": "says the model"}'
        model.answers = [json.dumps({"choices": [{"message": {"content": advice}}]}).encode()]
        arguments = (
            "--nproc-per-node", "2", "--max-restarts", "3",
            "--ft-per-cycle-applog-prefix", f"{tmp_path}/job123/train.log",
            "--ft-attribution-endpoint", "localhost",
            "--ft-attribution-llm-api-key-file", f"{tmp_path}/llm_api_key",
            "--ft-attribution-llm-base-url", f"{model.url}/v1",
            "--ft-attribution-llm-model", "nvidia/nemotron-3-super-120b-a12b",
            "--ft-attribution-export-url", f"{export.url}/dataflow2/example-index/posting",
            "--ft-attribution-stop-action", "no-restart",
            "train.py",
        )  # fmt: skip
        with launched(tmp_path, *arguments, environment={"SLURM_JOB_ID": "7"}) as launch:
            assert launch.wait() == 93, launch.explained()
            assert_nothing_left(launch)
            (told,) = [event for event in attributed(launch) if event["cycle"] == 0]
        said = (tmp_path / "job123" / "train_attribution.log").read_text()
    assert "says the model" in str(told["reason"])
    assert {heard["Authorization"] for heard in model.headers} == {"Bearer the key"}
    assert model.heard[0]["model"] == "nvidia/nemotron-3-super-120b-a12b"
    assert {each["job_id"] for each in export.heard} == {"7"}
    assert export.heard[0]["log_path"] == f"{tmp_path}/job123/train_cycle0.log"
    assert "serving http://127.0.0.1:" in said


def test_without_a_key_that_can_be_read_nothing_starts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    prefix = ("--ft-per-cycle-applog-prefix", f"{tmp_path}/logs/train.log", "--ft-attribution-endpoint", "localhost")
    model = ("--ft-attribution-llm-base-url", "http://127.0.0.1:1", "--ft-attribution-llm-api-key-file", "/missing")
    with launched(tmp_path, *prefix, *model, "train.py") as launch:
        assert launch.wait() == 78
    assert "cannot read the language model's key /missing: No such file or directory" in launch.stderr_text()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("one_writer", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_every_node_ends_with_the_same_code(tmp_path: Path, one_writer: bool) -> None:
    """The failing rank is on the second node; the service and the writer of the cycle's log are on the first."""
    with several(tmp_path, "2") as nodes:
        (tmp_path / "train.py").write_text(FAILING.replace('"1"', '"3"').format(later_s=60))
        flags = (
            "--ft-per-cycle-applog-prefix", f"{tmp_path}/logs/train.log", "--ft-attribution-endpoint", "localhost",
            "--ft-attribution-llm-model", "none", "--ft-attribution-stop-action", "no-restart",
        )  # fmt: skip
        if one_writer:
            flags += ("--ft-enable-log-server", "true", "--ft-log-server-port", str(free_ports(1)[0]))
        started = [nodes.start(number, flags=flags) for number in (1, 2)]
        assert [each.wait(60) for each in started] == [93, 93], outputs(nodes)
    said = (tmp_path / "logs" / "train_attribution.log").read_text()
    assert said.count("serving http://127.0.0.1:") == 1
    assert "the attribution service advises to stop" in outputs(nodes)


def test_on_several_nodes_a_key_that_the_leader_can_not_read_ends_the_job(tmp_path: Path) -> None:
    with several(tmp_path, "2") as nodes:
        flags = ("--ft-per-cycle-applog-prefix", f"{tmp_path}/logs/train.log", "--ft-attribution-endpoint", "localhost")
        flags += ("--ft-attribution-llm-base-url", "http://127.0.0.1:1")
        flags += ("--ft-attribution-llm-api-key-file", "/missing")
        started = [nodes.start(number, "60", flags=flags) for number in (1, 2)]
        assert [each.wait(60) for each in started] == [78, 78], outputs(nodes)
    assert "cannot read the language model's key /missing: No such file or directory" in outputs(nodes)


def test_a_service_of_the_jobs_own_does_not_outlive_a_killed_supervisor(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time; time.sleep(60)")
    log = tmp_path / "logs" / "train_attribution.log"
    arguments = (
        "--ft-per-cycle-applog-prefix", f"{tmp_path}/logs/train.log", "--ft-attribution-endpoint", "localhost",
        "--ft-attribution-llm-model", "none", "train.py",
    )  # fmt: skip
    with launched(tmp_path, *arguments) as launch:
        wait_until(lambda: log.exists() and "serving" in log.read_text(), timeout_s=60, what="the service")
        launch.process.kill()
        launch.process.wait()
        assert_nothing_left(launch, within_s=20)


def test_a_supervisor_that_returns_keeps_a_service_again(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, time\n"
        "while os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and not os.path.exists('fail'):\n    time.sleep(0.05)\n"
        "if os.path.exists('fail') and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n    raise ValueError('x')\n"
        "while not os.path.exists('end'):\n    time.sleep(0.05)\n"
    )
    log = tmp_path / "logs" / "train_attribution.log"
    with NodeDaemon(tmp_path / "node") as node:
        arguments = (
            "--socket-dir", str(node.socket_dir), "--max-restarts", "3",
            "--ft-per-cycle-applog-prefix", f"{tmp_path}/logs/train.log", "--ft-attribution-endpoint", "localhost",
            "--ft-attribution-llm-model", "none", "train.py",
        )  # fmt: skip
        with launched(tmp_path, *arguments, environment={"HOLDFAST_SOCKET_DIR": str(node.socket_dir)}) as launch:
            wait_until(lambda: log.exists() and "serving" in log.read_text(), timeout_s=60, what="the service")
            node.kill()
            node.start()
            wait_until(lambda: log.read_text().count("serving") == 2, timeout_s=60, what="another service")
            (tmp_path / "fail").touch()
            wait_until(lambda: "cycle_attributed" in launch.kinds(), timeout_s=60, what="a verdict")
            (tmp_path / "end").touch()
            assert launch.wait() == 0, launch.explained()
            (told,) = attributed(launch)
    assert "ValueError: x" in str(told["reason"])


@pytest.mark.soak
@pytest.mark.parametrize("lost", [signal.SIGKILL, signal.SIGSTOP], ids=lambda lost: lost.name)
def test_the_service_moves_with_an_elected_leader(tmp_path: Path, lost: signal.Signals) -> None:
    """The leader's supervisor dies or is stopped: the next leader's service is asked, and the first one ends."""
    log = tmp_path / "logs" / "train_attribution.log"
    with etcd(tmp_path / "etcd") as server, several(tmp_path, "2:3") as nodes:
        nodes.endpoint = server.endpoint
        (tmp_path / "train.py").write_text(LED)
        flags = (
            "--rdzv-backend", "etcd", "--ft-per-cycle-applog-prefix", f"{tmp_path}/logs/train.log",
            "--ft-attribution-endpoint", "localhost", "--ft-attribution-llm-model", "none",
        )  # fmt: skip
        nodes.start(1, flags=flags)
        wait_until(lambda: len(serving(log)) == 1, timeout_s=60, what="a service at the first leader")
        first = serving(log)
        for number in (2, 3):
            nodes.start(number, flags=flags)
        nodes.until_running(0, 4)
        nodes.processes[0].send_signal(lost)
        nodes.until_running(1, 4)
        wait_until(lambda: serving(log) - first, timeout_s=60, what="a service at the next leader")
        nodes.processes[0].send_signal(signal.SIGCONT)
        wait_until(lambda: not serving(log) & first, timeout_s=60, what="the end of the first service")
        told = "the attribution service about cycle 0: "
        wait_until(lambda: told in heard(nodes), timeout_s=60, what="a verdict on the cycle that began elsewhere")
        (tmp_path / "fail").touch()
        nodes.until_running(2, 4)
        told = "the attribution service about cycle 1: rank 3: ValueError: found by the second"
        wait_until(lambda: told in heard(nodes), timeout_s=60, what="a verdict")
        nodes.let_end()
        assert [each.wait(60) for each in nodes.processes[1:]] == [0, 0], heard(nodes)
        assert "cannot ask the attribution service" not in heard(nodes)
        wait_until(lambda: not serving(log), timeout_s=30, what="the end of the second service")


def heard(nodes: Nodes) -> str:
    return nodes.output(2) + nodes.output(3)


def serving(log: Path) -> set[int]:
    """Returns the pids of the services that write their messages there, once they serve."""
    if not log.exists() or "serving http://127.0.0.1:" not in log.read_text():
        return set()
    return {int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if str(log) in _words(path)}


def _words(cmdline: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return cmdline.read_text(errors="replace").split("\0")
    return []
