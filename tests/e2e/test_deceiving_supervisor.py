"""A user has put a program of her own in the place of her supervisor: what do root's commands believe, show and do?"""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from http.client import HTTPResponse
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.e2e import many_users
from tests.e2e.launch import SCRIPTS
from tests.e2e.many_users import Service

ALICE, MALLORY = 47111, 47114
WHO_AM_I = str(SCRIPTS / "who_am_i.py")
HOLDFAST = (sys.executable, "-m", "supervisor")
NODE = socket.gethostname()
BOUND_S = 8.0  # two seconds on a quiet machine; without a bound, never
NOW_NS = time.time_ns()
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\x7f"
CONTROLS = set("\x1b\x07\x9b\u202e\x7f")
VISIBLE = r"\x1b]0;owned\x07\x1b[2J\x9b31m\x202e\x7f"

pytestmark = pytest.mark.skipif(bool(many_users.missing()), reason=many_users.missing())


class Lies:
    """What her program says from now on, and which calls came."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lies.json"
        self._calls = folder / "calls"
        self.tell()

    def tell(self, *jobs: dict[str, object], **more: object) -> None:
        draft = self.path.with_suffix(".new")
        draft.write_text(json.dumps({"jobs": jobs, **more}))
        draft.chmod(0o644)
        draft.rename(self.path)
        self._calls.write_text("")
        self._calls.chmod(0o666)

    def calls(self) -> list[str]:
        return self._calls.read_text().split()


def claimed(job_id: str = "mine", **more: object) -> dict[str, object]:
    return {"jobId": job_id, "state": "JOB_STATE_RUNNING", "submittedAtNs": str(NOW_NS + 10**12), **more}


@pytest.fixture(scope="module")
def lies() -> Iterator[Lies]:
    with tempfile.TemporaryDirectory(prefix="lies-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)  # for her program
        yield Lies(Path(folder))


@pytest.fixture(scope="module")
def service(lies: Lies) -> Iterator[Service]:
    program = (str(SCRIPTS / "taken_over_service.py"), str(MALLORY), str(lies.path))
    with many_users.service("--users", "all", program=program) as running:
        alices = running.started(ALICE, *HOLDFAST, "run", "--job-id", "of-alice", WHO_AM_I, "stay")
        assert alices.stdout is not None
        assert alices.stdout.readline()
        running.holdfast(MALLORY, "status")  # her supervisor starts, and is what she has made of it
        try:
            yield running
        finally:
            alices.kill()
            alices.communicate()


def alices_report(service: Service) -> dict[str, object]:
    """Returns what alice's supervisor says of her job."""
    found = service.holdfast(ALICE, "status", "-o", "json")
    (job,) = json.loads(found.stdout)["jobs"]
    return job


def asked(service: Service, *arguments: str, within_s: float = BOUND_S) -> subprocess.CompletedProcess[str]:
    """Returns root's answer, which must come in time."""
    began_s = time.monotonic()
    done = service.holdfast(0, *arguments)
    assert time.monotonic() - began_s < within_s
    return done


def is_harmless(text: str) -> bool:
    return text.replace("\n", "").isprintable()


# --- whose job it is


@pytest.mark.parametrize("command", ["status", "jobs"])
@pytest.mark.parametrize("same_moment", [True, False])
def test_no_claim_hides_the_job_of_another_user(service: Service, lies: Lies, command: str, same_moment: bool):
    hers = alices_report(service)
    nodes = [{"name": "a", "logDir": hers["log_dir"]}, {"name": "b"}]
    alice_at = str(hers["submitted_at"])
    lies.tell(claimed("of-alice", nodes=nodes, **({"submittedAtNs": nanoseconds(alice_at)} if same_moment else {})))
    done = asked(service, command, "-o", "json")
    jobs = json.loads(done.stdout)["jobs"]
    assert sorted((job["job_id"], job["user"]) for job in jobs) == [
        ("of-alice", str(ALICE)),
        ("of-alice", str(MALLORY)),
    ]
    table = asked(service, command).stdout
    assert f"{ALICE}/of-alice" in table
    assert f"{MALLORY}/of-alice" in table


def nanoseconds(at: str) -> str:
    from datetime import datetime

    moment = datetime.fromisoformat(at)
    return str(int(moment.timestamp()) * 10**9 + moment.microsecond * 1000)


def test_an_id_that_two_users_have_is_never_guessed(service: Service, lies: Lies):
    lies.tell(claimed("of-alice"))
    for command in ("stop", "restart", "stacks", "status", "events", "logs", "report"):
        done = asked(service, command, "of-alice")
        assert done.returncode == 1, command
        assert f"2 users have one of that id; choose {ALICE}/of-alice or {MALLORY}/of-alice" in done.stderr
    assert set(lies.calls()) == {"ListJobs"}
    shown = asked(service, "status", f"{ALICE}/of-alice", "-o", "json")
    assert json.loads(shown.stdout)["jobs"][0]["ranks"][0]["pid"]
    stopped = asked(service, "stop", f"{MALLORY}/of-alice")
    assert stopped.returncode == 0
    assert f"job {MALLORY}/of-alice is being stopped" in stopped.stderr
    assert alices_report(service)["state"] == "running"


def test_alice_notices_nothing_of_it(service: Service, lies: Lies):
    lies.tell(claimed("of-alice"))
    shown = service.holdfast(ALICE, "status", "of-alice", "-o", "json")
    assert [job["job_id"] for job in json.loads(shown.stdout)["jobs"]] == ["of-alice"]


def test_her_nodes_hide_none_and_get_no_cordon(service: Service, lies: Lies):
    known = json.loads(service.holdfast(0, "nodes", "-o", "json").stdout)["nodes"]
    lies.tell(nodes=[{"name": "other"}, {"name": NODE, "state": "cordoned", "reason": "by me"}])
    done = asked(service, "nodes", "-o", "json")
    names = [(node["name"], node["state"]) for node in json.loads(done.stdout)["nodes"]]
    assert names.count((NODE, "ready")) == len(known)
    refused = asked(service, "cordon", "other")
    assert refused.returncode == 1
    assert "CordonNode" not in lies.calls()


# --- bounded in size and time


UNBOUNDED = {
    "pages": {"unending": 2},
    "large pages": {"unending": 20_000},
    "ranks of two bytes": {"empty_ranks": 2_000_000},
    "silence": {"sleep_s": 60},
}


@pytest.mark.parametrize("name", UNBOUNDED)
@pytest.mark.parametrize("command", ["status", "jobs"])
def test_others_are_shown_whatever_she_sends(service: Service, lies: Lies, name: str, command: str):
    lies.tell(claimed(reason="x" * 100), **UNBOUNDED[name])
    done = asked(service, command)
    assert done.returncode == 0
    assert f"{ALICE}/of-alice" in done.stdout
    assert f"what user {MALLORY} has here is not shown: cannot" in done.stderr
    assert done.stderr.count("\n") == 1


def test_nodes_of_others_are_shown_too(service: Service, lies: Lies):
    lies.tell(sleep_s=60)
    assert asked(service, "nodes").stdout.count(NODE) >= 2


@pytest.mark.soak
@pytest.mark.parametrize("what", ["unending_events", "unending_logs"])
def test_a_report_ends_whatever_she_sends(service: Service, lies: Lies, what: str):
    failed = {"kind": "worker_failed", "rank": 0, "reason": "rank 0 failed", "sequence": "1", "atNs": str(NOW_NS)}
    lies.tell(claimed(state="JOB_STATE_FAILED"), events=[failed], **{what: True})
    asked(service, "report", "mine", within_s=40)


# --- shown to a terminal, a page or a program


HOSTILE = claimed(
    reason=f"because{ESCAPES}",
    logDir=f"/x{ESCAPES}",
    command=[f"train{ESCAPES}"],
    nodes=[
        {"name": f"n{ESCAPES}", "state": f"s{ESCAPES}", "reason": ESCAPES, "checks": [{"check": ESCAPES}]},
        {"name": "m"},
    ],
    ranks=[{"rank": 0, "node": f"n{ESCAPES}", "state": f"s{ESCAPES}", "sections": [{"name": ESCAPES}]}],
    stragglers=[{"section": ESCAPES, "node": ESCAPES, "reason": ESCAPES}],
)
EVENT = {
    "kind": f"worker_failed{ESCAPES}", "reason": f"said{ESCAPES}", "node": f"n{ESCAPES}", "sequence": "1",
    "atNs": str(NOW_NS), "details": {f"key{ESCAPES}": ESCAPES},
}  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",), ("status", "-o", "json"), ("status", "mine"), ("jobs",), ("jobs", "-o", "jsonl"),
        ("events", "mine"), ("events", "mine", "-o", "jsonl"), ("report", "mine"), ("report", "mine", "-o", "json"),
        ("stacks", "mine"), ("nodes",), ("nodes", "-o", "json"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_no_character_of_hers_controls_a_terminal(service: Service, lies: Lies, arguments: tuple[str, ...]):
    group = {"ranks": [0], "stack": f"frame{ESCAPES}\n"}
    nodes = [{"name": f"n{ESCAPES}", "reason": ESCAPES, "version": ESCAPES, "jobIds": [ESCAPES]}]
    lies.tell(
        HOSTILE, events=[EVENT], notes=[f"note{ESCAPES}"], nodes=nodes,
        stacks={"groups": [group], "notes": [ESCAPES], "source": ESCAPES},
    )  # fmt: skip
    done = asked(service, *arguments)
    assert done.returncode == 0, done.stderr
    assert VISIBLE in done.stdout.replace("\\\\", "\\")
    assert is_harmless(done.stdout)
    assert is_harmless(done.stderr)


def test_no_character_of_a_job_id_does_either(service: Service, lies: Lies):
    lies.tell(claimed(f"mine{ESCAPES}"))
    for arguments in (("status",), ("jobs",), ("status", f"mine{VISIBLE}"), ("stop", "mine")):
        done = asked(service, *arguments)
        assert VISIBLE in done.stdout + done.stderr
        assert is_harmless(done.stdout + done.stderr)


@pytest.mark.parametrize(
    ("call", "arguments"),
    [("ListJobs", ("jobs",)), ("StopJob", ("stop", "mine")), ("GetStacks", ("stacks", "mine")),
     ("WatchJob", ("events", "mine")), ("StreamLogs", ("logs", "mine")), ("ListNodes", ("nodes",))],
)  # fmt: skip
def test_no_refusal_of_hers_controls_a_terminal(service: Service, lies: Lies, call: str, arguments: tuple[str, ...]):
    lies.tell(claimed(), refusals={call: f"no{ESCAPES}\nholdfast: forged"})
    done = asked(service, *arguments)
    assert VISIBLE in done.stderr
    assert is_harmless(done.stderr)
    assert not any(line == "holdfast: forged" for line in done.stderr.splitlines())


def on_terminal(service: Service, *arguments: str, until: Callable[[str], bool]) -> str:
    """Returns what root's terminal gets."""
    mine, theirs = pty.openpty()
    inside = service.inside(*HOLDFAST, *arguments)
    environment = {**service.environment, "TERM": "xterm", "HOLDFAST_SOCKET_DIR": str(service.socket_dir)}
    with subprocess.Popen(inside, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd="/") as process:
        os.close(theirs)
        data = b""
        while not until(data.decode("utf-8", "replace")):
            try:
                chunk = os.read(mine, 65_536)
            except OSError:
                break
            data += chunk
        process.kill()
    os.close(mine)
    return data.decode("utf-8", "replace")


@pytest.mark.parametrize("arguments", [("status", "--watch"), ("status", "mine", "--watch"), ("top",)], ids=" ".join)
def test_a_view_that_is_refreshed_shows_them_too(service: Service, lies: Lies, arguments: tuple[str, ...]):
    lies.tell(HOSTILE, events=[EVENT])
    visible, acting = r"because\x1b]0;owned\x07", "\x1b]0;owned"
    shown = on_terminal(service, *arguments, until=lambda text: visible in text or acting in text)
    assert visible in shown
    assert acting not in shown
    assert "\x9b" not in shown
    assert "\u202e" not in shown


def test_output_of_another_users_job_does_not_control_roots_terminal(service: Service, lies: Lies):
    """It stays as it is in a file or a pipe, and for its own user."""
    lies.tell(claimed(), logs=[f"printed{ESCAPES}\n"])
    assert asked(service, "logs", "mine").stdout == f"[cycle 0 rank 0] printed{ESCAPES}\n"
    for more in ((), ("--rank", "0")):
        shown = on_terminal(service, "logs", "mine", *more, until=lambda text: False)
        assert f"printed{VISIBLE}" in shown


def test_the_web_page_names_each_job_with_its_user_and_acts_on_that_one(service: Service, lies: Lies):
    lies.tell({**HOSTILE, "jobId": "of-alice"}, events=[EVENT])
    with service.started(0, *HOLDFAST, "web", "--control", "--listen", "127.0.0.1:0") as web:
        assert web.stdout is not None
        address, _, secret = web.stdout.readline().strip().partition("#")
        headers = {"Authorization": f"Bearer {secret.removeprefix('token=')}"}

        def opened(path: str, method: str = "GET") -> HTTPResponse:
            return urlopen(Request(f"{address}{path}", method=method, headers=headers), timeout=20)

        try:
            order: list[str] = []
            shown: dict[str, object] = {}
            with opened("stream") as stream:
                while len(shown) < 2:
                    line = stream.readline()
                    if line.startswith(b"data: "):
                        news = json.loads(line.removeprefix(b"data: "))
                        order, shown = news["order"], shown | news["jobs"]
            names = {f"{ALICE}/of-alice", f"{MALLORY}/of-alice"}
            assert {job.partition("@")[0] for job in order} == names
            text = json.dumps(shown, ensure_ascii=False).replace("\\\\", "\\")
            assert f"because{VISIBLE}" in text
            assert not CONTROLS & set(text)
            with opened(f"report/{MALLORY}%2Fof-alice") as report:
                page = report.read().decode()
            assert "of-alice" in page
            assert not CONTROLS & set(page)
            with opened(f"job/{MALLORY}%2Fof-alice/stop", "POST") as stopped:
                assert "is being stopped" in json.load(stopped)["done"]
        finally:
            web.terminate()
    assert "StopJob" in lies.calls()
    assert alices_report(service)["state"] == "running"


# --- numbers


def test_no_number_ends_a_command(service: Service, lies: Lies):
    """tests/cli/test_hostile_answers.py has many more."""
    section = {"name": "x", "ageS": "Infinity", "limitS": "NaN"}
    rank = {
        "rank": 1,
        "state": "running",
        "heartbeatAgeS": "NaN",
        "heartbeatLimitS": "-Infinity",
        "sections": [section],
    }
    moment = str(-(2**63))
    event = {"kind": "hang_detected", "reason": "rank 1 is silent for 1e999 s", "sequence": "1", "atNs": moment,
             "details": {"arrived_at_ns": "9" * 5000}}  # fmt: skip
    lies.tell(claimed(ranks=[rank], submittedAtNs=moment, endedAtNs=moment), events=[event])
    for arguments in (("status",), ("status", "mine"), ("status", "mine", "-o", "json"), ("jobs",), ("report", "mine")):
        done = asked(service, *arguments)
        assert done.returncode == 0, done.stderr
        assert "Infinity" not in done.stdout
        assert "NaN" not in done.stdout


# --- files


def test_root_reads_no_file_that_she_names(service: Service, lies: Lies):
    """Before, root's report showed the last lines of alice's rank, from a folder that mallory can't enter."""
    folder = str(alices_report(service)["log_dir"])
    event = {"kind": "worker_failed", "rank": 0, "reason": "rank 0 failed", "sequence": "1", "atNs": str(NOW_NS)}
    lies.tell(claimed(state="JOB_STATE_FAILED", logDir=folder, endedAtNs=str(NOW_NS)), events=[event], has_no_logs=True)
    assert "uids" in next(Path(folder).rglob("stdout.log")).read_text()
    for arguments in (("report", "mine"), ("report", "mine", "-o", "json"), ("logs", "mine")):
        done = asked(service, *arguments)
        assert "uids" not in done.stdout + done.stderr
    assert "StreamLogs" in lies.calls()


def test_root_reads_no_journal_of_a_user_with_roots_rights(service: Service, lies: Lies):
    for uid in (ALICE, MALLORY):
        state = service.state_dir / "users" / str(uid)
        if uid == MALLORY:
            target = next((service.state_dir / "users" / str(ALICE)).glob("journal*.db"))
            state.mkdir(exist_ok=True)
            link = state / "journal-1.db"
            link.symlink_to(target)
            os.chown(state, uid, uid)
            os.lchown(link, uid, uid)
        done = asked(service, "jobs", "--state-dir", str(state), "--socket-dir", str(service.socket_dir))
        assert "belongs to user id" in done.stderr
