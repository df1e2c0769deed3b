"""A newcomer that disagrees learns in what, with both values; one that agrees is asked nothing else."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from supervisor.core.cluster import settings_agreement
from supervisor.core.cluster.node_states import Member, Members, MemberState
from supervisor.core.facts import HangLimits, JobRules, NodeFacts, RendezvousRules, RestartPolicyName, RestartRules

OURS = JobRules(
    "job",
    8,
    hang_limits=HangLimits(sections=(("step", 30.0),)),
    restart=RestartRules(max_restarts=3, min_nodes=2),
    rendezvous=RendezvousRules(max_nodes=3, segment=2),
    facts=NodeFacts(0, "SLURM_PROCID", program="train.py"),
)


def among(**members: Member) -> Members:
    known = Members()
    for node, member in members.items():
        known.put(node, member)
    return known


NODES = among(a=Member(MemberState.RUNNING, facts=OURS.facts))


def other(value: object) -> object:
    """Returns a different value of the same type."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case None:
            return 7.5
        case RestartPolicyName():
            return RestartPolicyName.MIN_HEALTHY
        case tuple():
            return (*cast("tuple[tuple[str, float | None], ...]", value), ("save", None))
        case _:
            return f"{value}x"


def changed(rules: msgspec.Struct) -> list[tuple[str, msgspec.Struct]]:
    """Returns the same rules with one field changed, for each field."""
    found: list[tuple[str, msgspec.Struct]] = []
    for field in msgspec.structs.fields(rules):
        value = cast("object", getattr(rules, field.name))
        if field.name in settings_agreement.OWN:
            continue
        if isinstance(value, msgspec.Struct):
            found += [
                (f"{field.name}.{path}", msgspec.structs.replace(rules, **{field.name: part}))
                for path, part in changed(value)
            ]
        else:
            found.append((field.name, msgspec.structs.replace(rules, **{field.name: other(value)})))
    return found


def test_whatever_differs_is_named_with_both_values() -> None:
    for path, theirs in changed(OURS):
        assert isinstance(theirs, JobRules)
        text = settings_agreement.refusal("c", theirs, OURS, NODES)
        assert settings_agreement.FLAGS.get(path, path) in text, path
        assert text.startswith("node c has "), path
        assert text.endswith("; start it with the same"), path


@pytest.mark.parametrize(
    ("theirs", "text"),
    [
        (msgspec.structs.replace(OURS, facts=NodeFacts(1)), ""),
        (msgspec.structs.replace(OURS, prepares_ahead=True, forks_ahead=True, facts=NodeFacts(1)), ""),
        (msgspec.structs.replace(OURS, facts=NodeFacts(1, domain="x", program="train.py")), ""),
        (msgspec.structs.replace(OURS, facts=NodeFacts(program="eval.py")),
         "node c runs eval.py, and the other nodes of the job run train.py; start the same on each"),
        (msgspec.structs.replace(OURS, facts=NodeFacts()), ""),
        (msgspec.structs.replace(OURS, facts=NodeFacts(0, "GROUP_RANK")),
         "node c has GROUP_RANK 0, and so has node a of the job; give each node its own, or none"),
        (msgspec.structs.replace(OURS, local_world_size=4),
         "node c has --nproc-per-node 4, and the other nodes of the job have 8; start it with the same"),
        (msgspec.structs.replace(OURS, hang_limits=HangLimits()),
         "node c has --ft-rank-section-timeouts none, and the other nodes of the job have step:30; "
         "start it with the same"),
        (msgspec.structs.replace(OURS, rendezvous=RendezvousRules(max_nodes=3, segment=2, elastic=True)),
         "node c has --elastic on, and the other nodes of the job have off; start it with the same"),
    ],
)  # fmt: skip
def test_sentences(theirs: JobRules, text: str) -> None:
    assert settings_agreement.refusal("c", theirs, OURS, NODES) == text


def test_the_rank_of_a_node_that_is_gone_is_free() -> None:
    for state in (MemberState.LOST, MemberState.REFUSED, MemberState.INFORMED):
        assert settings_agreement.refusal("c", OURS, OURS, among(a=Member(state, facts=OURS.facts))) == ""
