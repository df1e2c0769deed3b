"""Several users share one service of a node: each has exactly their own rights, and none can touch another's job."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from holdfast_wire.v1 import control_pb2

from tests.e2e import many_users
from tests.e2e.launch import SCRIPTS
from tests.e2e.many_users import Service, until

ALICE, BOB, CAROL = 54321, 54322, 54323
TEAM = (54330, 54331)
WHO_AM_I = str(SCRIPTS / "who_am_i.py")
NODE = socket.gethostname()
HOLDFAST = (sys.executable, "-m", "supervisor")

pytestmark = pytest.mark.skipif(bool(many_users.missing()), reason=many_users.missing())


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with many_users.service("--users", f"{ALICE},@{BOB}") as running:
        yield running


@pytest.fixture(scope="module")
def of_alice(service: Service) -> Iterator[subprocess.Popen[str]]:
    """Runs her job through all tests of this file."""
    run = service.started(
        ALICE, *HOLDFAST, "run", "--job-id", "of-alice", "--nproc-per-node", "2", WHO_AM_I, "stay",
        groups=TEAM, before="ulimit -n 500; ulimit -c 0; umask 027; export WHO=$(printf 'J\\374rgen')",
    )  # fmt: skip
    yield run
    run.kill()
    run.communicate()


@pytest.fixture(scope="module")
def facts(of_alice: subprocess.Popen[str]) -> dict[str, object]:
    """Returns what one of its ranks reports about itself."""
    assert of_alice.stdout is not None
    return json.loads(of_alice.stdout.readline())


def test_a_worker_has_the_rights_of_its_submitter_and_none_besides(facts: dict[str, object]):
    assert facts["uids"] == [ALICE] * 3
    assert facts["gids"] == [ALICE] * 3
    assert facts["groups"] == list(TEAM)
    assert facts["capabilities"] == [0, 0, 0, 0]
    assert facts["no_new_privileges"] == "1"
    assert (facts["umask"], facts["oom_score_adj"]) == ("0027", "0")


def test_a_worker_has_the_limits_of_its_submitter(facts: dict[str, object]):
    assert (facts["open_files"], facts["core"]) == ([500, 500], [0, 0])


def test_no_variable_of_root_reaches_a_worker(facts: dict[str, object]):
    environment = facts["environment"]
    assert isinstance(environment, dict)
    assert "SECRET_OF_ROOT" not in environment
    assert environment["HOME"] == "/tmp"  # the submitter's


def test_a_variable_of_the_submitter_need_not_be_utf8(facts: dict[str, object]):
    environment = facts["environment"]
    assert isinstance(environment, dict)
    assert environment["WHO"] == "J\udcfcrgen"


@pytest.fixture(scope="module")
def answers(service: Service, facts: dict[str, object]) -> dict[str, str]:
    """Returns the answer to each call of Bob's about Alice's job."""
    script = str(SCRIPTS / "every_call.py")
    done = service.run(
        BOB, sys.executable, script, str(service.socket_dir / "control.sock"), "of-alice", WHO_AM_I, NODE,
        before=f"export PYTHONPATH={many_users.ROOT}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


CALLS = sorted(control_pb2.DESCRIPTOR.services_by_name["Supervisor"].methods_by_name)


@pytest.mark.parametrize("call", CALLS)
def test_no_call_of_another_user_touches_the_job(call: str, answers: dict[str, str]):
    expected = {
        "ListJobs": "[]",
        "GetNode": "[[]]",
        "ListNodes": "[[]]",
        "SubmitJob": '"of-alice"',  # a job of Bob's own with the same name
        "CordonNode": "NotPermittedError",
        "UncordonNode": "NotPermittedError",
        "LeadRendezvous": "ExhaustedError: cannot answer LeadRendezvous: [Errno 13] Permission denied",  # port 1
    }.get(call, "NotFoundError")
    assert answers[call].startswith(expected), answers[call]


def test_the_job_has_noticed_nothing(service: Service, answers: dict[str, str]):
    job = service.jobs(ALICE)["of-alice"]
    assert (job["state"], job["cycle"], job["restarts_used"]) == ("running", 0, 0)


def test_files_and_sockets_of_a_user_are_closed_to_others(service: Service, facts: dict[str, object]):
    folder, _ = service.supervisor_of(ALICE, TEAM)
    look = f"ls {folder}/own || cat {folder}/record.json || ls {service.state_dir}/users/{ALICE}"
    refused = service.run(BOB, "sh", "-c", look)
    assert refused.returncode != 0
    assert refused.stdout == ""
    assert refused.stderr.count("Permission denied") == 3


def test_only_root_reaches_the_sockets_behind_the_control_socket(service: Service, facts: dict[str, object]):
    folder, _ = service.supervisor_of(ALICE, TEAM)
    for name, kind in (
        ("door.sock", "SOCK_SEQPACKET"),
        ("control.sock", "SOCK_STREAM"),
        ("own/control.sock", "SOCK_STREAM"),
    ):
        connect = f"import socket; socket.socket(socket.AF_UNIX, socket.{kind}).connect({str(folder / name)!r})"
        refused = service.run(BOB, sys.executable, "-c", connect)
        assert "PermissionError" in refused.stderr, name


def test_a_user_who_is_not_admitted_reads_why(service: Service):
    refused = service.holdfast(CAROL, "run", "--job-id", "of-carol", WHO_AM_I)
    assert refused.returncode == 1
    assert f"cannot answer user id {CAROL}: the service of this node serves {ALICE}, @{BOB} alone" in refused.stderr
    assert not list((service.socket_dir / "users").glob(f"{CAROL}.*"))


def test_a_user_with_another_group_has_other_rights(service: Service, of_alice: object):
    """A job gets the groups of the process that submits it, even if that user's supervisor with other groups runs."""
    done = service.holdfast(ALICE, "run", "--job-id", "without-team", WHO_AM_I)
    assert json.loads(done.stdout)["groups"] == []


def test_links_of_a_user_lead_nobody_astray(service: Service, facts: dict[str, object], answers: dict[str, str]):
    """Bob replaces his socket by Alice's: he still reaches his own supervisor, and root the right one."""
    until(lambda: service.jobs(BOB) == {}, "the end of the job of that name of his own")
    alices, _ = service.supervisor_of(ALICE, TEAM)
    bobs, _ = service.supervisor_of(BOB)
    mislead = f"cd {bobs}/own && mv control.sock away && ln -s {alices}/own/control.sock control.sock"
    assert service.run(BOB, "sh", "-c", mislead).returncode == 0
    stopped = service.holdfast(BOB, "stop", "of-alice")
    assert "cannot stop job of-alice: it has ended" in stopped.stderr
    assert service.jobs(ALICE)["of-alice"]["state"] == "running"
    asked = service.holdfast(0, "status", "-o", "json", "--socket-dir", str(bobs))
    assert "of-alice" not in [job["job_id"] for job in json.loads(asked.stdout)["jobs"] if job["state"] == "running"]


def test_root_sees_the_jobs_of_all(service: Service, facts: dict[str, object]):
    assert service.jobs(0)["of-alice"]["state"] == "running"


def test_a_node_that_root_has_cordoned_takes_no_job_of_a_user(service: Service, facts: dict[str, object]):
    assert service.holdfast(0, "cordon", NODE, "--reason", "new cable").returncode == 0
    until(
        lambda: service.holdfast(ALICE, "run", "--job-id", "late", WHO_AM_I, groups=TEAM).returncode == 75, "a refusal"
    )
    assert service.holdfast(0, "uncordon", NODE).returncode == 0
    until(
        lambda: service.holdfast(ALICE, "run", "--job-id", "late", WHO_AM_I, groups=TEAM).returncode == 0, "a success"
    )


def test_root_alone_drains_the_node_and_asks_the_jobs_of_all_users(service: Service):
    refused = service.holdfast(ALICE, "drain", groups=TEAM)
    assert (refused.returncode, refused.stderr.count("several users share it; ask root to do it")) == (1, 1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    run = service.started(
        ALICE, *HOLDFAST, "run", "--job-id", "on-nodes", "--nnodes", "1:2", "--rdzv-endpoint", endpoint,
        "--rdzv-conf", "last_call_timeout=1", WHO_AM_I, "stay", groups=TEAM,
    )  # fmt: skip
    until(lambda: service.jobs(ALICE).get("on-nodes", {}).get("state") == "running", "a job that may have more nodes")
    drain = service.started(0, *HOLDFAST, "drain", "--reason", "new cable")
    try:

        def events() -> str:
            return service.holdfast(ALICE, "events", "on-nodes", groups=TEAM).stdout

        until(lambda: "cannot take node" in events(), "the answer of the job's leader")
        assert f"holdfast drain by root on {NODE}: new cable" in events()
        drain.send_signal(signal.SIGINT)
        said = drain.communicate(timeout=many_users.END_S)[1]
        assert drain.returncode == 130
        assert f"node {NODE} stays cordoned" in said
    finally:
        assert service.holdfast(0, "uncordon", NODE).returncode == 0
        drain.kill()
        service.holdfast(ALICE, "stop", "on-nodes", "--wait", groups=TEAM)
        run.communicate(timeout=many_users.END_S)


FLOOD = """
import socket, sys
while True:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(sys.argv[1])
"""
ASK = """
import json, socket, sys, time
frames = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + b"\\0\\0\\0\\4\\0\\0\\0\\0\\0"
took_s = []
for _ in range(40):
    began_s = time.monotonic()
    answered = b""
    while not answered and time.monotonic() < began_s + 1.0:  # as a client that is refused for a moment
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(20)  # so that connect() does not wait, as in gRPC
            try:
                client.connect(sys.argv[1])
                client.sendall(frames)
                answered = client.recv(9)
            except BlockingIOError:
                time.sleep(0.02)  # the kernel's queue is full
    if answered:
        took_s.append(time.monotonic() - began_s)
    time.sleep(0.05)
print(json.dumps(took_s))
"""


@pytest.mark.alone
def test_a_user_who_floods_the_socket_does_not_keep_the_others_out(service: Service, facts: dict[str, object]):
    """Before there was a bound per user, bob got in once in nine attempts, after 8 s."""
    path = str(service.socket_dir / "control.sock")
    assert service.jobs(BOB) == {}
    floods = [service.started(ALICE, sys.executable, "-c", FLOOD, path, groups=TEAM) for _ in range(3)]
    try:
        asked = service.run(BOB, sys.executable, "-c", ASK, path)
        assert all(flood.poll() is None for flood in floods), "the flood is over"
    finally:
        for flood in floods:
            flood.kill()
            flood.communicate()
    took_s = sorted(json.loads(asked.stdout))
    assert len(took_s) >= 30, f"{40 - len(took_s)} of 40 times, bob did not get in"
    assert took_s[len(took_s) // 2] < 1.0
    until(lambda: service.jobs(ALICE)["of-alice"]["state"] == "running", "alice gets in again")


def test_jobs_outlive_the_service_and_the_next_one_has_them(service: Service, facts: dict[str, object]):
    before = service.jobs(ALICE)["of-alice"]
    _, pid = service.supervisor_of(ALICE, TEAM)
    service.kill()
    os.kill(pid, 0)
    service.start()
    after = service.jobs(ALICE)["of-alice"]
    assert (after["ranks"], after["cycle"]) == (before["ranks"], 0)
    assert service.supervisor_of(ALICE, TEAM)[1] == pid


def test_a_supervisor_that_is_killed_is_started_again_and_has_its_jobs(service: Service, facts: dict[str, object]):
    _, pid = service.supervisor_of(ALICE, TEAM)
    os.kill(pid, signal.SIGKILL)
    until(lambda: service.supervisor_of(ALICE, TEAM)[1] != pid, "another supervisor")
    until(lambda: "of-alice" in service.jobs(ALICE), "the job under it")
    assert service.jobs(ALICE)["of-alice"]["cycle"] == 0


def test_root_may_stop_any_job(service: Service, of_alice: subprocess.Popen[str], facts: dict[str, object]):
    stopped = service.holdfast(0, "stop", "of-alice", "--wait")
    assert stopped.returncode == 0, stopped.stderr
    assert of_alice.wait(many_users.END_S) == 93


def test_a_user_whom_the_node_does_not_know_yet_keeps_nobody_out_and_comes_in_later():
    """So it is after a reboot, while sssd is not there yet."""
    with many_users.service("--users", f"late-one,@no-such-team,{ALICE}") as running:
        assert running.holdfast(ALICE, "status").returncode == 0
        assert running.holdfast(BOB, "status").returncode == 1
        running.name_user("late-one", BOB)
        until(lambda: running.holdfast(BOB, "status").returncode == 0, "a user who is known now")
        assert running.holdfast(CAROL, "status").returncode == 1
        said = running.errors.read_text()
        assert "cannot serve user late-one: this node has no such user" in said
        assert "cannot serve group no-such-team: this node has no such group" in said


def test_the_service_answers_and_ends_though_the_supervisor_of_roots_jobs_cannot_start():
    unit = ("--user-unit", "no-such-unit-of-holdfast@")
    with many_users.service("--users", "all", "--metrics", "127.0.0.1:9464", *unit) as running:
        until(lambda: "cannot start the supervisor of user id 0" in running.errors.read_text(), "the reason")
        refused = running.holdfast(ALICE, "run", WHO_AM_I)
        assert f"cannot start the supervisor of user id {ALICE}" in refused.stderr


def test_nothing_of_a_user_is_left_once_the_service_has_ended():
    run = (*HOLDFAST, "run", "--job-id", "short", WHO_AM_I, "stay")
    with many_users.service("--users", "all") as running, running.started(ALICE, *run) as job:
        assert job.stdout is not None
        assert json.loads(job.stdout.readline())["uids"] == [ALICE] * 3
        _, pid = running.supervisor_of(ALICE)
        running.close()
        assert not Path(f"/proc/{pid}").exists()
        assert job.wait(many_users.END_S) == 1


@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no /dev/fuse for a home that does not answer")
def test_a_home_that_does_not_answer_ends_no_job():
    """Nobody uses it; neither a second submission nor the next supervisor of that user asks for it."""
    with many_users.service("--users", f"{ALICE}") as running, contextlib.ExitStack() as undo:
        home = running.place / "home"
        home.mkdir()
        served = subprocess.Popen(
            running.inside(sys.executable, str(many_users.ROOT / "tests" / "soak" / "unanswering_fs.py"), str(home)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/",
        )  # fmt: skip
        undo.callback(served.communicate)
        assert served.stdin is not None
        assert served.stdout is not None
        assert served.stdout.readline() == "mounted\n"
        running.name_user("alice", ALICE, str(home))
        first = running.started(ALICE, *HOLDFAST, "run", "--job-id", "first", WHO_AM_I, "stay")
        undo.callback(first.communicate)
        undo.callback(first.kill)
        assert first.stdout is not None
        assert first.stdout.readline()
        served.stdin.write("stop\n")
        served.stdin.flush()
        second = running.run(ALICE, *HOLDFAST, "run", "--job-id", "second", WHO_AM_I)
        assert second.returncode == 0, second.stderr
        _, pid = running.supervisor_of(ALICE)
        os.kill(pid, signal.SIGKILL)
        until(lambda: running.supervisor_of(ALICE)[1] != pid, "another supervisor")
        until(lambda: "first" in running.jobs(ALICE), "the first job under it")
        (record,) = [job for name, job in running.jobs(ALICE).items() if name == "first"]
        assert (record["cycle"], record["state"]) == (0, "running")
        served.stdin.write("go\n")
        served.stdin.flush()
