"""Do status, jobs, nodes, events, logs and stacks report the truth, with and without a supervisor?"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from supervisor.cli.status import heartbeat_cell
from supervisor.core.facts import JobState
from supervisor.core.stragglers.straggler_messages import Straggler
from supervisor.ports.reports import JobNodeReport, RankReport, SectionReport
from tests.cli.supervised import ROOT, Home, widest, without_colours
from tests.edges.operators.fake_job_service import running

JOB = "train-7f3a"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.close()


def test_status_as_json_has_the_documented_keys(home: Home) -> None:
    with home.supervisor(running()):
        done = home.holdfast("status", "-o", "json")
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    assert document["schema"] == "holdfast.status/v1"
    job = document["jobs"][0]
    assert {
        "job_id",
        "state",
        "cycle",
        "iteration",
        "max_restarts",
        "restarts_used",
        "reason",
        "nodes",
        "ranks",
    } <= set(job)
    assert {"name": "n0", "state": "ready", "group_rank": 0}.items() <= job["nodes"][0].items()
    rank = job["ranks"][1]
    assert (rank["rank"], rank["local_rank"], rank["node"], rank["pid"], rank["state"]) == (1, 1, "n0", 801, "running")
    assert (rank["heartbeat_age_s"], rank["heartbeat_limit_s"]) == (0.25, 45.0)
    assert rank["sections"] == [{"name": "step", "age_s": 0.5, "limit_s": 3.0}]
    assert rank["cycle_started_at"] == "1970-01-01T00:00:00.000001Z"
    assert "hunter2" not in done.out


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_is_json_whatever_stdout_can_encode(home: Home, encoding: str) -> None:
    with home.supervisor(replace(running(), reason="🤗 é")):
        for output in ("json", "jsonl"):
            told = json.loads(home.holdfast("jobs", "-o", output, PYTHONIOENCODING=encoding).out)
            assert (told["jobs"][0] if output == "json" else told)["reason"] == "🤗 é"


@pytest.mark.parametrize(
    ("age_s", "limit_s", "cell"),
    [
        (0.25, 45.0, "0.2s ago (limit 45s)"),
        (0.25, None, "0.2s ago"),
        (None, 45.0, "none yet (limit 45s)"),
        (None, None, "not monitored"),
    ],
)
def test_the_heartbeat_of_a_rank(age_s: float | None, limit_s: float | None, cell: str) -> None:
    rank = RankReport(0, 0, "n0", "running", heartbeat_age_s=age_s, heartbeat_limit_s=limit_s)
    assert heartbeat_cell(rank) == cell


@pytest.mark.parametrize(
    ("limit_s", "heartbeat_limit_s", "cell"),
    [
        (60.0, None, "main thread 0.1s ago (limit 1m00s)"),
        (60.0, 45.0, "main thread 0.1s ago (limit 1m00s)"),  # that no rank has armed
        (None, None, "main thread 0.1s ago"),  # in a wrapped call
    ],
)
def test_a_script_that_says_nothing_is_watched_by_its_main_thread(
    limit_s: float | None, heartbeat_limit_s: float | None, cell: str
) -> None:
    rank = RankReport(
        0, 0, "n0", "running",
        heartbeat_limit_s=heartbeat_limit_s, main_thread_age_s=0.1, main_thread_limit_s=limit_s,
    )  # fmt: skip
    assert heartbeat_cell(rank) == cell


def test_status_says_when_the_script_was_seen_after_a_restart(home: Home) -> None:
    sign = "first sign of the script after 2.41 s: output of rank 0, cycle 2"
    with home.supervisor(msgspec.structs.replace(running(), script=sign)):
        assert f"script      {sign}\n" in home.holdfast("status", JOB).out
        assert json.loads(home.holdfast("status", JOB, "-o", "json").out)["jobs"][0]["script"] == sign


def test_no_supervisor_is_an_empty_list_unless_one_was_named(home: Home) -> None:
    done = home.holdfast("status", "-o", "json")
    assert (done.code, json.loads(done.out)) == (0, {"schema": "holdfast.status/v1", "jobs": []})
    for named in (
        home.holdfast("status", "--socket-dir", "/nowhere"),
        home.holdfast("jobs", HOLDFAST_SOCKET_DIR="/no"),
    ):
        assert (named.code, named.out) == (69, "")
        assert "cannot reach a supervisor at /no" in named.err
        assert "start one with holdfast daemon" in named.err
    assert home.holdfast("nodes").code == 69
    assert home.holdfast("stop", "x").code == 69


def test_private_supervisors_are_seen_too(home: Home) -> None:
    private = home.root / "private"
    with home.supervisor(running("node-job")), home.supervisor(running("mine"), place=private, private=True):
        names = {job["job_id"] for job in json.loads(home.holdfast("status", "-o", "json").out)["jobs"]}
        assert names == {"node-job", "mine"}
        nodes = home.holdfast("nodes")
        assert nodes.out.count("\n") == 3
        assert "(private)" in nodes.out
        only = home.holdfast("status", "-o", "json", "--socket-dir", str(private))
        assert [job["job_id"] for job in json.loads(only.out)["jobs"]] == ["mine"]


def test_a_daemon_that_slurms_prolog_has_started_is_seen_and_drained_without_its_folder(home: Home) -> None:
    place = home.root / "slurm"
    with home.supervisor(running("in-step"), place=place, registered=True):
        assert [job["job_id"] for job in json.loads(home.holdfast("status", "-o", "json").out)["jobs"]] == ["in-step"]
        assert "(private)" not in home.holdfast("nodes").out
        drained = home.holdfast("drain", "--stop-jobs")
        assert (drained.code, "takes none" in drained.err) == (0, True), drained.err


def test_a_job_is_named_by_a_unique_beginning(home: Home) -> None:
    with home.supervisor(running("train-1"), running("train-2"), running("bert")):
        assert "bert" in home.holdfast("status", "be").out
        ambiguous = home.holdfast("status", "train")
        assert ambiguous.code == 1
        assert "it may mean train-2, train-1; type more characters" in ambiguous.err
        wrong = home.holdfast("status", "tarin-1")
        assert wrong.code == 1
        assert "there is no such job; did you mean train-1" in wrong.err


def test_finished_jobs_are_read_from_the_journal(home: Home) -> None:
    logs = home.state / "logs"
    rank_dir = logs / JOB / "cycle_2" / "rank_0"
    rank_dir.mkdir(parents=True)
    (rank_dir / "stdout.log").write_text("step 1\nstep 2\n")
    with home.supervisor(running(log_dir=str(logs / JOB))) as supervisor:
        supervisor.tell(f"end {JOB}")
    jobs = json.loads(home.holdfast("jobs", "-o", "json").out)["jobs"]
    assert [(job["job_id"], job["state"], job["exit_code"]) for job in jobs] == [(JOB, "succeeded", 0)]
    assert "all ranks exited with code 0" in home.holdfast("jobs").out
    assert "succeeded at" in home.holdfast("status", JOB).out
    events = [json.loads(line) for line in home.holdfast("events", JOB, "-o", "jsonl").out.splitlines()]
    assert [event["kind"] for event in events] == ["cycle_started", "job_ended"]
    assert {"at", "job_id", "cycle", "iteration", "node", "rank", "kind", "reason"} <= set(events[0])
    assert home.holdfast("logs", JOB, "--rank", "0", "--tail", "1").out == "step 2\n"
    stopped = home.holdfast("stop", JOB)
    assert (stopped.code, stopped.out) == (1, "")
    assert "cannot stop job train-7f3a: it has ended (succeeded)" in stopped.err
    assert "it has ended" in home.holdfast("stacks", JOB).err


def test_a_job_whose_supervisor_was_killed_is_told_as_such(home: Home) -> None:
    with home.supervisor(running()) as supervisor:
        home.holdfast("status")  # the journal has committed by now
        supervisor.process.kill()
        supervisor.process.wait(20)
    (job,) = json.loads(home.holdfast("jobs", "-o", "json").out)["jobs"]
    assert job["state"] == "failed"
    assert "its supervisor (pid 4711) has ended without recording a verdict" in job["reason"]
    assert "its processes are gone; last: all 4 ranks run" in job["reason"]
    assert job["ended_at"] is not None
    assert [rank["state"] for rank in job["ranks"]] == ["stopped"] * 4
    assert "without recording a verdict" in home.holdfast("status", JOB).out
    assert home.holdfast("status").out == ""
    assert "it has ended (failed)" in home.holdfast("stop", JOB).err


def test_a_whole_id_is_never_taken_for_the_beginning_of_another(home: Home) -> None:
    with home.supervisor(running("train")) as supervisor:
        supervisor.tell("end train")
    with home.supervisor(running("train-2")):
        assert json.loads(home.holdfast("status", "train", "-o", "json").out)["jobs"][0]["job_id"] == "train"
        assert "cannot stop job train: it has ended" in home.holdfast("stop", "train").err


def test_an_id_means_its_newest_run_and_jobs_lists_each(home: Home) -> None:
    with home.supervisor(running()) as supervisor:
        supervisor.tell(f"end {JOB}")
    with home.supervisor(running(submitted_at_ns=2_000)):
        assert json.loads(home.holdfast("status", JOB, "-o", "json").out)["jobs"][0]["state"] == "running"
        listed = json.loads(home.holdfast("jobs", "-o", "json").out)["jobs"]
        assert [(job["job_id"], job["state"]) for job in listed] == [(JOB, "running"), (JOB, "succeeded")]
        assert [json.loads(line)["kind"] for line in home.holdfast("events", JOB, "-o", "jsonl").out.splitlines()] == [
            "cycle_started"
        ]
        assert home.holdfast("stop", JOB).code == 0


def test_events_are_followed_until_the_job_ends(home: Home) -> None:
    with home.supervisor(running()) as supervisor:
        follower = home.start("events", JOB, "--follow", "-o", "jsonl")
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["sequence"] == 1
        supervisor.tell(f"publish {JOB}")
        assert json.loads(follower.stdout.readline())["sequence"] == 2
        supervisor.tell(f"end {JOB}")
        out, err = follower.communicate(timeout=20)
        assert [json.loads(line)["kind"] for line in out.splitlines()] == ["job_ended"]
        assert (follower.returncode, err) == (0, "")


def test_logs_are_followed_and_prefixed(home: Home) -> None:
    logs = home.root / "logs"
    for rank in (0, 1):
        folder = logs / JOB / "cycle_2" / f"rank_{rank}"
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text(f"hello from {rank}\nno end yet")
    with home.supervisor(running(log_dir=str(logs / JOB))) as supervisor:
        follower = home.start("logs", JOB, "--follow")
        assert follower.stdout is not None
        assert follower.stdout.readline() == "[cycle 2 rank 0] hello from 0\n"
        assert follower.stdout.readline() == "[cycle 2 rank 1] hello from 1\n"
        with (logs / JOB / "cycle_2" / "rank_1" / "stdout.log").open("a") as file:
            file.write(", now\n")
        assert follower.stdout.readline() == "[cycle 2 rank 1] no end yet, now\n"
        supervisor.tell(f"end {JOB}")
        out, _ = follower.communicate(timeout=20)
        assert (follower.returncode, out) == (0, "[cycle 2 rank 0] no end yet\n")
        lines = [json.loads(line) for line in home.holdfast("logs", JOB, "-o", "jsonl").out.splitlines()]
        assert lines[0] == {"cycle": 2, "rank": 0, "stream": "stdout", "line": "hello from 0"}


def test_stacks_name_the_odd_ranks_first(home: Home) -> None:
    with home.supervisor(running()):
        text = home.holdfast("stacks", JOB).out
        assert text.index("rank 2:") < text.index("ranks 0-1, 3:")
        assert "  load (data.py:88)" in text
        document = json.loads(home.holdfast("stacks", JOB, "-o", "json").out)
        assert document["groups"][0] == {"ranks": [2], "stack": "main (train.py:10)\n  load (data.py:88)"}
        wrong = home.holdfast("stacks", JOB, "--rank", "99")
        assert (wrong.code, wrong.out) == (1, "")
        assert "ranks 0 to 3" in wrong.err


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_fit_the_terminal(home: Home, columns: int) -> None:
    long = replace(
        running("bert-pretrain-large-20261121", submitted_at_ns=time.time_ns()),
        reason="rank 2 is hung: section load has lasted 94 s, more than its limit of 60 s; ranks 0, 1, 3 stand in "
        "all_reduce (c10d.py:12)",
    )
    sections = (SectionReport("epoch", 812.0), SectionReport("load", 94.2, 60.0))
    hung = replace(long.ranks[2], state="hung", sections=sections)
    long = replace(long, ranks=(*long.ranks[:2], hung, long.ranks[3]))
    with home.supervisor(long):
        for arguments in (("status",), ("jobs",), ("events", "bert")):
            text = home.on_terminal(columns, *arguments)
            assert widest(without_colours(text).splitlines()) <= columns, text
        text = home.on_terminal(columns, "status", "bert")
        assert widest(without_colours(text).splitlines()) <= columns, text
        assert "\x1b[31mhung\x1b[0m" in text
        assert "all_reduce (c10d.py:12)" in " ".join(without_colours(text).split())
        assert "\x1b" not in home.on_terminal(columns, "status", "bert", NO_COLOR="1")
        assert "\x1b" not in home.holdfast("status", "bert").out


def test_slow_ranks_are_shown(home: Home) -> None:
    slow = Straggler("forward", "n0", (2,), False, 1.5, 0.3, 0.2, 4, "rank 2 on node n0 is slow in section 'forward'")
    with home.supervisor(replace(running(), stragglers=(slow,))):
        text = home.holdfast("status", JOB).out
        assert "TIMES THE MEDIAN" in text
        (row,) = [line.split() for line in text.splitlines() if line.startswith("rank 2")]
        assert row == ["rank", "2", "n0", "forward", "300", "ms", "200", "ms", "1.50", "(of", "4", "ranks)"]
        (job,) = json.loads(home.holdfast("status", JOB, "-o", "json").out)["jobs"]
        assert job["stragglers"] == [
            {
                "section": "forward", "node": "n0", "ranks": [2], "is_node": False, "ratio": 1.5, "took_s": 0.3,
                "median_s": 0.2, "compared_ranks": 4, "reason": "rank 2 on node n0 is slow in section 'forward'",
            }
        ]  # fmt: skip


def test_a_workers_words_do_not_steer_the_terminal(home: Home) -> None:
    with home.supervisor(replace(running(), reason="boom \x1b[2J\x07\nnext")):
        assert "boom \\x1b[2J\\x07 next" in home.holdfast("status").out


def test_watch_ends_with_the_job(home: Home) -> None:
    with home.supervisor(running()) as supervisor:
        watcher = home.start("status", JOB, "--watch", "-o", "jsonl")
        assert watcher.stdout is not None
        assert json.loads(watcher.stdout.readline())["state"] == "running"
        supervisor.tell(f"end {JOB}")
        out, _ = watcher.communicate(timeout=20)
        assert json.loads(out.splitlines()[-1])["state"] == "succeeded"
        assert watcher.returncode == 0


def test_interrupt_and_broken_pipe_are_quiet(home: Home) -> None:
    with home.supervisor(running()) as supervisor:
        follower = home.start("events", JOB, "--follow")
        assert follower.stdout is not None
        follower.stdout.readline()
        follower.stdout.readline()  # now the supervisor knows it
        follower.send_signal(signal.SIGINT)
        _, err = follower.communicate(timeout=20)
        assert (follower.returncode, err) == (130, "")
        follower = home.start("events", JOB, "--follow")
        assert follower.stdout is not None
        assert follower.stderr is not None
        follower.stdout.readline()
        follower.stdout.readline()
        follower.stdout.close()
        supervisor.tell(f"publish {JOB}")
        assert follower.stderr.read() == ""
        assert follower.wait(20) == 141


@pytest.mark.parametrize("tail", [(), ("--tail", "1")])
def test_what_a_private_supervisor_did_not_show_of_a_job_that_has_ended_is_read_from_its_files(
    home: Home, tail: tuple[str, ...]
) -> None:
    log = home.root / "logs" / JOB / "cycle_2" / "rank_0" / "stdout.log"
    log.parent.mkdir(parents=True)
    log.write_text("step 1\nstep 2\n")
    job = running(log_dir=str(home.root / "logs" / JOB))
    with home.supervisor(job, place=home.root / "private", private=True) as supervisor:
        follower = home.start("logs", JOB, "--rank", "0", "--follow", *tail)
        assert follower.stdout is not None
        shown = [follower.stdout.readline() for _ in range(1 if tail else 2)]
        supervisor.tell(f"record {JOB}")
        supervisor.process.send_signal(signal.SIGSTOP)
        with log.open("a") as file:
            file.write("the last line\n")
        supervisor.process.kill()
        out, err = follower.communicate(timeout=20)
        supervisor.process.wait(20)
    assert shown == (["step 2\n"] if tail else ["step 1\n", "step 2\n"])
    assert (follower.returncode, out, err) == (0, "the last line\n", "")


def test_the_output_of_other_nodes_is_read_where_it_lies_once_the_job_has_ended(home: Home) -> None:
    """A supervisor that is still there asks no other node then."""
    folders = {name: home.root / "logs" / name / JOB for name in ("n0", "n1", "n2")}
    for rank, name in enumerate(("n0", "n1")):
        folder = folders[name] / "cycle_2" / f"rank_{rank}"
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text(f"said by rank {rank}\n")
    nodes = tuple(JobNodeReport(name, "active", log_dir=str(folder)) for name, folder in folders.items())
    with home.supervisor(replace(running(log_dir=str(folders["n0"])), nodes=nodes)) as supervisor:
        supervisor.tell(f"end {JOB}")
        place = f"n2 (in {folders['n2']})"
        done = home.holdfast("logs", JOB)
        assert (done.code, done.out) == (0, "[cycle 2 rank 0] said by rank 0\n[cycle 2 rank 1] said by rank 1\n")
        assert f"the output of the ranks on {place} is not shown; run holdfast logs {JOB} there" in done.err
        assert home.holdfast("logs", JOB, "--rank", "1", "--follow").out == "said by rank 1\n"
        elsewhere = home.holdfast("logs", JOB, "--rank", "9")
        assert (elsewhere.code, elsewhere.out) == (1, "")
        assert f"cannot show the output of rank 9 of job {JOB}: it lies on {place}" in elsewhere.err


@pytest.mark.soak
@pytest.mark.parametrize("is_private", [False, True])
@pytest.mark.parametrize("command", [["events", JOB], ["logs", JOB, "--rank", "0"]], ids=["events", "logs"])
def test_a_follower_ends_with_a_killed_supervisor(home: Home, command: list[str], is_private: bool) -> None:
    """Even one without output for a while; nobody waits for a supervisor that is gone."""
    folder = home.root / "logs" / JOB / "cycle_2" / "rank_0"
    folder.mkdir(parents=True)
    (folder / "stdout.log").write_text("step 1\n")
    place = home.root / "private" if is_private else None
    with home.supervisor(running(log_dir=str(home.root / "logs" / JOB)), place=place, private=is_private) as supervisor:
        follower = home.start(*command, "--follow")
        assert follower.stdout is not None
        for _ in range(2 if command[0] == "events" else 1):  # the head of the table, then its rows
            assert follower.stdout.readline()
        supervisor.process.kill()
        out, err = follower.communicate(timeout=20)
        supervisor.process.wait(20)
    assert out == ""
    assert "has gone" in err
    falls_back = command[0] == "events"  # The journal that the command reads knows the job.
    assert follower.returncode == (0 if falls_back else 69)


def test_dispatch_loads_no_more_than_it_needs() -> None:
    """Users notice the launcher's start: dispatch alone must load neither gRPC, SQLite, YAML nor rich."""
    code = (
        "import sys, supervisor.cli as cli; cli.main(['--version']); cli.main(['--help']);"
        "heavy = {'grpc', 'sqlite3', 'yaml', 'rich', 'asyncio', 'anyio', 'argparse'} & set(sys.modules);"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_succeeded_is_a_state_that_jobs_lists_newest_first(home: Home) -> None:
    with home.supervisor(running("old", submitted_at_ns=10), running("new", submitted_at_ns=20)) as supervisor:
        supervisor.tell("end new")
        jobs = [json.loads(line) for line in home.holdfast("jobs", "-o", "jsonl").out.splitlines()]
        assert [(job["job_id"], job["state"]) for job in jobs] == [
            ("new", JobState.SUCCEEDED.value),
            ("old", JobState.RUNNING.value),
        ]
        assert home.holdfast("jobs", "-o", "jsonl", "--limit", "1").out.count("\n") == 1
