"""What do checkpoints cost, and is the interval that is advised the best one?"""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.facts import JobState
from supervisor.programs.simulation.scenario import Scenario
from supervisor.programs.simulation.what_if import simulate
from supervisor.report import summary
from supervisor.report.report_json import document_of
from supervisor.report.timeline.checkpoint_interval import best_interval_s, cost_share
from supervisor.report.timeline.timeline import Checkpoints, Life
from supervisor.report.timeline.timeline_builder import life_of
from tests.report.timeline.jobs import BEGAN_NS, Told


def _wrote(
    job: Told, at_s: float, times: int, total_s: float, *, cycle: int = 0, section: str = "checkpointing"
) -> None:
    details = (("section", section), ("times", str(times)), ("total_s", f"{total_s:.3f}"))
    job.say(at_s, "checkpoints_measured", cycle=cycle, details=details)


def _life(job: Told, *, now_s: float) -> Life:
    return life_of(job.report(JobState.RUNNING), job.events, now_ns=BEGAN_NS + round(now_s * 1e9))


def _job(*, faults: int) -> Told:
    """Runs for 3600 s a cycle; every 100 s a checkpoint of 10 s."""
    job = Told()
    at_s = 0.0
    for cycle in range(faults + 1):
        job.begin(at_s, cycle=cycle, ranks=range(2))
        for times in (1, 2, 4, 8, 16, 32):
            _wrote(job, at_s + 30 + 110 * times, times, 10.0 * times, cycle=cycle)
        at_s += 3600
        if cycle < faults:
            job.say(at_s, "worker_failed", f"rank 1 (pid 101) failed in {cycle}", cycle=cycle, rank=1)
            job.decide(at_s + 0.01, f"rank 1 (pid 101) failed in {cycle}", cycle=cycle)
            job.stop(at_s + 0.1, cycle=cycle, ranks=range(2))
            at_s += 1
    return job


def test_a_job_without_a_fault_learns_what_its_checkpoints_cost():
    life = _life(_job(faults=0), now_s=3600)
    assert life.checkpoints == (Checkpoints("checkpointing", 32, 10.0, 100.0, 0),)
    figures = {name: (value, meaning) for name, value, meaning in summary.figures(life)}
    assert figures["Checkpoints"] == ("9.1 %", "of the running time: 10 s each, every 1 min 40 s of training")
    assert "Best interval" not in figures


def test_with_faults_the_best_interval_is_told_with_what_it_saves():
    life = _life(_job(faults=2), now_s=3 * 3601)
    (found,) = life.checkpoints
    assert (found.times, found.pause_s, found.interval_s, found.faults) == (96, 10.0, 100.0, 2)
    assert found.between_faults_s == pytest.approx(5400, rel=0.01)
    assert found.best_interval_s == pytest.approx(322, rel=0.02)
    assert found.cost_share == pytest.approx(10 / 110 + 55 / 5400, rel=0.02)
    figures = {name: (value, meaning) for name, value, meaning in summary.figures(life)}
    value, meaning = figures["Best interval"]
    assert value.startswith("5 min ")
    assert "(2 so far): checkpoints and repeated steps would cost 6.0 % instead of 10.0 % (Daly 2006)" in meaning


def test_what_was_asked_for_is_no_fault():
    job = _job(faults=0)
    job.say(3600, "restart_requested", "a restart was requested", cycle=0)
    job.decide(3600.01, "a restart was requested", cycle=0)
    job.stop(3600.1, cycle=0, ranks=range(2))
    job.begin(3601, cycle=1, ranks=range(2))
    (found,) = _life(job, now_s=3700).checkpoints
    assert found.best_interval_s is None


def test_the_first_checkpoint_alone_counts_from_the_start_of_the_ranks():
    job = Told()
    job.begin(0, cycle=0, ranks=range(1))
    _wrote(job, 60.1, 1, 5.0)
    (found,) = _life(job, now_s=100).checkpoints
    assert (found.pause_s, found.interval_s) == (5.0, pytest.approx(55.0))


def test_each_section_of_checkpoints_is_judged_the_one_that_takes_longest_first():
    job = _job(faults=2)
    for cycle in range(3):
        for times in (1, 2, 4):
            _wrote(job, 3601 * cycle + 10 + 800 * times, times, 0.5 * times, cycle=cycle, section="checkpoint_small")
    life = _life(job, now_s=3 * 3601)
    assert [(each.section, each.times, each.pause_s) for each in life.checkpoints] == [
        ("checkpointing", 96, 10.0), ("checkpoint_small", 12, 0.5)
    ]  # fmt: skip
    told = [(name, meaning) for name, _, meaning in summary.figures(life) if name in ("Checkpoints", "Best interval")]
    assert [name for name, _ in told] == ["Checkpoints", "Best interval"] * 2
    assert all("(checkpointing)" in meaning for _, meaning in told[:2])
    assert all("(checkpoint_small)" in meaning for _, meaning in told[2:])
    assert "if ranks resumed from these alone" in told[3][1]
    document = json.loads(msgspec.json.encode(document_of(life)))
    assert document["checkpoints"]["section"] == "checkpointing"
    assert [each["section"] for each in document["more_checkpoints"]] == ["checkpoint_small"]


@pytest.mark.parametrize("times", ["0", "-1", "many", "", "1e9"])
def test_what_is_not_a_count_is_not_read(times: str):
    job = Told()
    job.begin(0, cycle=0, ranks=range(1))
    job.say(60, "checkpoints_measured", details=[("section", "c"), ("times", times), ("total_s", "5")])
    assert _life(job, now_s=100).checkpoints == ()


@given(pause_s=st.floats(0.1, 600), between_s=st.floats(60, 1e7), factor=st.floats(0.05, 20))
def test_no_other_interval_costs_noticeably_less(pause_s: float, between_s: float, factor: float):
    best_s = best_interval_s(pause_s, between_s)
    least, other = cost_share(best_s, pause_s, between_s), cost_share(factor * best_s, pause_s, between_s)
    assert 0 <= least <= 1
    assert least <= other + (0.002 if pause_s < between_s / 2 else 0.1)


def test_an_interval_of_weeks_at_a_fault_every_second_costs_all():
    assert cost_share(1e7, 1.0, 1.0) == pytest.approx(1.0)


def test_the_simulation_of_a_cluster_agrees():
    nodes, mtbf_s, pause_s = 16, 40 * 3600.0, 30.0
    best_s = best_interval_s(pause_s, mtbf_s / nodes)

    def goodput(interval_s: float) -> float:
        scenario = Scenario(
            nodes=nodes, spares=4, mtbf_s=mtbf_s, lost_share=0.0, hang_share=0.0, load_s=0.0,
            checkpoint_interval_s=interval_s, checkpoint_pause_s=pause_s,
        )  # fmt: skip
        return simulate(scenario, seed=1).goodput

    least = 1 - goodput(best_s)
    assert least == pytest.approx(cost_share(best_s, pause_s, mtbf_s / nodes), rel=0.1)
    assert least < 1 - goodput(best_s / 3)
    assert least < 1 - goodput(best_s * 3)
