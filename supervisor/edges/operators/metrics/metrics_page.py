"""What does Prometheus read of a supervisor? Prometheus's own library writes the page from the current state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from supervisor.core.event_kinds import KINDS
from supervisor.core.facts import JobState
from supervisor.edges.operators.metrics.event_counters import BUCKETS_S, RESTART_CAUSES, EventCounters
from supervisor.ports.reports import JobReport, NodeReport

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
JOBS_MAX = 200  # if there are more, ranks of only the newest are listed
_ENDED = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED})


def page(counters: EventCounters, jobs: Sequence[JobReport], node: NodeReport, *, lag_s: float) -> bytes:
    """Returns the page. `jobs`: live and just ended, newest first. `lag_s`: how long the supervisor's loop lagged."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(counters, jobs, node, lag_s))
    ProcessCollector(registry=registry, namespace="holdfast_supervisor")
    return generate_latest(registry)


class _Page(Collector):
    def __init__(self, counters: EventCounters, jobs: Sequence[JobReport], node: NodeReport, lag_s: float) -> None:
        self._counters, self._jobs, self._node, self._lag_s = counters, jobs, node, lag_s

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("holdfast_build", "Version of the supervisor.", {"version": self._node.version})
        yield GaugeMetricFamily(
            "holdfast_node_ready",
            "Whether the node takes jobs: 0 if it is cordoned.",
            float(self._node.state == "ready"),
        )
        yield GaugeMetricFamily("holdfast_loop_lag_seconds", "How late the supervisor's loop is.", self._lag_s)
        yield from self._checks()
        yield from self._counted()
        yield self._recoveries()
        yield from self._live([job for job in self._jobs if job.state not in _ENDED][:JOBS_MAX])

    def _checks(self) -> Iterator[Metric]:
        names = ["check", "subject"]
        verdict = GaugeMetricFamily(
            "holdfast_node_check",
            "The latest verdict of each check of this node, marked by 1.",
            labels=[*names, "verdict"],
        )
        took = GaugeMetricFamily("holdfast_node_check_seconds", "How long that check took.", labels=names)
        for each in self._node.checks:
            verdict.add_metric([each.check, each.subject, each.verdict], 1.0)
            took.add_metric([each.check, each.subject], each.took_s)
        yield from (verdict, took)

    def _counted(self) -> Iterator[Metric]:
        """Yields the counters. Known kinds begin at 0: a series that begins at 1 has not increased for Prometheus."""
        events = CounterMetricFamily("holdfast_events", "What happened to jobs, by kind of event.", labels=["kind"])
        for kind in sorted(KINDS.keys() | self._counters.events.keys()):
            events.add_metric([kind], self._counters.events[kind])
        yield events
        restarts = CounterMetricFamily(
            "holdfast_restarts",
            "Restarts by what led to them; inside_process: those of wrapped functions.",
            labels=["cause"],
        )
        for cause in sorted(RESTART_CAUSES):
            restarts.add_metric([cause], self._counters.restarts[cause])
        yield restarts
        yield CounterMetricFamily(
            "holdfast_lost_seconds", "Time between faults and the moments in which all workers ran again.",
            self._counters.lost_s,
        )  # fmt: skip

    def _recoveries(self) -> Metric:
        family = HistogramMetricFamily(
            "holdfast_recovery_seconds",
            "How long recoveries took: stop and start of workers, both together, and restarts inside the process.",
            labels=["phase"],
        )
        for phase, histogram in self._counters.recoveries.items():
            total, buckets = 0, list[tuple[str, float]]()
            for limit, count in zip((*map(str, BUCKETS_S), "+Inf"), histogram.counts, strict=True):
                total += count
                buckets.append((limit, total))
            family.add_metric([phase], buckets, histogram.sum_s)
        return family

    def _live(self, jobs: Sequence[JobReport]) -> Iterator[Metric]:
        states = Counter(job.state.value for job in jobs)
        by_state = GaugeMetricFamily("holdfast_jobs", "Live jobs by state.", labels=["state"])
        for state in JobState:
            if state not in _ENDED:
                by_state.add_metric([state.value], states[state.value])
        yield by_state
        runs = GaugeMetricFamily("holdfast_job_running", "Whether all workers of the job run.", labels=["job_id"])
        cycle = GaugeMetricFamily("holdfast_job_cycle", "Number of the job's cycle.", labels=["job_id"])
        used = GaugeMetricFamily("holdfast_job_restarts_used", "Restarts used of the budget.", labels=["job_id"])
        budget = GaugeMetricFamily("holdfast_job_restarts_allowed", "The budget of restarts.", labels=["job_id"])
        names = ["job_id", "rank", "node"]
        age = GaugeMetricFamily("holdfast_rank_heartbeat_age_seconds", "Since a rank's last heartbeat.", labels=names)
        limit = GaugeMetricFamily(
            "holdfast_rank_heartbeat_limit_seconds", "How long a rank's silence may last now.", labels=names
        )
        slow = GaugeMetricFamily(
            "holdfast_straggler_ratio",
            "How much longer than the median of all ranks a slow rank takes for a section; from the job's leader.",
            labels=[*names, "section"],
        )
        for job in jobs:
            for each in job.stragglers:
                for number in each.ranks:
                    slow.add_metric([job.job_id, str(number), each.node, each.section], each.ratio)
            runs.add_metric([job.job_id], float(job.state is JobState.RUNNING))
            cycle.add_metric([job.job_id], job.cycle)
            used.add_metric([job.job_id], job.restarts_used)
            budget.add_metric([job.job_id], job.max_restarts)
            for rank in job.ranks:
                labels = [job.job_id, str(rank.rank), rank.node]
                if rank.heartbeat_age_s is not None:
                    age.add_metric(labels, rank.heartbeat_age_s)
                if rank.heartbeat_limit_s is not None:
                    limit.add_metric(labels, rank.heartbeat_limit_s)
        yield from (runs, cycle, used, budget, age, limit, slow)
