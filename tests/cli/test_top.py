"""`holdfast top` on a real terminal (tmux), at three sizes, with keys, against a real supervisor process."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.cli.top import INTERVAL_MIN_S
from tests.cli.supervised import HOLDFAST, Home, widest
from tests.cli.terminal import terminal
from tests.edges.operators.fake_job_service import running

JOB = "train-7f3a"
TOP = (sys.executable, "-c", HOLDFAST, "top")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (132, 43), (50, 16)])
def test_jobs_ranks_and_back_at_three_sizes(home: Home, columns: int, lines: int) -> None:
    now_ns = time.time_ns()
    jobs = (running(submitted_at_ns=now_ns - 10**12), running("eval-1", submitted_at_ns=now_ns - 10**11, ranks=2))
    with home.supervisor(*jobs), terminal(home.root, columns, lines, *TOP, environment=home.environment) as opened:
        screen = opened.shows("train-7f3a", "eval-1", "2 jobs, 6/6 ranks", "cycle_started")
        assert widest(screen.splitlines()) <= columns
        assert len(screen.splitlines()) <= lines
        assert screen.index("eval-1") < screen.index("train-7f3a")  # the newest first
        opened.press("Down", "Enter")
        screen = opened.shows(f"{JOB} running, cycle 2", "0.2s/45s")
        assert "eval-1" not in screen
        opened.press("Escape")
        opened.shows("2 jobs, 6/6 ranks")
        opened.press("q")
        opened.shows("exit code 0")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is shown jobs of others")
def test_a_job_of_another_user_is_opened_by_its_name(home: Home) -> None:
    place = home.service_dir / "users" / "47111.0123456789ab"
    place.parent.mkdir(parents=True)
    name = f"47111/{JOB}"
    with (
        home.supervisor(running(), place=place),
        terminal(home.root, 80, 24, *TOP, name, environment=home.environment) as opened,
    ):
        opened.shows(f"{name} running, cycle 2", "0.2s/45s")


def test_a_narrow_terminal_shows_whole_columns_and_marks_what_is_cut(home: Home) -> None:
    name = "a-job-whose-name-is-longer-than-a-third-of-the-terminal"
    job = running(name, submitted_at_ns=time.time_ns() - 10**12)
    with home.supervisor(job), terminal(home.root, 80, 24, *TOP, environment=home.environment) as opened:
        screen = opened.shows("\n a-job-whose", "AGE", "? Keys", "Open")  # the row, not the title alone
        (row,) = [line for line in screen.splitlines() if line.startswith(" a-job")]
        assert re.match(r" a-job-[a-z-]*…  running ", row)
        assert "16m" in row, "its age is whole"
        assert not re.search("[\u2580-\u259f]", screen), "no cell of a scrollbar"
        opened.press("?")
        opened.shows("open the chosen job", "the job's nodes")
        opened.press("Escape")
        opened.shows("4/4 ranks")


def test_a_thousand_ranks_are_sorted_filtered_and_scrolled(home: Home) -> None:
    arguments = (*TOP, JOB, "-d", str(INTERVAL_MIN_S))
    with (
        home.supervisor(running(ranks=1_000)),
        terminal(home.root, 80, 24, *arguments, environment=home.environment) as opened,
    ):
        opened.shows("1000/1000", " 0     running")
        opened.press("End")
        opened.shows(" 999   running")
        opened.press("/")
        opened.shows("show only rows with these words")
        opened.press("1", "7", "7", "7")  # the pid of rank 977
        screen = opened.shows(" 977   running")
        assert len(re.findall(r"running +0\.2s", screen)) == 1
        opened.press("Escape")
        opened.shows("by rank", " 976   running")


CHECKPOINTS = """
import os, signal, time
from worker_client import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
for step in range(10_000):
    client.start_section("step"); time.sleep(0.05); client.end_section("step")
    if step % 5 == 4:
        client.start_section("checkpointing"); time.sleep(0.02); client.end_section("checkpointing")
    if is_first and step == 60:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_the_checkpoints_cost_and_which_interval_is_best_is_shown_of_a_real_job(home: Home) -> None:
    script = home.root / "train.py"
    script.write_text(CHECKPOINTS)
    limits = ("--ft-rank-section-timeouts", "step:60,checkpointing:60")
    run = home.start("run", "--job-id", JOB, "--nproc-per-node", "1", "--max-restarts", "3", *limits, str(script))
    with terminal(home.root, 80, 24, *TOP, environment=home.environment) as opened:
        opened.shows(JOB, "1/1 rank,")
        opened.press("Enter")
        screen = opened.wait(lambda shown: "with repeated steps; every" in shown, "says what they cost")
        (line,) = re.findall(r"^checkpoints every .*$", screen, re.MULTILINE)
        told = r"checkpoints every [\d.]+ m?s cost [\d.]+ % with repeated steps; every [\d.]+ m?s: [\d.]+ %"
        assert re.fullmatch(told, line.strip()), line
        opened.press("Escape")
        assert "repeated steps" not in opened.shows("1 job, 1/1 rank,")
    assert home.holdfast("stop", JOB, "--wait").code == 0
    run.communicate(timeout=30)


def test_nothing_is_stopped_without_a_yes(home: Home) -> None:
    environment = home.environment
    with home.supervisor(running()), terminal(home.root, 80, 24, *TOP, JOB, environment=environment) as opened:
        opened.shows(f"{JOB} running")
        for no in ("n", "Escape", "Enter q"):
            opened.press("X")
            opened.shows(f"Stop job {JOB}?")
            opened.press(*no.split())
            opened.shows(f"{JOB} running")
        opened.press("R")
        opened.shows("Restart all ranks")
        opened.press("y")
        opened.shows(f"job {JOB} restarts, cycle 3")
        opened.press("X")
        opened.shows("Stop job")
        opened.press("y")
        screen = opened.shows(f"{JOB} stopped", "job_ended")  # the job is shown from the history now
        assert "holdfast top by" in screen
        opened.press("X")  # there is nothing to ask for any more
        opened.shows(f"cannot stop job {JOB}")


def test_a_job_that_ends_meanwhile_stays_with_its_reason_and_a_long_name_hides_no_column(home: Home) -> None:
    long = "n" * 60
    jobs = (running(submitted_at_ns=2_000), running(long, ranks=2))
    with home.supervisor(*jobs), terminal(home.root, 80, 24, *TOP, environment=home.environment) as opened:
        opened.shows("2 jobs, 6/6 ranks", "nnn…  running", "/45s")
        opened.press("X")
        opened.shows(f"Stop job {JOB}?")
        opened.press("y")
        opened.shows("1 job, 2/2 ranks", "job_ended", f"{JOB}: holdfast top by ")
        opened.press("/")
        opened.shows("show only rows with these words")
        opened.press("stopped")
        screen = opened.wait(lambda screen: "nnn…" not in screen, "shows one row")
        heads = next(line for line in screen.splitlines() if "RESTARTS" in line)
        assert heads.startswith(" JOB         STATE ")  # The column is as wide as what it has now.
        assert "REASON" in heads


def test_stacks_output_and_nodes_are_pages(home: Home) -> None:
    environment = home.environment
    with home.supervisor(running()), terminal(home.root, 80, 24, *TOP, JOB, environment=environment) as opened:
        opened.shows(f"{JOB} running")
        opened.press("Down", "t")
        opened.shows("rank 1: stacks", "load (data.py:88)")
        opened.press("Escape")  # alone: before another key it would mean Alt
        opened.shows(f"{JOB} running")
        opened.press("n")
        opened.shows(f"{JOB}: nodes", "n0    ready  0      0-3")
        opened.press("Escape")
        opened.shows(f"{JOB} running")
        opened.press("l")
        opened.shows("rank 1: the last lines", "cannot show output of job")
        opened.press("q")
        opened.shows(f"{JOB} running")


def test_a_supervisor_that_hangs_is_told_about_and_holds_up_no_key(home: Home) -> None:
    with (
        home.supervisor(running()) as supervisor,
        terminal(home.root, 80, 24, *TOP, environment=home.environment) as opened,
    ):
        opened.shows(JOB)
        os.kill(supervisor.process.pid, signal.SIGSTOP)
        try:
            opened.wait(lambda screen: "is stopped (state T)" in " ".join(screen.split()), "says that nobody answers")
            opened.press("s")
            opened.shows("by name")
            opened.press("q")
            asked_at = time.monotonic()
            opened.shows("exit code 0")
            assert time.monotonic() - asked_at < 4  # less than the wait for the answer
        finally:
            os.kill(supervisor.process.pid, signal.SIGCONT)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is shown jobs of others")
def test_a_job_that_ends_while_a_supervisor_hangs_stays_and_the_silence_is_told_once(home: Home) -> None:
    home.service_dir.mkdir(mode=0o700)
    place = home.service_dir / "users" / "47111.0123456789ab"
    place.parent.mkdir()
    with (
        home.supervisor(running("eval-1", ranks=2)) as supervisor,
        home.supervisor(running(), place=place) as silent,
        terminal(home.root, 400, 24, *TOP, environment=home.environment) as opened,  # each message in one line
    ):
        opened.shows("2 jobs, 6/6 ranks")
        silent.process.send_signal(signal.SIGSTOP)
        try:
            opened.shows("1 job, 2/2 ranks", "what user 47111 has here is not shown")
            supervisor.tell("end eval-1")
            screen = opened.shows("0 jobs, 0/0 ranks", "succeeded")
            assert screen.count("what user 47111 has here is not shown") == 1
        finally:
            silent.process.send_signal(signal.SIGCONT)


def test_a_supervisor_that_comes_later_and_goes_is_seen(home: Home) -> None:
    with terminal(home.root, 80, 24, *TOP, environment=home.environment) as opened:
        opened.shows("0 jobs")
        with home.supervisor(running()):
            opened.shows(JOB, "1 supervisor")
        opened.shows("0 jobs, 0/0 ranks, 0 supervisors")
        opened.press("a")
        opened.shows(JOB)


def test_without_colour_the_screen_has_no_colour(home: Home) -> None:
    coloured = re.compile(r"\x1b\[[0-9;]*\b(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]")
    for given, expected in (({}, True), ({"NO_COLOR": "1"}, False)):
        environment = {**home.environment, **given}
        jobs = (running(), running("eval-1"))  # of two, one is not the chosen row, which is reversed
        with home.supervisor(*jobs), terminal(home.root, 80, 24, *TOP, environment=environment) as opened:
            opened.shows(f"{JOB}  running")
            assert bool(coloured.search(opened.colours())) == expected


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ((), 2, "cannot show a live view: stdin and stdout are not a terminal; see holdfast status"),
        (("-d", "0.1"), 2, "'0.1' is not a number of seconds from 0.5 to 3600"),
    ],
)
def test_what_it_cannot_do_is_said(home: Home, arguments: tuple[str, ...], code: int, told: str) -> None:
    done = home.holdfast("top", *arguments)
    assert done.code == code
    assert told in done.err


@pytest.mark.parametrize("term", ["", "dumb"])
def test_a_terminal_of_unknown_type_is_said(home: Home, term: str) -> None:
    environment = {**home.environment, "TERM": term}
    with terminal(home.root, 200, 24, *TOP, environment=environment) as opened:
        opened.shows(f"TERM={term} does not name a terminal that can show it; set it", "exit code 2")


def test_without_the_extra_it_says_what_to_install(home: Home) -> None:
    (home.root / "textual.py").write_text("raise ModuleNotFoundError('no', name='textual')\n")
    environment = {**home.environment, "PYTHONPATH": str(home.root)}
    with terminal(home.root, 120, 24, *TOP, environment=environment) as opened:
        opened.shows("module textual is not installed", "pip install '.[supervisor,top]'", "exit code 78")


def test_a_job_that_is_not_there_is_an_error_before_the_view_opens(home: Home) -> None:
    with terminal(home.root, 80, 24, *TOP, "nonesuch", environment=home.environment) as opened:
        opened.shows("cannot show job nonesuch: there is no such job", "exit code 1")
