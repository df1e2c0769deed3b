"""Which texts does the leader of a large job keep of its nodes, one for each, and which have changed since last time?

With thousands of nodes, writing all of them in each turn would cost more than the turn. So each node has a text with
its state, and one with the conversation with it. Nodes keep their order: the coordinator goes through them in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeVar, cast

import msgspec

from supervisor.core.cluster import coordinator_states
from supervisor.core.cluster.node_states import Member, Members
from supervisor.core.session_state import JobSessions, NodeSessionState
from supervisor.engine.job_record import JobRecord, RecordedCycle
from supervisor.engine.recovery import record_text
from supervisor.engine.recovery.record_text import UnreadableError

NODE, SESSION_OF, TAKEN = "node ", "letters ", "taken "  # each is followed by the node's name
PLACES = "places"  # of the nodes in the newest cycle
CYCLE = "recorded cycle"

_Record = TypeVar("_Record")


class KeptNode(msgspec.Struct, frozen=True, omit_defaults=True):
    number: int  # the node's place in the order of all nodes
    member: Member


class NodeParts:
    """The parts of one job that one spawner keeps."""

    def __init__(self) -> None:
        self._members: Members | None = None
        self._numbers: dict[str, int] = {}
        self._places: object = None
        self._cycle: object = None

    @property
    def is_begun(self) -> bool:
        """Whether everything was written once, so that changes are enough from now on."""
        return self._members is not None

    def changes(self, job: JobRecord, led: coordinator_states.State, sessions: JobSessions | None) -> dict[str, str]:
        """Returns the texts that have changed; "": the text is no longer needed. All of them the first time."""
        members, anew = led.members, led.members.take_changed()
        lives, job.taken_anew = job.taken_anew, {}
        texts: dict[str, str] = {}
        if members is not self._members:
            texts = {NODE + name: "" for name in self._numbers if name not in members}
            self._members, self._numbers = members, {name: number for number, name in enumerate(members)}
            anew, lives = dict.fromkeys(members), dict.fromkeys(job.taken)
        for name in anew:
            number = self._numbers.setdefault(name, len(self._numbers))
            texts[NODE + name] = _text(KeptNode(number, members[name]))
        if sessions is not None:
            for each in sessions.nodes:
                texts[SESSION_OF + each.node] = _text(each)
            for name in sessions.left:
                texts[SESSION_OF + name] = ""
        for life in lives:
            texts[f"{TAKEN}{life[1]} {life[0]}"] = str(job.taken[life])
        return texts | self._changed_lists(job, led)

    def _changed_lists(self, job: JobRecord, led: coordinator_states.State) -> dict[str, str]:
        texts: dict[str, str] = {}
        if led.parts is not self._places:
            self._places = led.parts
            texts[PLACES] = record_text.write((led.parts, led.processes))
        cycle = job.recorded_cycle
        key = cycle and (id(cycle), len(cycle.parts), cycle.standby, cycle.generation, cycle.ended_at_ns)
        if key != self._cycle:
            self._cycle = key
            texts[CYCLE] = record_text.write(cycle)
        return texts


def without_nodes(led: coordinator_states.State) -> coordinator_states.State:
    """Returns the rest of a coordinator, whose nodes have texts of their own."""
    known = led.members
    bare = Members(known.segment, known.group_size, witnesses=known.witnesses)
    return msgspec.structs.replace(led, members=bare, parts=(), processes=())


def with_nodes(bare: coordinator_states.State, texts: Mapping[str, str], count: int) -> coordinator_states.State:
    """Returns the whole coordinator. Raises UnreadableError if the texts do not have that many nodes."""
    nodes = {name.removeprefix(NODE): text for name, text in texts.items() if text and name.startswith(NODE)}
    kept = sorted(((_read(text, KeptNode), name) for name, text in nodes.items()), key=lambda each: each[0].number)
    if [each.number for each, _ in kept] != [*range(count)]:
        raise UnreadableError(f"cannot read the nodes of the job: {len(kept)} of {count} were kept")
    members = Members(bare.members.segment, bare.members.group_size)
    for each, name in kept:
        members.put(name, each.member)
    members.witnesses = bare.members.witnesses
    members.take_changed()
    places = record_text.read(texts.get(PLACES) or "[[],[]]")
    parts, processes = cast("tuple[tuple[str, ...], tuple[str, ...]]", places)
    return msgspec.structs.replace(bare, members=members, parts=parts, processes=processes)


def sessions_of(texts: Mapping[str, str]) -> tuple[NodeSessionState, ...]:
    return tuple(_read(text, NodeSessionState) for name, text in texts.items() if text and name.startswith(SESSION_OF))


def taken(texts: Mapping[str, str]) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for name, text in texts.items():
        if text and name.startswith(TAKEN):
            submitted_at_ns, _, node = name.removeprefix(TAKEN).partition(" ")
            found[node, int(submitted_at_ns)] = int(text)
    return found


def recorded_cycle(texts: Mapping[str, str]) -> RecordedCycle | None:
    found = record_text.read(texts.get(CYCLE) or "null")
    return found if isinstance(found, RecordedCycle) else None


def _text(record: KeptNode | NodeSessionState) -> str:
    """Encodes a record whose types are all known, at a tenth of the cost of `record_text`."""
    try:
        return msgspec.json.encode(record).decode()
    except UnicodeEncodeError:  # bytes of a name that are not text, as Python represents them
        return json.dumps(msgspec.to_builtins(record), separators=(",", ":"))


def _read(text: str, kind: type[_Record]) -> _Record:
    try:
        return msgspec.convert(json.loads(text), kind)
    except (ValueError, msgspec.ValidationError, RecursionError) as error:
        raise UnreadableError(f"cannot read a record: {error}") from error
