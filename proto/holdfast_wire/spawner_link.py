"""What do a supervisor and the spawner of one job say to each other?

They exchange JSON objects in frames (framing.py). JSON and not protobuf, because the user's script is forked from the
spawner's interpreter and would find every module that the spawner has imported. The spawner has no policy: it carries
out orders and reports what happened. Every message is an object with a "type"; the named tuples here are the whole
vocabulary (defining a dataclass takes a millisecond, for which the first workers would wait). Times are
CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

import json
from signal import SIGCONT, SIGKILL
from typing import NamedTuple, cast

PROTOCOL = 1


# --- to the spawner ------------------------------------------------------------------------------------------------


class StreamPlan(NamedTuple):
    """Says where one output stream of one worker goes.

    `console`: to the spawner's own stdout or stderr. Without prefix and file, a worker inherits that descriptor if it
    is a terminal. `file`: a path that receives the stream. With `direct` (--redirects), the worker opens it; otherwise
    the spawner copies the stream into it, at most `file_bytes_max` bytes with one rotation to `<file>.1`.
    """

    console: bool = True
    prefix: str = ""
    file: str = ""
    direct: bool = False
    file_bytes_max: int = 0


class WorkerPlan(NamedTuple):
    local_rank: int
    rank: int
    env: dict[str, str]  # overrides the spawner's environment
    stdout: StreamPlan = StreamPlan()
    stderr: StreamPlan = StreamPlan()
    exec_prefix: tuple[str, ...] = ()  # numactl and its arguments; not empty: this worker is started by exec
    cpus: tuple[int, ...] = ()  # CPUs to bind the worker to, as far as the spawner may use them; empty: unbound
    memory_node: int = -1  # NUMA node of its memory; -1: any
    memory_strict: bool = True
    # The cycle's log file. Both streams go there as lines with this prefix, instead of where the plans say.
    cycle_log: str = ""
    cycle_log_prefix: str = ""
    cycle_log_door: str = ""  # socket of this node's sender to the log server, which writes that file; "": none


HeldPage = tuple[int, int, int, str]  # see HoldPages


class PrepareStore(NamedTuple):
    """Orders a fresh TCPStore for `cycle` (port 0: any). Answered by StoreReady or StoreFailed."""

    cycle: int
    host: str
    port: int = 0
    serve: bool = True  # False: only choose and report a free port (rank 0 hosts the store itself)
    first_port: int = 0  # with port 0: the range for the store and its neighbours; 0: outside ip_local_port_range
    last_port: int = 0


class ForkAhead(NamedTuple):
    """Announces how many workers `cycle` will have, so that the spawner prepares them now. Not answered."""

    cycle: int
    workers: int


class Spawn(NamedTuple):
    """Starts these workers. Each is answered by Spawned or SpawnFailed.

    `more`: the order was too long for one frame (see `payloads`); the next message has further workers.
    """

    cycle: int
    workers: tuple[WorkerPlan, ...]
    more: bool = False


class Signal(NamedTuple):
    """Sends `signal` to the given workers of `cycle` (empty: all), or to their whole sessions if `tree`.

    `sessions`: pids of reaped workers; what is left of the sessions that they led gets the signal, too.
    """

    cycle: int
    signal: int
    local_ranks: tuple[int, ...] = ()
    tree: bool = True
    resume: bool = False  # one that is stopped shall act on the signal
    sessions: tuple[int, ...] = ()
    grace_s: float = 0.0  # after which the supervisor kills what is left; 0: unknown, or from an older supervisor

    @property
    def numbers(self) -> tuple[int, ...]:
        """What each process gets, in that order. SIGKILL ends one that is stopped; it must not run a moment before."""
        return (SIGCONT, self.signal) if self.resume and self.signal != SIGKILL else (self.signal,)


class KillTree(NamedTuple):
    """Kills and reaps everything of `cycle`, including escaped processes and the store host. Answered by Emptied."""

    cycle: int


class Fence(NamedTuple):
    """Kills everything that was started at `until_ns`, unless a later Fence comes first. Not answered.

    By then the supervisor may have stalled, and another node may begin the job's next cycle. If it moves the fence only
    after that (`at_ns`, when it gives this order), what it has ordered before is outdated.
    """

    until_ns: int
    at_ns: int = 0  # 0: an older supervisor, which does not say it


class End(NamedTuple):
    """Kills what is left, answers Ended and exits 0."""


Order = PrepareStore | ForkAhead | Spawn | Signal | KillTree | Fence | End


class Keep(NamedTuple):
    """Stores these texts for a returning supervisor, and carries out the orders that follow from them. Not answered.

    One frame carries both, so the spawner never has an order without the state that led to it, or the reverse. Texts
    that are not named stay, and an empty one is removed. `taken`: how many reports of this spawner, counted from Ready,
    that state includes. `more`: it was too long for one frame (see `payloads`); nothing of it counts before the last
    one has come.
    """

    texts: dict[str, str]
    taken: int
    orders: tuple[Order, ...] = ()
    more: bool = False


class HoldPages(NamedTuple):
    """Stores the progress pages of ranks, whose descriptors come with it, for a returning supervisor. Not answered.

    A page is its cycle, local rank and inode, and a text for that supervisor. A rank's later page replaces its earlier.
    """

    pages: tuple[HeldPage, ...]


class HandOverPages(NamedTuple):
    """Requests the stored pages. Answered by HeldPages."""


# --- from the spawner ----------------------------------------------------------------------------------------------


class Ready(NamedTuple):
    """Sent once, when workers can be spawned; `method` says how.

    `refusal`: why the job's command can't be run at all; the job then ends with `refusal_code`. "": it can be run.
    """

    pid: int
    protocol: int  # PROTOCOL of the spawner: a supervisor with another one refuses it
    python: str  # version
    method: str  # "fork" or "exec"
    method_reason: str  # why, in one sentence
    preloaded: tuple[str, ...]  # modules loaded ahead
    cgroup: str  # the cgroup v2 folder in which each cycle gets a cgroup; "": none
    refusal: str = ""
    refusal_code: int = 1
    lost: str = ""  # for people: what is slower than it could be, why, and the remedy
    holds_pages: bool = False  # HoldPages and HandOverPages are understood


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
    exit_code: int  # as in a shell: 127 not found, 126 not executable, else 1


class Exited(NamedTuple):
    """A worker was reaped. Exactly one of code and signal is not None.

    `error`: the most telling line of the file that torch's @record writes (TORCHELASTIC_ERROR_FILE); "": none.
    `silence_longest_s`: for how long its main thread has executed nothing at the most; None: it was not watched.
    `unattended_s`: the spawner had signalled it, since no supervisor came back within that time, so code 0 does
    not count as success; None: it had not, or the worker ignored it.
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
    silence_longest_s: float | None = None
    unattended_s: float | None = None


class RankStopped(NamedTuple):
    """A signal has stopped a worker's process."""

    cycle: int
    local_rank: int
    pid: int
    signal: int
    at_ns: int


class RankContinued(NamedTuple):
    """A worker's process that was stopped goes on."""

    cycle: int
    local_rank: int
    at_ns: int


class FirstOutput(NamedTuple):
    """A worker has printed something for the first time. Not sent in the first cycle, nor for output elsewhere."""

    cycle: int
    local_rank: int
    at_ns: int


class StoreExited(NamedTuple):
    """The store host ended unasked."""

    cycle: int
    pid: int
    reason: str


class Emptied(NamedTuple):
    """Nothing of `cycle` is left, except for `stuck_pids`, which can't be killed (state D) and are given up."""

    cycle: int
    killed: int
    stuck_pids: tuple[int, ...]


class OutputDropped(NamedTuple):
    """Counts log bytes lost to a full disk or the size limit, in total in the cycle. Losses never block a worker.

    Local rank -1: lost from the log file of a cycle, whichever rank wrote them.
    """

    local_rank: int
    dropped_bytes: int
    reason: str
    cycle: int = -1  # whose worker printed them; -1 from an older spawner, in total since its start


class CycleLogClosed(NamedTuple):
    """This node's part of a cycle's log file is complete. Losses are this spawner's."""

    cycle: int
    path: str
    written_bytes: int
    lost_lines: int
    lost_bytes: int
    reason: str  # for the last loss


class Learned(NamedTuple):
    """The workers imported modules that a spawner could load ahead, so the next cycle would start sooner.

    Sent at most twice: at once for torch, later for all else. Without steps, `reason` says what prevents it.
    """

    steps: tuple[str, ...]  # modules to import, and variables to set between them (NAME=value; -NAME= removes)
    folders: tuple[str, ...]  # those before the installed modules on the workers' path
    reason: str
    lost: str = ""  # for people: what stays slow, why, and the remedy


class Ended(NamedTuple):
    pass


class Kept(NamedTuple):
    """Returns one text that the previous supervisor left here. Sent to a returning supervisor after WelcomeBack."""

    name: str
    text: str


class WelcomeBack(NamedTuple):
    """The first message to a returning supervisor; the descriptors of the job's claim come with it.

    `texts` Kept messages follow, then the reports after the first `taken`.
    """

    pid: int
    job_id: str
    ready: Ready  # as sent to the first supervisor
    texts: int
    taken: int
    watched: bool = False  # the last of the descriptors is the spawner's SpawnerSettings.watch_fd
    learned: Learned | None = None  # the last with steps, if it is not among the reports that follow


class HeldPages(NamedTuple):
    """Hands over stored pages; their descriptors come with it. `more`: another HeldPages follows.

    `absences`: from when until when there was no supervisor; 0: until now.
    """

    pages: tuple[HeldPage, ...]
    absences: tuple[tuple[int, int], ...]
    more: bool = False


class Unknown(NamedTuple):
    """Stands for a message of a later version, which is ignored; the sender has a deadline for any answer."""

    type: str


Report = (
    Ready | StoreReady | StoreFailed | Spawned | SpawnFailed | Exited | RankStopped | RankContinued | FirstOutput
    | StoreExited | Emptied | OutputDropped | CycleLogClosed | Learned | Ended
)  # fmt: skip
ToSpawner = Order | Keep | HoldPages | HandOverPages | Unknown
FromSpawner = Report | Kept | WelcomeBack | HeldPages | Unknown
Message = ToSpawner | FromSpawner

_TYPES: dict[str, type[Message]] = {
    kind.__name__: kind
    for kind in (
        PrepareStore, ForkAhead, Spawn, Signal, KillTree, Fence, End, Keep,
        Ready, StoreReady, StoreFailed, Spawned, SpawnFailed, Exited, RankStopped, RankContinued, FirstOutput,
        StoreExited, Emptied, OutputDropped, CycleLogClosed, Learned, Ended, Kept, WelcomeBack, HoldPages,
        HandOverPages, HeldPages,
    )
}  # fmt: skip

_NESTED: dict[str, type[StreamPlan]] = {"stdout": StreamPlan, "stderr": StreamPlan}


class SpawnerProtocolError(ValueError):
    """Raised for a frame that is not a message of this vocabulary."""


def encode(message: Message) -> bytes:
    """Returns the frame's payload for `message`."""
    return json.dumps(_typed(message), separators=(",", ":")).encode()


def payloads(message: Message, *, bytes_max: int) -> list[bytes]:
    """Returns `message` in one or more payloads: an order for many workers is split, and so are many texts to keep.

    All but the last have `more` set. A part that can't be split further may be longer than `bytes_max`.
    """
    if isinstance(message, Keep) and sum(map(len, message.texts.values())) > bytes_max // 4:
        return _keep_payloads(message, bytes_max // 4)
    payload = encode(message)
    if len(payload) <= bytes_max or not isinstance(message, Spawn) or len(message.workers) < 2:
        return [payload]
    middle = len(message.workers) // 2
    first = message._replace(workers=message.workers[:middle], more=True)
    rest = message._replace(workers=message.workers[middle:])
    return payloads(first, bytes_max=bytes_max) + payloads(rest, bytes_max=bytes_max)


def _keep_payloads(message: Keep, chars_max: int) -> list[bytes]:
    """Returns the texts in parts of about that size, which JSON makes longer; the orders come with the last."""
    parts: list[dict[str, str]] = [{}]
    chars = 0
    for name, text in message.texts.items():
        if chars + len(text) > chars_max and parts[-1]:
            parts.append({})
            chars = 0
        parts[-1][name] = text
        chars += len(text)
    if message.orders and parts[-1]:
        parts.append({})
    *first, last = parts
    return [*(encode(Keep(part, message.taken, more=True)) for part in first), encode(message._replace(texts=last))]


def decode(payload: bytes) -> Message:
    """Returns the message in `payload`. Raises SpawnerProtocolError. Unknown fields are ignored; see Unknown."""
    try:
        return _of_type(json.loads(payload))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
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
        body["learned"] = _plain(message.learned) if message.learned is not None else None
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
    """Returns the variables that all workers share, which cross the link only once."""
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
        if values.get("learned") is not None:
            values["learned"] = _build(Learned, cast("dict[str, object]", values["learned"]))
    if kind is HoldPages or kind is HeldPages:
        pages = cast("tuple[tuple[int, int, int, str], ...]", values["pages"])
        values["pages"] = tuple((int(cycle), int(rank), int(inode), str(note)) for cycle, rank, inode, note in pages)
    if kind is HeldPages:
        absences = cast("tuple[tuple[int, int], ...]", values["absences"])
        values["absences"] = tuple((int(lost_ns), int(back_ns)) for lost_ns, back_ns in absences)
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
    """Returns the fields that the kind has, with lists turned back into tuples."""
    return {
        name: tuple(cast("list[object]", value)) if isinstance(value, list) else value
        for name, value in body.items()
        if name in kind._fields
    }
