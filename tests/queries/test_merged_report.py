"""Do the parts of several nodes make one job, whatever is known of each?"""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.cluster.status_view import Roster, RosterNode
from supervisor.core.facts import JobState
from supervisor.core.node.script_seen import NO_SIGN
from supervisor.ports.reports import CheckReport, JobNodeReport, JobReport, NodeReport, RankReport, SectionReport
from supervisor.queries.merged_report import HEALTHY_CHECKS_NODES_MAX, Known, apart, merged

NOW_NS = 100 * 10**9


def part(name: str, *ranks: int, cycle: int = 1, state: JobState = JobState.RUNNING, reason: str = "all run") -> Known:
    rows = tuple(
        RankReport(
            rank,
            number,
            name,
            "running",
            heartbeat_age_s=0.5,
            main_thread_age_s=0.25,
            sections=(SectionReport("step", 1.0, 3.0),),
        )
        for number, rank in enumerate(ranks)
    )
    own = JobNodeReport(name, "ready")
    report = JobReport("j", state, 1, cycle=cycle, reason=reason, nodes=(own,), ranks=rows, log_dir=f"/logs/{name}")
    return Known(report, NodeReport(name, "ready"), NOW_NS)


def running(*nodes: RosterNode, cycle: int = 1) -> Roster:
    return Roster(JobState.RUNNING, "", cycle, nodes)


def active(name: str, group_rank: int) -> RosterNode:
    return RosterNode(name, "active", group_rank)


def whole(found: Roster, **known: Known) -> JobReport:
    own = next(iter(known.values())).part
    return merged(own, found, known, now_ns=NOW_NS)


def test_the_parts_are_one():
    found = running(active("a", 0), active("b", 1), RosterNode("c", "spare", None))
    report = whole(found, a=part("a", 0, 1), b=part("b", 2, 3), c=part("c", cycle=0, state=JobState.RENDEZVOUS))
    assert (report.state, report.reason, report.cycle) == (JobState.RUNNING, "all run", 1)
    assert [(rank.rank, rank.node) for rank in report.ranks] == [(0, "a"), (1, "a"), (2, "b"), (3, "b")]
    assert [(node.name, node.state, node.group_rank, node.ranks) for node in report.nodes] == [
        ("a", "active", 0, (0, 1)), ("b", "active", 1, (2, 3)), ("c", "spare", None, ()),
    ]  # fmt: skip


def test_ranks_that_run_are_counted_in_good_english():
    found, starts = running(active("a", 0), active("b", 1)), "cycle 1 starts"
    assert whole(found, a=part("a", 0), b=part("b", 2, reason=starts)).reason == "2 ranks run on 2 nodes"
    assert whole(found, a=part("a", 0), b=part("b", reason=starts)).reason == "1 rank runs on 2 nodes"


def with_checks(known: Known, *checks: CheckReport) -> Known:
    own = JobNodeReport("itself", "ready", checks=checks)
    return msgspec.structs.replace(known, part=msgspec.structs.replace(known.part, nodes=(own,)))


def test_each_node_shows_its_checks_and_of_very_many_only_the_bad_ones():
    well, ill = CheckReport("nvhcd", "healthy"), CheckReport("storage", "unhealthy", "it is gone", subject="/data")
    found = running(active("a", 0), active("b", 1))
    report = whole(found, a=with_checks(part("a", 0), well), b=with_checks(part("b", 1), well, ill))
    assert [node.checks for node in report.nodes] == [(well,), (well, ill)]
    many = [active(f"n{each}", each) for each in range(HEALTHY_CHECKS_NODES_MAX + 1)]
    parts = {each.name: with_checks(part(each.name, each.group_rank or 0), well, ill) for each in many}
    assert [node.checks for node in whole(running(*many), **parts).nodes] == [(ill,)] * len(many)


def test_the_leader_may_be_a_spare():
    found = running(active("b", 0), RosterNode("a", "spare", None))
    report = whole(found, a=part("a", cycle=0, state=JobState.RENDEZVOUS, reason="waits"), b=part("b", 0, 1))
    assert (report.state, report.reason) == (JobState.RUNNING, "all run")


def test_a_node_that_has_not_connected_since_the_supervisors_return_is_said_to_be_missing():
    found = running(active("a", 0), active("b", 1), active("c", 2))
    own = part("a", 0, 1)
    report = merged(own.part, found, {"a": own}, now_ns=NOW_NS, unheard={"b": NOW_NS - 1, "c": NOW_NS - 2})
    assert report.reason == (
        "all run; 2 of 3 nodes have not connected to this supervisor yet, so their ranks are not shown"
    )
    assert [(node.name, node.heard_at_ns) for node in report.nodes] == [
        ("a", None), ("b", NOW_NS - 1), ("c", NOW_NS - 2),
    ]  # fmt: skip
    both = {"a": own, "b": part("b", 2, 3)}
    report = merged(own.part, found, both, now_ns=NOW_NS, unheard={"c": NOW_NS})
    assert report.reason.endswith("; 1 of 3 nodes has not connected to this supervisor yet, so its ranks are not shown")
    assert merged(own.part, running(active("a", 0)), both, now_ns=NOW_NS, unheard={"c": NOW_NS}).reason == "all run"


def test_while_a_new_leader_waits_its_reason_is_the_jobs():
    found = Roster(JobState.RUNNING, "another node leads the job now", 4, ())
    report = whole(found, a=part("a", cycle=0, state=JobState.RENDEZVOUS))
    assert (report.state, report.reason) == (JobState.RUNNING, "another node leads the job now")


def test_one_that_still_starts_is_named():
    found = running(active("a", 0), active("b", 1))
    report = whole(found, a=part("a", 0), b=part("b", 1, state=JobState.STARTING, reason="waits for its store"))
    assert (report.state, report.reason) == (JobState.STARTING, "node b: waits for its store")
    report = whole(found, a=part("a", 0), b=part("b", 1, cycle=0))
    assert (report.state, report.reason) == (JobState.STARTING, "cycle 1 starts")


def test_what_a_lost_node_said_last_is_still_there():
    lost = Known(part("b", 1).part, NodeReport("b", "lost"), NOW_NS - 10**9, False, NOW_NS, "node b is lost: silence")
    found = Roster(JobState.RESTARTING, "node b is lost", 1, (active("a", 0), RosterNode("b", "lost", None)))
    report = whole(found, a=part("a", 0), b=lost)
    assert [(rank.rank, rank.state) for rank in report.ranks] == [(0, "running"), (1, "lost")]
    node = report.nodes[1]
    assert (node.reason, node.lost_at_ns, node.heard_at_ns, node.ranks, node.log_dir) == (
        "node b is lost: silence", NOW_NS, NOW_NS - 10**9, (1,), "/logs/b",
    )  # fmt: skip
    found = running(active("a", 0), active("c", 1), RosterNode("b", "lost", None))
    report = whole(found, a=part("a", 0), b=lost, c=part("c", 1))
    assert [(rank.rank, rank.node) for rank in report.ranks] == [(0, "a"), (1, "c")]


def test_a_node_that_does_not_answer_is_shown_as_it_was_and_its_ages_grow():
    silent = Known(part("b", 1).part, NodeReport("b", "ready"), NOW_NS - 3 * 10**9, False)
    report = whole(running(active("a", 0), active("b", 1)), a=part("a", 0), b=silent)
    assert [rank.heartbeat_age_s for rank in report.ranks] == [0.5, 3.5]
    assert [rank.sections[0].age_s for rank in report.ranks] == [1.0, 4.0]
    assert [rank.main_thread_age_s for rank in report.ranks] == [0.25, 3.25]
    assert [node.heard_at_ns for node in report.nodes] == [None, NOW_NS - 3 * 10**9]


def test_without_a_leader_a_node_shows_itself_as_it_is_and_the_others_as_they_were():
    found = running(active("a", 0), active("b", 1))
    last = whole(found, a=part("a", 0), b=part("b", 1))
    own = part("b", 1, reason="own").part
    report = apart(last, own=own, heard_at_ns=NOW_NS, now_ns=NOW_NS + 2 * 10**9)
    assert report.reason == "own"
    assert [(rank.node, rank.heartbeat_age_s) for rank in report.ranks] == [("a", 2.5), ("b", 0.5)]
    assert [node.heard_at_ns for node in report.nodes] == [NOW_NS, None]


def test_without_a_leader_a_spare_does_not_take_itself_for_silent():
    last = whole(running(active("a", 0), RosterNode("b", "spare", None)), a=part("a", 0), b=part("b"))
    report = apart(last, own=part("b").part, heard_at_ns=NOW_NS, now_ns=NOW_NS + 12 * 10**9)
    assert [(node.name, node.heard_at_ns) for node in report.nodes] == [("a", NOW_NS), ("b", None)]


names = st.sampled_from("abcdef")


@given(
    st.lists(
        st.tuples(names, st.sampled_from(["active", "spare", "lost", "cordoned"])), unique_by=lambda each: each[0]
    ),
    st.dictionaries(names, st.tuples(st.integers(0, 2), st.booleans()), min_size=1),
)
def test_whatever_is_known_every_rank_is_there_once_and_every_node_too(
    nodes: list[tuple[str, str]], told: dict[str, tuple[int, bool]]
):
    actives = [name for name, state in nodes if state == "active"]
    found = running(
        *(RosterNode(name, state, actives.index(name) if state == "active" else None) for name, state in nodes)
    )
    known: dict[str, Known] = {}
    for name, (cycle, answers) in told.items():
        first = actives.index(name) if name in actives else 0
        known[name] = Known(
            part(name, 2 * first, 2 * first + 1, cycle=cycle).part, NodeReport(name, "ready"), 5, answers
        )
    report = merged(next(iter(known.values())).part, found, known, now_ns=NOW_NS)
    assert [node.name for node in report.nodes] == [name for name, _ in nodes]
    numbers = [rank.rank for rank in report.ranks]
    assert numbers == sorted(set(numbers))
    for name in actives:  # a running one is never hidden by a lost or idle node's report
        if name in known and known[name].part.cycle == 1:
            rank = 2 * actives.index(name)
            assert next(each for each in report.ranks if each.rank == rank).node in actives


def test_the_node_of_rank_0_says_when_the_script_was_seen():
    seen = Known(msgspec.structs.replace(part("b", 0).part, script="seen"), NodeReport("b", "ready"), NOW_NS)
    assert whole(running(active("b", 0), active("c", 1)), b=seen, c=part("c", 1)).script == "seen"


def test_a_sign_of_the_script_on_any_node_counts_and_that_of_the_lowest_rank_is_shown():
    def saying(name: str, rank: int, script: str, cycle: int = 1) -> Known:
        known = part(name, rank, cycle=cycle)
        return msgspec.structs.replace(known, part=msgspec.structs.replace(known.part, script=script))

    found = running(active("a", 0), active("b", 1), active("c", 2))
    a, b, c = saying("a", 0, NO_SIGN), saying("b", 8, NO_SIGN), saying("c", 16, "seen of 16")
    assert whole(found, a=a, b=b, c=c).script == "seen of 16"
    assert whole(found, a=a, b=saying("b", 8, "seen of 8"), c=c).script == "seen of 8"
    assert whole(found, a=a, b=b, c=saying("c", 16, "seen before", cycle=0)).script == NO_SIGN
    alone = apart(whole(found, a=a, b=b, c=c), own=b.part, heard_at_ns=NOW_NS, now_ns=NOW_NS)
    assert alone.script == "seen of 16"
