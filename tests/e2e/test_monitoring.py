"""Which silence of a real worker counts against which limit, and what do its other requests do? By page and frames."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.hangs import BUSY_S, BY_FRAMES, EARLY_S, MONITORED, overshoot_s, told
from tests.e2e.launch import Launch, assert_nothing_left

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

pytestmark = pytest.mark.timeout(90)

TRANSPORTS = {"page": dict[str, str](), "frames": BY_FRAMES}
# By frames, CI judges hangs (test_hangs.py) and a stopped supervisor (test_supervisor_faults.py).
by_page_and_by_frames = pytest.mark.parametrize("transport", ["page", pytest.param("frames", marks=pytest.mark.soak)])


def the_hang(launch: Launch, *, since: str, limit_s: float) -> str:
    """Waits for the end by a hang and returns its reason. `since`: the last trace before the silence."""
    assert launch.wait() == 1, launch.stderr_text()
    (event,) = told(launch, "hang_detected")
    begun = [line for line in launch.traced(since) if line["rank"] == event["rank"]][-1]
    late_s = overshoot_s(event, begun, limit_s)
    assert -EARLY_S <= late_s <= BUSY_S, f"the verdict came {late_s:.3f} s after the limit"
    return str(event["reason"])


def assert_says(reason: object, sentence: str) -> None:
    """Checks the sentence except for the age, which is the limit or slightly more."""
    pattern = re.escape(sentence).replace("AGE", r"[\d.]+ s")
    assert re.fullmatch(pattern, str(reason)), f"{reason!r} is not {sentence!r}"


def assert_never_judged(launch: Launch) -> None:
    assert launch.wait() == 0, launch.stderr_text()
    assert "hang_detected" not in launch.kinds()


# --- sections ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "transport"),
    [
        ("open=outer,open=inner,sleep", "page"),
        ("open=inner,open=outer,sleep", "page"),
        ("open=inner,open=outer,close=inner,sleep", "page"),
        ("open=outer,open=inner,sleep", "frames"),
    ],
)
def test_any_section_that_is_open_too_long_is_a_hang(start: Start, plan: str, transport: str) -> None:
    """Nested both ways, and overlapping: the younger section does not hide the older one."""
    launch = start(
        "--ft-rank-section-timeouts", "outer:0.5,inner:30", MONITORED, f"0:0/init,{plan}",
        environment=TRANSPORTS[transport],
    )  # fmt: skip
    assert launch.wait() == 1
    (event,) = told(launch, "hang_detected")
    (begun,) = [line for line in launch.traced("opens") if line["section"] == "outer"]
    assert -EARLY_S <= overshoot_s(event, begun, 0.5) <= BUSY_S
    assert_says(event["reason"], "rank 0 has been in section 'outer' for AGE (limit 0.5 s)")


@by_page_and_by_frames
def test_time_outside_of_sections_counts_from_the_first_step_on(start: Start, transport: str) -> None:
    launch = start(
        "--ft-rank-section-timeouts", "step:30", "--ft-rank-out-of-section-timeout", "0.5",
        MONITORED, "0:0/init,sleep=1,open=step,sleep=1,close=step,mark,sleep", environment=TRANSPORTS[transport],
    )  # fmt: skip
    reason = the_hang(launch, since="mark", limit_s=0.5 - 0.02)  # the mark comes after the close
    assert_says(reason, "rank 0 is outside of all sections for AGE (limit 0.5 s)")


def test_warm_up_has_its_own_limit_for_the_first_steps_of_a_cycle(start: Start) -> None:
    slow_step = "open=step,sleep=0.8,close=step"
    launch = start(
        "--ft-rank-section-timeouts", "step:0.5,warmup:30", "--ft-num-warmup-iterations", "2",
        MONITORED, f"0:0/init,{slow_step},{slow_step},open=step,sleep",
    )  # fmt: skip
    reason = the_hang(launch, since="opens", limit_s=0.5)
    assert_says(reason, "rank 0 has been in section 'step' for AGE (limit 0.5 s)")


@by_page_and_by_frames
def test_end_all_sections_ends_them(start: Start, transport: str) -> None:
    launch = start(
        "--ft-rank-section-timeouts", "a:0.5,b:0.5",
        MONITORED, "0:0/init,open=a,open-again=a,open=b,open=unknown,close-all,close=unknown,sleep=1,exit=0",
        environment=TRANSPORTS[transport],
    )  # fmt: skip
    assert_never_judged(launch)
    (misuse,) = launch.traced("misused")
    assert "it is open already" in str(misuse["error"])


# --- heartbeats ----------------------------------------------------------------------------------------------------


def test_the_initial_limit_holds_until_the_first_heartbeat(start: Start) -> None:
    launch = start("--ft-initial-rank-heartbeat-timeout", "0.5", MONITORED, "0:0/init,sleep")
    reason = the_hang(launch, since="initialises", limit_s=0.5)
    assert_says(reason, "rank 0 sent no first heartbeat for AGE since its start (limit 0.5 s)")


def test_none_is_no_limit_and_the_initial_one_ends_with_the_first_heartbeat(start: Start) -> None:
    launch = start(
        "--ft-initial-rank-heartbeat-timeout", "0.5", "--ft-rank-heartbeat-timeout", "none",
        MONITORED, "0:0/init,beat,sleep=1.2,exit=0",
    )  # fmt: skip
    assert_never_judged(launch)


def test_by_default_only_heartbeats_have_a_limit_of_2700_s_from_the_first_on(start: Start) -> None:
    launch = start(MONITORED, "0:0/init,limits,sleep=0.5,exit=0")
    assert_never_judged(launch)
    (limits,) = launch.traced("limits")
    heartbeat, section = str(limits["heartbeat"]), str(limits["section"])
    assert "initial=None" in heartbeat
    assert "subsequent=2700.0" in heartbeat
    assert "section={}" in section
    assert "out_of_section=None" in section


@by_page_and_by_frames
def test_a_client_of_heartbeats_is_not_judged_by_sections(start: Start, transport: str) -> None:
    launch = start(
        "--ft-rank-section-timeouts", "step:0.8", "--ft-rank-out-of-section-timeout", "0.8",
        MONITORED, "0:0/init,beat-for=1.2", environment=TRANSPORTS[transport],
    )  # fmt: skip
    assert_never_judged(launch)


@by_page_and_by_frames
def test_a_client_of_sections_is_not_judged_by_heartbeats(start: Start, transport: str) -> None:
    launch = start(
        "--ft-rank-section-timeouts", "step:1", "--ft-rank-heartbeat-timeout", "0.5",
        MONITORED, "0:0/init,step-for=1.2", environment=TRANSPORTS[transport],
    )  # fmt: skip
    assert_never_judged(launch)


@by_page_and_by_frames
def test_a8_a_rank_that_beats_in_a_step_that_never_ends_is_found_by_its_section(start: Start, transport: str) -> None:
    launch = start(
        "--ft-rank-section-timeouts", "step:1", "--ft-rank-heartbeat-timeout", "1",
        MONITORED, "0:0/init,open=step,beat-for=60", environment=TRANSPORTS[transport],
    )  # fmt: skip
    reason = the_hang(launch, since="opens", limit_s=1)
    assert_says(reason, "rank 0 has been in section 'step' for AGE (limit 1.0 s)")


def test_monitoring_that_was_shut_down_is_no_silence_and_a_new_start_starts_afresh(start: Start) -> None:
    launch = start(
        "--ft-rank-heartbeat-timeout", "0.5",
        MONITORED, "0:0/init,beat,shutdown,sleep=1,init,sleep=1,beat,exit=0",
    )  # fmt: skip
    assert_never_judged(launch)


def test_a20_a_forked_child_neither_beats_nor_speaks_nor_says_goodbye_for_its_rank(start: Start) -> None:
    launch = start(
        "--max-restarts", "1", "--ft-rank-heartbeat-timeout", "1",
        MONITORED, "0:0/init,beat,beat-in-a-child,hang=sleep", "1:0/exit=0",
    )  # fmt: skip
    assert launch.wait() == 0, launch.stderr_text()
    assert launch.traced("child-done")
    (event,) = told(launch, "hang_detected")
    assert -EARLY_S <= overshoot_s(event, launch.traced("beat")[0], 1.0) <= BUSY_S
    assert "control_requested" not in launch.kinds()


# --- learned limits ------------------------------------------------------------------------------------------------


@by_page_and_by_frames
def test_learned_heartbeat_limits_hold_at_once_and_in_the_next_cycle(start: Start, transport: str) -> None:
    learn = "init,beat,sleep=0.3,beat,learn-heartbeats"
    launch = start(
        "--max-restarts", "1", "--ft-safety-factor", "2", "--ft-rank-heartbeat-timeout", "60",
        MONITORED, f"0:0/{learn},beat,hang=sleep", "1:0/init,beat,hang=sleep", environment=TRANSPORTS[transport],
    )  # fmt: skip
    assert launch.wait() == 1, launch.stderr_text()
    (learned,) = launch.traced("learned")
    found = re.search(r"subsequent=([\d.]+)", str(learned["limits"]))
    assert found
    limit_s = float(found[1])
    assert 0.6 <= limit_s < 10
    (calculated,) = told(launch, "limits_calculated")
    assert f"heartbeat {limit_s:.1f} s" in str(calculated["reason"])
    hangs = told(launch, "hang_detected")
    assert [event["cycle"] for event in hangs] == [0, 1]
    for event in hangs:
        last = [line for line in launch.traced("beat") if line["cycle"] == event["cycle"]][-1]
        assert -EARLY_S <= overshoot_s(event, last, limit_s) <= BUSY_S


def test_learned_section_limits_hold_in_the_next_cycle(start: Start) -> None:
    launch = start(
        "--max-restarts", "1", "--ft-safety-factor", "2", "--ft-rank-section-timeouts", "step:60",
        MONITORED, "0:0/init,open=step,sleep=0.3,close=step,learn-sections,sleep=1,exit=3",
        "1:0/init,open=step,hang=sleep",
    )  # fmt: skip
    assert launch.wait() == 1, launch.stderr_text()
    found = re.search(r"'step': ([\d.]+)", str(launch.traced("learned")[0]["limits"]))
    assert found
    (event,) = told(launch, "hang_detected")
    assert event["cycle"] == 1
    assert -EARLY_S <= overshoot_s(event, launch.traced("opens")[-1], float(found[1])) <= BUSY_S


# --- requests ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["init,"])
def test_continue_changes_nothing(start: Start, before: str) -> None:
    launch = start(
        "--nproc-per-node", "2", "--max-restarts", "1",
        MONITORED, f"0:1/{before}control=Continue:just so,exit=5", "1:*/exit=0",
    )  # fmt: skip
    assert launch.wait() == 0, launch.stderr_text()
    (asked,) = told(launch, "control_requested")
    assert asked["reason"] == "rank 1 asked to continue: just so"


@pytest.mark.parametrize("before", ["", "init,"])
def test_shut_down_the_workload_means_no_restart(start: Start, before: str) -> None:
    launch = start(
        "--nproc-per-node", "2", "--max-restarts", "3",
        MONITORED, f"0:1/{before}control=ShutdownWorkload:bad data,exit=5",
    )  # fmt: skip
    assert launch.wait() == 93
    assert "restart_decided" not in launch.kinds()
    (end,) = told(launch, "job_failed")
    assert str(end["reason"]).startswith("rank 1 asked to shut the workload down: bad data; then rank 1 (pid ")
    assert_nothing_left(launch)


def test_exclude_this_node_ends_a_job_that_has_no_other_once_its_rank_fails(start: Start) -> None:
    launch = start(
        "--nproc-per-node", "2", "--max-restarts", "3",
        MONITORED, "0:1/control=ExcludeThisNode:bad GPU,sleep=0.3,mark,exit=5",
    )  # fmt: skip
    assert launch.wait() == 1
    assert launch.traced("mark"), "the request alone must stop nothing"
    (end,) = told(launch, "job_failed")
    assert "rank 1 asked to exclude node" in str(end["reason"])
    assert "bad GPU; 0 nodes are left where 1 is needed" in str(end["reason"])
    assert "restart_decided" not in launch.kinds()


# --- verdicts ------------------------------------------------------------------------------------------------------


def test_no_progress_in_two_cycles_ends_with_93(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "iteration"
    file.write_text("5")
    launch = start(
        "--max-restarts", "10", "--ft-checkpoint-iteration-file", str(file), "--ft-max-no-progress-cycles", "2",
        MONITORED, "0:0/progress,exit=1", "*:*/exit=1", environment={"ITERATION_FILE": str(file)},
    )  # fmt: skip
    assert launch.wait() == 93
    assert len(launch.traced("started")) == 3
    (end,) = told(launch, "job_failed")
    assert "no progress in 2 cycles: the iteration is 6 and was 6" in str(end["reason"])


def test_an_iteration_file_that_says_nothing_counts_neither_way(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "iteration"
    file.write_text("5")
    launch = start(
        "--max-restarts", "3", "--ft-checkpoint-iteration-file", str(file), "--ft-max-no-progress-cycles", "2",
        MONITORED, "0:0/exit=1", "1:0/garble,exit=1", "2:0/exit=1", "3:0/exit=0",
        environment={"ITERATION_FILE": str(file)},
    )  # fmt: skip
    assert launch.wait() == 0, launch.stderr_text()
    assert len(told(launch, "progress_unknown")) == 1


def test_the_completion_grace_names_who_is_done_and_who_is_not(start: Start) -> None:
    launch = start("--nproc-per-node", "3", "--completion-grace-s", "0.5", MONITORED, "0:1/mark,exit=0")
    assert launch.wait() == 1
    (end,) = told(launch, "job_failed")
    sentence = "rank 1 exited with code 0 and rank 0, 2 still ran after 0.5 s (completion grace)"
    assert end["reason"] == f"{sentence}; restarts used 0 of 0"


def test_an_exhausted_budget_says_how_much_was_used_and_what_failed_last(start: Start) -> None:
    launch = start("--max-restarts", "1", "--ft-rank-heartbeat-timeout", "0.4", MONITORED, "*:0/init,beat,hang=sleep")
    assert launch.wait() == 1
    (end,) = told(launch, "job_failed")
    where, noticed = str(end["reason"]).split("; first noticed: ")
    assert where.startswith("rank 0 is in hang_in_the_data_loader (monitored.py:")
    assert_says(noticed, "rank 0 sent no heartbeat for AGE (limit 0.4 s); restarts used 1 of 1")
    why, _, used = str(end["reason"]).rpartition("; ")
    assert why in launch.stderr_text()  # said when it was found, and not again at the end
    assert f"the job ends: {used}" in launch.stderr_text()
