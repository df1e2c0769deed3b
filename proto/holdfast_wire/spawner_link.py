"""What a supervisor and the spawner of one job say to each other: JSON objects in frames (framing.py).

JSON and not protobuf, because the spawner is the interpreter from which the user's script is forked: what it imports,
the script would find already imported. The spawner holds no policy: it does what it is told and reports what happened.
Every message is an object with a "type"; the named tuples here are the whole vocabulary (a dataclass takes a
millisecond to define, and the first workers would wait for each). Times are CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

import json
from typing import NamedTuple, cast

PROTOCOL = 1


# --- to the spawner ------------------------------------------------------------------------------------------------


class StreamPlan(NamedTuple):
    """Where one output stream of one worker goes.

    `console`: to the spawner's own stdout or stderr. Without prefix and file the worker inherits that descriptor
    itself when it is a terminal. `file`: a path that gets the stream; `direct` opens it in the worker (--redirects),
    else the spawner copies into it, at most `file_bytes_max` bytes with one rotation to `<file>.1`.
    """

    console: bool = True
    prefix: str = ""
    file: str = ""
    direct: bool = False
    file_bytes_max: int = 0


class WorkerPlan(NamedTuple):
    local_rank: int
    rank: int
    env: dict[str, str]  # set over the spawner's environment
    stdout: StreamPlan = StreamPlan()
    stderr: StreamPlan = StreamPlan()
    exec_prefix: tuple[str, ...] = ()  # numactl and its arguments; not empty: this worker is exec'ed
    cpus: tuple[int, ...] = ()  # to which the worker is bound, as far as the spawner may use them; empty: to none
    memory_node: int = -1  # from which it gets its memory; -1: from any
    memory_strict: bool = True
    # The file of the cycle, to which both streams go as lines with this prefix, in the place of what the plans say.
    cycle_log: str = ""
    cycle_log_prefix: str = ""
    cycle_log_door: str = ""  # the socket of this node's sender to the log server that writes it; "": there is none


class PrepareStore(NamedTuple):
    """Serve a fresh TCPStore for `cycle` (port 0: choose one). Answered by StoreReady or StoreFailed."""

    cycle: int
    host: str
    port: int = 0
    serve: bool = True  # False: only choose a free port and say it (rank 0 hosts the store itself)


class ForkAhead(NamedTuple):
    """So many workers will be spawned for `cycle`; what of that can be done before is done now. Not answered."""

    cycle: int
    workers: int


class Spawn(NamedTuple):
    """Start these workers. Each is answered by Spawned or SpawnFailed.

    `more`: the order was too long for one frame (`payloads`), and further workers of it follow in the next message.
    """

    cycle: int
    workers: tuple[WorkerPlan, ...]
    more: bool = False


class Signal(NamedTuple):
    """Send `signal` to the given workers of `cycle` (all: empty), to their whole sessions if `tree`.

    `sessions`: pids of workers that have been reaped; what is left of the sessions that they led gets it, too.
    """

    cycle: int
    signal: int
    local_ranks: tuple[int, ...] = ()
    tree: bool = True
    resume: bool = False  # SIGCONT first
    sessions: tuple[int, ...] = ()


class KillTree(NamedTuple):
    """SIGKILL everything of `cycle`, escapees and store host included, and reap it. Answered by Emptied."""

    cycle: int


class Fence(NamedTuple):
    """At `until_ns`, kill everything that was started, unless a later Fence comes before. Not answered.

    The supervisor may stand still then, and another node may begin the job's next cycle.
    """

    until_ns: int


class End(NamedTuple):
    """Kill what is left, answer Ended and exit 0."""


Order = PrepareStore | ForkAhead | Spawn | Signal | KillTree | Fence | End


class Keep(NamedTuple):
    """Keep these texts for a supervisor that comes back, and carry out the orders that follow from them. Not answered.

    One frame, so that no order is known here without the state that led to it, and the reverse. A text that is not
    named stays. `taken`: so many reports of this spawner, Ready being the first, are part of that state.
    """

    texts: dict[str, str]
    taken: int
    orders: tuple[Order, ...] = ()


# --- from the spawner ----------------------------------------------------------------------------------------------


class Ready(NamedTuple):
    """Sent once, when workers can be spawned; `method` is how they will be.

    `refusal`: why the job's command can't be run at all, "" where it can; the job ends with `refusal_code` then.
    """

    pid: int
    protocol: int
    python: str  # version
    method: str  # "fork" or "exec"
    method_reason: str  # why, in one sentence
    preloaded: tuple[str, ...]  # modules loaded ahead
    cgroup: str  # the cgroup v2 folder under which a cycle's cgroup is made; "" if there is none
    refusal: str = ""
    refusal_code: int = 1
    lost: str = ""  # for people: what is slower than it could be, why, and what they can do


class StoreReady(NamedTuple):
    cycle: int
    host: str
    port: int


class StoreFailed(NamedTuple):
    cycle: int
    reason: str


class Spawned(NamedTuple):
    cycle: int
    local_rank: int
    pid: int
    at_ns: int
    method: str  # "fork" or "exec"


class SpawnFailed(NamedTuple):
    cycle: int
    local_rank: int
    reason: str  # "cannot start …: …; …"
    exit_code: int  # as a shell would say: 127 not found, 126 not executable, else 1


class Exited(NamedTuple):
    """A worker was reaped. Exactly one of code and signal is not None.

    `error`: the line that says most in the file that torch's @record writes (TORCHELASTIC_ERROR_FILE), "" without one.
    """

    cycle: int
    local_rank: int
    pid: int
    code: int | None
    signal: int | None
    core_dumped: bool
    out_of_memory: bool
    at_ns: int
    error: str = ""
    error_at_unix_s: float | None = None


class StoreExited(NamedTuple):
    """The store host ended though nobody asked it to."""

    cycle: int
    pid: int
    reason: str


class Emptied(NamedTuple):
    """Nothing of `cycle` is left. `stuck_pids` could not be killed (state D) and are given up."""

    cycle: int
    killed: int
    stuck_pids: tuple[int, ...]


class OutputDropped(NamedTuple):
    """Log bytes that could not be kept (disk full, cap); never blocks a worker. Totals since the start.

    Local rank -1: of the file of a cycle, of any rank.
    """

    local_rank: int
    dropped_bytes: int
    reason: str


class CycleLogClosed(NamedTuple):
    """The file of a cycle is complete, as far as this node writes to it. Losses are of this spawner."""

    cycle: int
    path: str
    written_bytes: int
    lost_lines: int
    lost_bytes: int
    reason: str  # of the last loss


class Learned(NamedTuple):
    """The workers imported modules by themselves: a spawner with those loaded would start the next cycle sooner.

    Said twice at most: of torch at once, of all else later. Without steps, `reason` says what forbids it.
    """

    steps: tuple[str, ...]  # modules to import, and between them variables to set for that (NAME=value; -NAME= removes)
    folders: tuple[str, ...]  # on the workers' module path before the installed modules
    reason: str
    lost: str = ""  # for people: what stays slow, why, and what they can do


class Ended(NamedTuple):
    pass


class Kept(NamedTuple):
    """To a supervisor that has come back, after WelcomeBack: one text that the last one left here."""

    name: str
    text: str


class WelcomeBack(NamedTuple):
    """The first word to a supervisor that has come back; the descriptors of the job's claim come with it.

    `texts` Kept follow, then the reports after the first `taken`.
    """

    pid: int
    job_id: str
    ready: Ready  # as it was said to the first supervisor
    texts: int
    taken: int


class Unknown(NamedTuple):
    """A message of a later version, which nothing here can act on; an answer to it has a deadline there."""

    type: str


Report = (
    Ready | StoreReady | StoreFailed | Spawned | SpawnFailed | Exited | StoreExited | Emptied | OutputDropped
    | CycleLogClosed | Learned | Ended
)  # fmt: skip
ToSpawner = Order | Keep | Unknown
FromSpawner = Report | Kept | WelcomeBack | Unknown
Message = ToSpawner | FromSpawner

_TYPES: dict[str, type[Message]] = {
    kind.__name__: kind
    for kind in (
        PrepareStore, ForkAhead, Spawn, Signal, KillTree, Fence, End, Keep,
        Ready, StoreReady, StoreFailed, Spawned, SpawnFailed, Exited, StoreExited, Emptied, OutputDropped,
        CycleLogClosed, Learned, Ended, Kept, WelcomeBack,
    )
}  # fmt: skip

_NESTED: dict[str, type[StreamPlan]] = {"stdout": StreamPlan, "stderr": StreamPlan}


class SpawnerProtocolError(ValueError):
    """Raised for a frame that is no message of this vocabulary."""


def encode(message: Message) -> bytes:
    """The frame's payload for `message`."""
    return json.dumps(_typed(message), separators=(",", ":")).encode()


def payloads(message: Message, *, bytes_max: int) -> list[bytes]:
    """`message` in as many payloads as it takes: an order for many workers is split, the last part has `more` unset.

    What can't be split any further may be longer than `bytes_max`.
    """
    payload = encode(message)
    if len(payload) <= bytes_max or not isinstance(message, Spawn) or len(message.workers) < 2:
        return [payload]
    middle = len(message.workers) // 2
    first = message._replace(workers=message.workers[:middle], more=True)
    rest = message._replace(workers=message.workers[middle:])
    return payloads(first, bytes_max=bytes_max) + payloads(rest, bytes_max=bytes_max)


def decode(payload: bytes) -> Message:
    """The message in `payload`. Raises SpawnerProtocolError. Unknown fields are ignored; see Unknown."""
    try:
        return _of_type(json.loads(payload))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SpawnerProtocolError(f"cannot read a message of the spawner link: {error!r}") from error


def _typed(message: Message) -> dict[str, object]:
    return {"type": type(message).__name__} | _plain(message)


def _of_type(body: dict[str, object]) -> Message:
    name = body["type"]
    if not isinstance(name, str):
        raise TypeError(f"a type that is {name!r}")
    kind = _TYPES.get(name)
    return Unknown(name) if kind is None else _build(kind, body)


def _plain(message: Message) -> dict[str, object]:
    body: dict[str, object] = message._asdict()
    if isinstance(message, Keep):
        body["orders"] = [_typed(order) for order in message.orders]
    if isinstance(message, WelcomeBack):
        body["ready"] = _plain(message.ready)
    if isinstance(message, Spawn):
        shared = _shared_env(message.workers)
        body["shared_env"] = shared
        body["workers"] = [
            worker._asdict()
            | {"env": {name: value for name, value in worker.env.items() if name not in shared}}
            | {"stdout": worker.stdout._asdict(), "stderr": worker.stderr._asdict()}
            for worker in message.workers
        ]
    return body


def _shared_env(workers: tuple[WorkerPlan, ...]) -> dict[str, str]:
    """What all workers have alike crosses the link once."""
    if len(workers) < 2:
        return {}
    shared = dict(workers[0].env)
    for worker in workers[1:]:
        shared = {name: value for name, value in shared.items() if worker.env.get(name) == value}
    return shared


def _build(kind: type[Message], body: dict[str, object]) -> Message:
    values = _known(kind, body)
    if kind is Keep:
        orders = map(_of_type, cast("tuple[dict[str, object], ...]", values["orders"]))
        values["orders"] = tuple(order for order in orders if not isinstance(order, Unknown))
    if kind is WelcomeBack:
        values["ready"] = _build(Ready, cast("dict[str, object]", values["ready"]))
    if kind is Spawn:
        workers = cast("tuple[dict[str, object], ...]", values["workers"])
        shared = cast("dict[str, str]", body.get("shared_env", {}))
        values["workers"] = tuple(_worker(worker, shared) for worker in workers)
    return kind(**values)  # pyright: ignore[reportArgumentType]


def _worker(body: dict[str, object], shared_env: dict[str, str]) -> WorkerPlan:
    values = _known(WorkerPlan, body)
    values["env"] = shared_env | cast("dict[str, str]", values["env"])
    for name, kind in _NESTED.items():
        values[name] = kind(**_known(kind, cast("dict[str, object]", values.get(name, {}))))  # pyright: ignore[reportArgumentType]
    return WorkerPlan(**values)  # pyright: ignore[reportArgumentType]


def _known(kind: type[Message] | type[WorkerPlan] | type[StreamPlan], body: dict[str, object]) -> dict[str, object]:
    """The fields that the kind has; lists as the tuples that they were."""
    return {
        name: tuple(cast("list[object]", value)) if isinstance(value, list) else value
        for name, value in body.items()
        if name in kind._fields
    }
