"""Whatever another user's supervisor says: does every command show something, and nothing that controls a terminal?"""

from __future__ import annotations

import json
import unicodedata

from holdfast_wire.v1 import control_pb2 as wire
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.cli import command_json, jobs, output, status
from supervisor.cli.supervisor_discovery import FoundJob
from supervisor.cli.top_view import rows
from supervisor.cli.web_page.rank_rows import ranks_document
from supervisor.edges.operators import control_decoding as answers
from supervisor.edges.operators.event_json import event_document
from supervisor.report.page import page_of
from supervisor.report.report_json import document_of
from supervisor.report.terminal_report import text_of
from supervisor.report.timeline.timeline_builder import life_of

NOW_NS = 1_800_000_000 * 10**9
TEXT = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["worker_failed", "hang_detected", "root_cause_found", "restart_decided", "cycle_started", "workers_started",
         "stacks_collected", "job_ended", "worker_started", "workers_stopping", "node_lost", "straggler_found",
         "rank 99999999999 is silent for 1e999 s", "rank 1 sent nothing for 99e99 s (limit 1 s)",
         "restarts used 999999999999999999999999 of 1", "node x of group rank 1 is lost", "\x1b[31m", "²"]
    ),
)  # fmt: skip
KEYS = st.sampled_from(
    ["arrived_at_ns", "culprits", "ranks 0", "straggler_node", "ranks", "source", "took_s", "value.x"]
)
INT64 = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, 2**63 - 1, -(2**63), NOW_NS]))
UINT32 = st.one_of(st.integers(0, 2**32 - 1), st.integers(0, 3))
INT32 = st.integers(-(2**31), 2**31 - 1)
FLOATS = st.floats()
CHECKS = st.builds(wire.Check, check=TEXT, subject=TEXT, verdict=TEXT, reason=TEXT, took_s=FLOATS, found_at_ns=INT64)
SECTIONS = st.builds(wire.Section, name=TEXT, age_s=FLOATS, limit_s=st.none() | FLOATS)
RANKS = st.builds(
    wire.Rank, rank=UINT32, local_rank=UINT32, node=TEXT, pid=st.none() | INT64, state=TEXT,
    heartbeat_age_s=st.none() | FLOATS, sections=st.lists(SECTIONS, max_size=2), cycle_started_at_ns=st.none() | INT64,
    exit_code=st.none() | INT32, exit_signal=st.none() | INT32, heartbeat_limit_s=st.none() | FLOATS,
)  # fmt: skip
NODES = st.builds(
    wire.JobNode, name=TEXT, state=TEXT, group_rank=st.none() | UINT32, reason=TEXT, heard_at_ns=st.none() | INT64,
    lost_at_ns=st.none() | INT64, ranks=st.lists(UINT32, max_size=3), log_dir=TEXT, checks=st.lists(CHECKS, max_size=2),
)  # fmt: skip
SLOW = st.builds(
    wire.Straggler, section=TEXT, node=TEXT, ranks=st.lists(UINT32, max_size=2), is_node=st.booleans(), ratio=FLOATS,
    took_s=FLOATS, median_s=FLOATS, of_ranks=UINT32, reason=TEXT,
)  # fmt: skip
JOBS = st.builds(
    wire.Job, job_id=TEXT, state=st.integers(0, 9), cycle=UINT32, iteration=UINT32, max_restarts=UINT32,
    restarts_used=UINT32, reason=TEXT, nodes=st.lists(NODES, max_size=2), ranks=st.lists(RANKS, max_size=3),
    exit_code=st.none() | INT32, submitted_at_ns=INT64, ended_at_ns=st.none() | INT64, log_dir=TEXT,
    command=st.lists(TEXT, max_size=2), supervisor_pid=INT32, stragglers=st.lists(SLOW, max_size=2),
)  # fmt: skip
EVENTS = st.builds(
    wire.Event, at_ns=INT64, job_id=TEXT, cycle=UINT32, iteration=UINT32, node=TEXT, rank=st.none() | UINT32, kind=TEXT,
    reason=TEXT, details=st.dictionaries(KEYS, TEXT | st.integers(0).map(str), max_size=3),
    sequence=st.integers(0, 2**64 - 1),
)  # fmt: skip
CONTROLS = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # controls, formats such as the direction of writing, ends of lines
PAPER = output.TextLayout(None, colours=False)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(JOBS, st.lists(EVENTS, max_size=6))
def test_each_command_shows_something_harmless(job: wire.Job, events: list[wire.Event]):
    report = answers.job_from_wire(job)
    told = [answers.event_from_wire(each) for each in events]
    found = FoundJob(report, None, uid=4711)
    life = life_of(report, told, now_ns=NOW_NS)
    shown = [
        status.job_text(found, PAPER),
        output.table(jobs.HEADS, [jobs.row(found)], PAPER),
        output.table(status.LIVE_HEADS, [status.live_row(found)], PAPER),
        *rows.job_row(found, NOW_NS).cells,
        *(cell for rank in report.ranks for cell in rows.rank_row(rank, NOW_NS).cells),
        *(rows.event_line(each, with_job=True) for each in told),
        text_of(life),
        page_of(life, made_at_ns=NOW_NS, version="1"),
    ]
    documents_told = [
        command_json.job_document(found),
        document_of(life),
        ranks_document(report, now_ns=NOW_NS, aged_s=1.0, every_s=2.0),
        *map(event_document, told),
    ]
    shown += [output.json_of(each, one_line=True) for each in documents_told]
    json.dumps(documents_told, allow_nan=False)
    for text in shown:
        assert not CONTROLS & {unicodedata.category(each) for each in text if each not in "\n\t"}, text
    for order in rows.RANK_ORDERS:
        sorted(report.ranks, key=order.key)
    for order in rows.JOB_ORDERS:
        sorted([report, report], key=order.key)
