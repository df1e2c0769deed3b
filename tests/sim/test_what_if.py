"""Do the answers of `holdfast simulate` match the arithmetic of faults and checkpoints?"""

from __future__ import annotations

import itertools
import json
import statistics
from pathlib import Path

import msgspec
import pytest

from supervisor.core.election.node_loss_detection import LOST_S
from supervisor.programs.simulation.picture import picture
from supervisor.programs.simulation.scenario import DAY_S, Life, Scenario
from supervisor.programs.simulation.what_if import simulate

BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks.json"


def parts_s(life: Life) -> float:
    return sum(value for name, value in msgspec.structs.asdict(life).items() if name.endswith("_s"))


@pytest.mark.parametrize("spares", [0, 2, 20])
def test_all_time_is_accounted_for(spares: int):
    scenario = Scenario(50, spares, mtbf_s=20 * DAY_S)
    life = simulate(scenario, seed=3)
    assert parts_s(life) == pytest.approx(scenario.duration_s)
    assert sum(to_s - from_s for from_s, to_s, _ in life.spans) == pytest.approx(scenario.duration_s)
    assert simulate(scenario, seed=3) == life


def test_without_faults_only_checkpoints_and_the_start_cost_anything():
    scenario = Scenario(100, mtbf_s=1e15)
    life = simulate(scenario, seed=0)
    starts_s = scenario.cold_start_s + scenario.load_s
    whole_s = scenario.checkpoint_interval_s + scenario.checkpoint_pause_s
    expected = (scenario.duration_s - starts_s) / scenario.duration_s * scenario.checkpoint_interval_s / whole_s
    assert life.goodput == pytest.approx(expected, rel=1e-3)
    assert (life.faults, life.restarts, life.jobs) == (0, 0, 1)


def test_each_fault_costs_half_an_interval_the_load_and_its_time_to_be_noticed():
    scenario = Scenario(40, 8, mtbf_s=33 * DAY_S, hang_share=0.0)
    lives = [simulate(scenario, seed=seed) for seed in range(12)]
    faults = statistics.mean(life.faults for life in lives)
    rate = scenario.nodes / scenario.mtbf_s * scenario.duration_s
    assert faults == pytest.approx(rate, rel=0.15)
    redone_s = statistics.mean(life.redone_s / life.faults for life in lives)
    assert redone_s == pytest.approx(scenario.checkpoint_interval_s / 2, rel=0.15)
    started_s = statistics.mean(life.starting_s / (life.restarts + 1) for life in lives)
    assert started_s == pytest.approx(scenario.load_s + scenario.restart_s, rel=0.05)
    assert all(life.restarts <= life.units <= life.faults for life in lives)


def test_a_job_waits_without_a_spare_and_goes_on_with_one():
    scenario = Scenario(50, 0, mtbf_s=30 * DAY_S, repair_s=600.0, hang_share=0.0)
    alone = simulate(scenario, seed=1)
    helped = simulate(msgspec.structs.replace(scenario, spares=5), seed=1)
    assert alone.waiting_s > 50 * helped.waiting_s
    assert helped.spares_used
    assert not alone.spares_used
    assert helped.goodput > alone.goodput


def test_a_job_whose_budget_is_used_up_is_queued_again():
    life = simulate(Scenario(50, 5, mtbf_s=10 * DAY_S, max_restarts=2), seed=1)
    assert life.jobs > 10
    assert "restarts used 2 of 2" in life.last_end
    assert life.requeued_s >= (life.jobs - 1) * 300.0


@pytest.mark.parametrize("seed", range(4))
def test_a_hang_of_a_job_that_has_ended_fails_no_later_one(seed: int):
    """Often two ranks hang before the first is noticed, and the next job starts before the second would be."""
    scenario = Scenario(
        20, mtbf_s=DAY_S / 4, lost_share=0.0, hang_share=1.0, max_restarts=0, requeue_s=10.0, duration_s=10 * DAY_S
    )
    life = simulate(scenario, seed=seed)
    assert {before[2] for before, after in itertools.pairwise(life.spans) if after[2] == "requeued"} == {"unnoticed"}


@pytest.mark.parametrize("seed", range(4))
def test_a_job_trains_once_its_own_ranks_have_loaded(seed: int):
    """Ranks often fail while they load, and the next job starts before they would have loaded."""
    scenario = Scenario(
        20, mtbf_s=DAY_S / 4, lost_share=0.0, hang_share=0.0, load_s=600.0, max_restarts=0, requeue_s=10.0,
        duration_s=10 * DAY_S,
    )  # fmt: skip
    steps = itertools.pairwise(simulate(scenario, seed=seed).spans)
    loads_s = [before[1] - before[0] for before, after in steps if (before[2], after[2]) == ("starting", "redone")]
    assert len(loads_s) > 50
    assert loads_s == pytest.approx([scenario.cold_start_s + scenario.load_s] * len(loads_s))


@pytest.mark.parametrize("seed", range(4))
def test_the_end_of_a_job_submits_one_job(seed: int):
    """Every fault ends a job, and nodes are lost while the next one is queued, too."""
    scenario = Scenario(
        20, 20, mtbf_s=DAY_S, lost_share=1.0, repair_s=3600.0, max_restarts=0, requeue_s=1800.0,
        duration_s=10 * DAY_S,
    )  # fmt: skip
    life = simulate(scenario, seed=seed)
    assert 50 < life.jobs - 1 <= life.faults


def test_what_is_assumed_is_what_was_measured():
    """Approximately: the page is measured again from time to time."""
    rows = {row["key"]: row for row in json.loads(BENCHMARKS.read_text())["rows"]}
    medians = {
        key: statistics.median(rows[key]["samples"]["holdfast"]) for key in ("restart_torch", "cold_start_torch")
    }
    assumed = Scenario(1)
    assert assumed.restart_s == pytest.approx(medians["restart_torch"], rel=0.5)
    assert assumed.cold_start_s == pytest.approx(medians["cold_start_torch"], rel=0.5)
    assert assumed.notice_loss_s == LOST_S


def test_a_picture_has_a_lane_for_each_life():
    scenario = Scenario(20, 1, mtbf_s=10 * DAY_S)
    lives = [(f"seed {seed}", simulate(scenario, seed=seed)) for seed in range(3)]
    drawn = picture("20 nodes <&> 1 spare", lives, scenario.duration_s)
    assert drawn.startswith("<svg")
    assert "20 nodes &lt;&amp;&gt; 1 spare" in drawn
    assert drawn.count("seed ") == 3
    assert drawn.count('class="useful"') > 10
