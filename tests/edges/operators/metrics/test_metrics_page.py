"""Can Prometheus read the page, and does it follow the rules for names?"""

from __future__ import annotations

import re
from pathlib import Path

from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from supervisor.core.event_kinds import KINDS
from supervisor.core.facts import JobState
from supervisor.core.stragglers.straggler_messages import Straggler
from supervisor.edges.operators.metrics import metrics_page as pages
from supervisor.edges.operators.metrics.event_counters import ELSEWHERE, INSIDE, EventCounters
from supervisor.ports.reports import CheckReport, JobReport, NodeReport, RecordedEvent
from tests.edges.operators.fake_job_service import running

NODE = NodeReport("n0", "ready", version="1.2.3")
DOCUMENT = Path(__file__).parents[4] / "docs/metrics.md"


def read(
    *jobs: JobReport, counters: EventCounters | None = None, node: NodeReport = NODE
) -> dict[tuple[str, ...], float]:
    """Returns (name, label values in the order of the labels' names) → value."""
    text = pages.page(counters or EventCounters(), jobs, node, lag_s=0.25).decode()
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_job_and_its_ranks():
    found = read(running("a", ranks=2), replace(running("b"), state=JobState.SUCCEEDED))
    assert found["holdfast_jobs", "running"] == 1
    assert found["holdfast_jobs", "restarting"] == 0
    assert found["holdfast_job_running", "a"] == 1
    assert found["holdfast_job_cycle", "a"] == 2
    assert found["holdfast_job_restarts_used", "a"] == 1
    assert found["holdfast_job_restarts_allowed", "a"] == 3
    assert found["holdfast_rank_heartbeat_age_seconds", "a", "n0", "1"] == 0.25
    assert found["holdfast_rank_heartbeat_limit_seconds", "a", "n0", "0"] == 45.0
    assert not [key for key in found if "b" in key[1:]], "a job that has ended is no series"


def test_slow_ranks():
    node = Straggler("forward", "n1", (2, 3), True, 1.5, 0.3, 0.2, 4, "node n1 is slow")
    found = read(replace(running("a"), stragglers=(node,)))
    assert found["holdfast_straggler_ratio", "a", "n1", "2", "forward"] == 1.5
    assert found["holdfast_straggler_ratio", "a", "n1", "3", "forward"] == 1.5


def test_the_supervisor_itself():
    found = read(node=replace(NODE, state="cordoned"))
    assert found["holdfast_build_info", "1.2.3"] == 1
    assert found["holdfast_node_ready",] == 0
    assert found["holdfast_loop_lag_seconds",] == 0.25
    assert found["holdfast_supervisor_process_resident_memory_bytes",] > 1 << 20


def test_what_checks_of_the_node_have_found():
    checks = (CheckReport("storage", "unhealthy", "it is gone", 0.5, "/data"), CheckReport("gpu", "healthy", "", 0.25))
    found = read(node=replace(NODE, checks=checks))
    assert found["holdfast_node_check", "storage", "/data", "unhealthy"] == 1
    assert found["holdfast_node_check", "gpu", "", "healthy"] == 1
    assert found["holdfast_node_check_seconds", "storage", "/data"] == 0.5


def test_what_the_meter_counted():
    counters = EventCounters()
    for at_s, kind in ((1, "worker_failed"), (1, "restart_decided"), (3, "running_again")):
        counters.take(RecordedEvent("j", 1, at_s * 10**9, kind, ""))
    found = read(counters=counters)
    assert found["holdfast_restarts_total", "worker_failed"] == 1
    assert found["holdfast_events_total", "running_again"] == 1
    assert found["holdfast_lost_seconds_total",] == 2
    assert found["holdfast_recovery_seconds_count", "whole"] == 1
    assert found["holdfast_recovery_seconds_sum", "whole"] == 2
    assert found["holdfast_recovery_seconds_bucket", "1.0", "whole"] == 0
    assert found["holdfast_recovery_seconds_bucket", "2.0", "whole"] == 1
    assert found["holdfast_recovery_seconds_bucket", "+Inf", "whole"] == 1


def test_counters_begin_at_zero_so_the_first_restart_is_an_increase():
    before = read()
    counted = {key for key in before if key[0] in ("holdfast_restarts_total", "holdfast_events_total")}
    assert {before[key] for key in counted} == {0}
    assert {kind for name, kind in counted if name == "holdfast_events_total"} == KINDS.keys()
    counters = EventCounters()
    for cause in ("worker_failed", "hang_detected", "node_lost", "restart_requested", "some_news"):
        for kind in (cause, "restart_decided", "running_again"):
            counters.take(RecordedEvent("j", 1, 10**9, kind, ""))
    for kind in ("iteration_interrupted", "iteration_restarted"):
        counters.take(RecordedEvent("j", 1, 10**9, kind, ""))
    after = read(counters=counters)
    risen = {key for key in after if key[0] == "holdfast_restarts_total" and after[key]}
    assert {cause for _, cause in risen} == {
        "worker_failed", "hang_detected", "node_lost", "restart_requested", INSIDE, ELSEWHERE,
    }  # fmt: skip
    assert after.keys() - before.keys() == {("holdfast_events_total", "some_news")}


def test_names_keep_prometheus_rules():
    """Checks base units, _total only for counters, and help texts that are full sentences."""
    text = pages.page(EventCounters(), [running()], NODE, lag_s=0.0).decode()
    families = list(text_string_to_metric_families(text))
    assert len(families) > 10
    for family in families:
        assert re.fullmatch(r"holdfast_[a-z_]+", family.name)
        assert not re.search(r"_(ms|milliseconds|minutes|kib|mib|percent)(_|$)", family.name)
        assert family.documentation.endswith("."), family.name
        if family.type == "counter":
            assert f"{family.name}_total" in text


def test_the_documents_name_each_metric_and_no_other():
    text = pages.page(EventCounters(), [running()], NODE, lag_s=0.0).decode()
    families = {name for name in re.findall(r"(?m)^# TYPE (\w+) ", text) if "_supervisor_process_" not in name}
    assert families == set(re.findall(r"`(holdfast_[a-z_]+)`", DOCUMENT.read_text()))


def test_many_jobs_make_a_bounded_page():
    found = read(*(running(f"j{number}", ranks=1) for number in range(pages.JOBS_MAX + 5)))
    assert sum(key[0] == "holdfast_job_cycle" for key in found) == pages.JOBS_MAX
