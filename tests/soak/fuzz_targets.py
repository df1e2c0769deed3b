"""Which readers take what a stranger may write, from which valid records do the inputs come, and what may be raised?"""

from __future__ import annotations

import asyncio
import json
import os
import struct
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args
from urllib.parse import urlencode

import msgspec
from google.protobuf.message import DecodeError
from holdfast_wire import framing, log_frames, page_layout, spawner_link
from holdfast_wire.log_pieces import Piece, Receipt
from holdfast_wire.v1 import control_pb2, worker_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nvhcd import nvhcd_pb2
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from supervisor.config import job_spec_json, redaction
from supervisor.config.job_spec import JobSpec
from supervisor.config.resolve import parse_run
from supervisor.core.attribution.log_verdict import Analysis
from supervisor.core.facts import JobState
from supervisor.core.leader_ledger import Ledger
from supervisor.core.node_check_facts import HealthCheckPolicy
from supervisor.core.nvhcd_verdict import Reply, judge
from supervisor.edges.operators import control_decoding, control_encoding
from supervisor.edges.operators.http_connection import Connections
from supervisor.edges.operators.http_connection_limit import Places
from supervisor.edges.peers.codec import cluster_codec, question_codec
from supervisor.edges.peers.codec.cluster_frames import ClusterProtocolError
from supervisor.edges.peers.election import etcd_backend, leader_term
from supervisor.edges.peers.relays.multiplexer import Kind, Multiplexer
from supervisor.edges.peers.transport.preamble import REDIRECTED, REFUSED, Preamble, Proofs, kind_of
from supervisor.edges.rpc.statuses import CallError
from supervisor.edges.services import http_client
from supervisor.edges.services.attribution_client import AttributionClient
from supervisor.edges.users import user_link_messages
from supervisor.edges.workers import page_hand_over
from supervisor.edges.workers.channel import worker_codec
from supervisor.edges.workers.channel.progress_page_reader import ProgressPage, TrueStamps, stamps_from_frame
from supervisor.edges.workers.channel.section_tallies import SectionTallies
from supervisor.edges.workers.channel.worker_frames import Progress, WorkerProtocolError
from supervisor.edges.workers.page_hand_over import PageNote
from supervisor.edges.workers.stacks import stack_text
from supervisor.errors import HoldfastError
from supervisor.ports.questions import Answer, Question
from supervisor.ports.rendezvous_backend import BackendRefusedError
from supervisor.ports.reports import JobReport, RecordedEvent
from supervisor.programs.attribution.service import Service
from supervisor.programs.attribution.submitted_logs import Analyses
from tests.edges.peers import every_frame
from tests.soak import fuzz_rpc
from tests.soak.fuzz import Target
from tests.soak.fuzz_files import files
from worker_client.spawner import last_printed_error

EXAMPLES = 40  # of each kind of record
NOW_NS = 10**18
NOTE = PageNote(1, ("step",), 2, 3, 4)
NAMES = ("step", "warmup", "x" * 60)
TRACEBACK = """[rank3]: Traceback (most recent call last):
[rank3]:   File "/srv/train.py", line 9, in <module>
[rank3]:     loss.backward()
[rank3]: torch.distributed.DistBackendError: NCCL error, api_key=x, https://me:p@h/?token=1
CUDA out of memory. Tried to allocate 2.00 GiB
Fatal Python error: Segmentation fault
"""
FAULTHANDLER = """Current thread 0x00007f12 (most recent call first):
  File "/a/train.py", line 12 in step
  File "/a/train.py", line 90 in <module>
"""


def targets(folder: Path) -> tuple[Target, ...]:
    """Returns the table. `folder` is for the files of readers that read files."""
    return (*_wires(), *_of_programs(), *files(folder))


# --- corpora -------------------------------------------------------------------------------------------------------


def _examples(strategy: st.SearchStrategy[Any], encode: Callable[[Any], bytes]) -> list[bytes]:
    """Returns encoded records, the same ones in each run."""
    found: list[bytes] = []

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
    )
    @given(strategy)
    def collect(record: object) -> None:
        found.append(encode(record))

    collect()
    return found


def _golden(*names: str) -> list[bytes]:
    """Returns frames that earlier versions wrote."""
    folder = Path(__file__).parents[1] / "proto" / "golden"
    return [(folder / f"{name}.bin").read_bytes() for name in names]


def _records(kinds: Sequence[type[msgspec.Struct]]) -> st.SearchStrategy[Any]:
    return st.one_of([every_frame.records(kind) for kind in kinds])


# --- wires ---------------------------------------------------------------------------------------------------------


def _wires() -> Iterator[Target]:
    yield Target(
        "cluster frames",
        _examples(every_frame.FRAMES, cluster_codec.encode),
        cluster_codec.decode,
        (ClusterProtocolError,),
    )
    questions = _examples(_records(get_args(Question)), question_codec.encode_question)
    yield Target("questions of nodes", questions, question_codec.decode_question, (ClusterProtocolError,))
    answers = _examples(_records(get_args(Answer)), question_codec.encode_answer)
    yield Target("answers of nodes", answers, question_codec.decode_answer, (ClusterProtocolError,))
    hellos = ("hello", "progress", "limits_calculated", "workload_control", "goodbye", "stacks_answer")
    told = worker_pb2.Progress(
        heartbeats=3, heartbeat_age_ns=5, call_watch=worker_pb2.CallWatch(watch=1, tick_age_ns=7)
    )
    told.open_sections.add(slot=1, age_ns=9)
    progress = worker_pb2.WorkerFrame(progress=told).SerializeToString()
    yield Target("worker frames", [*_golden(*hellos), progress], _read_worker_frame, (WorkerProtocolError,))
    yield Target(
        "a rank's page", [os.urandom(page_layout.PAGE_BYTES), bytes(page_layout.PAGE_BYTES)], _Page().read, share=0.2
    )
    yield Target(
        "frames", [framing.encode(b"abc" * n, frame_bytes_max=65536) for n in range(20)],
        lambda data: framing.Decoder(frame_bytes_max=65536).feed(data), (framing.FrameTooLongError,),
    )  # fmt: skip
    reports = [spawner_link.encode(each) for each in _from_spawner()]
    yield Target("a spawner's reports", reports, spawner_link.decode, (spawner_link.SpawnerProtocolError,))
    said = (
        Piece(1, 2, 3, 4, b"x\n", True), Receipt(1, 2, False), log_frames.Trouble("x"), log_frames.Terms(9, 100),
        log_frames.Greeting(), log_frames.Hello(log_frames.VERSION, "j", "node 1", b"p" * 32),
        log_frames.Welcome(b"p" * 32), log_frames.Refusal("x"), log_frames.Parting(), log_frames.Alive(),
    )  # fmt: skip
    yield Target(
        "pieces of logs", [log_frames.encode(each) for each in said], log_frames.decode, (log_frames.LogFrameError,)
    )
    parts = [
        struct.pack(">BII", kind, 7, len(data)) + data for kind, data in ((1, b""), (2, b"x" * 9), (3, b""), (9, b"?"))
    ]
    yield Target("multiplexers of relays", [b"".join(parts), *parts], _read_multiplexer, (ClusterProtocolError,), 0.1)
    words = [user_link_messages.encode(each) for each in (
        user_link_messages.Take(1), user_link_messages.Taken(1), user_link_messages.Idle(0),
        user_link_messages.Cordon("why"), user_link_messages.Leave(),
    )]  # fmt: skip
    yield Target("words of a user", words, _read_words)
    preambles = [Preamble(b"r", b"key").says, b"d", REDIRECTED + b'["h", 29400]', REFUSED + b"why"]
    yield Target("first preambles of nodes", preambles, _read_preambles)
    yield Target("notes of pages", [page_hand_over.note_text(NOTE).encode()], _read_note)
    yield Target("job specifications", _specs(), _read_spec, (HoldfastError, UnicodeDecodeError))
    request = control_pb2.LeadRendezvousRequest(job_id="j", host="127.0.0.1", port=1, token_file="/t")
    yield Target("control requests", [request.SerializeToString()], _read_request, (HoldfastError, DecodeError))
    yield Target("control answers", _control_answers(), _read_control_answer, (DecodeError, HoldfastError))


def _from_spawner() -> Iterator[spawner_link.Message]:
    ready = spawner_link.Ready(1, 1, "3.11", "fork", "", (), "")
    yield ready
    yield spawner_link.WelcomeBack(1, "j", ready, 2, 7)
    yield spawner_link.Kept("a", "1")
    yield spawner_link.Emptied(3, 0, ())


def _read_worker_frame(data: bytes) -> None:
    told = worker_codec.decode(data)
    if isinstance(told, Progress):
        stamps = TrueStamps(NAMES, exact=False)
        stamps.take(stamps_from_frame(told, now_ns=NOW_NS), now_ns=NOW_NS)
        stamps.progress(read_at_s=NOW_NS / 1e9)


class _Page:
    """A page that its rank has filled with anything."""

    def __init__(self) -> None:
        self._page = ProgressPage()
        self._stamps = TrueStamps(NAMES, exact=True)

    def read(self, data: bytes) -> None:
        os.pwrite(self._page.fd, data[: page_layout.PAGE_BYTES], 0)
        self._stamps.take(self._page.read(len(NAMES)), now_ns=NOW_NS)
        self._stamps.progress(read_at_s=NOW_NS / 1e9)
        SectionTallies(NAMES).take(self._page.read_tallies(len(NAMES)))


class _Heard:
    """The line below a multiplexer: hands over what the multiplexer hears with."""

    def listen(self, hear: Callable[[bytes], None], *_: object) -> None:
        self.hear = hear


def _hear_part(kind: Kind, channel: int, data: bytes) -> None:
    """Takes any part."""


def _read_multiplexer(data: bytes) -> None:
    async def read() -> None:
        line = _Heard()
        Multiplexer(cast("Any", line), on_part=_hear_part, on_end=print)
        line.hear(data)

    asyncio.run(read())


def _read_preambles(data: bytes) -> None:
    Preamble(b"r").read(data)
    Proofs(b"key").hold(data)
    kind_of(data)


def _read_words(data: bytes) -> None:
    """A word has at most so many bytes: the kernel cuts a longer datagram."""
    user_link_messages.read_by_root(data[: user_link_messages.MESSAGE_BYTES_MAX])
    user_link_messages.read_by_user(data[: user_link_messages.MESSAGE_BYTES_MAX])


def _specs() -> list[bytes]:
    meet = ("--nnodes", "2", "--rdzv-id", "j", "--rdzv-endpoint", "127.0.0.1:29400")
    words = (*meet, "--max-restarts", "3", "--ft-rank-section-timeouts", "a:1", "t.py")
    full = parse_run(words, environ={}, cwd="/", count_gpus=lambda _: 0).spec
    return [job_spec_json.job_spec_to_json(each).encode() for each in (JobSpec("j", ("t.py",)), full)]


def _read_note(data: bytes) -> None:
    page_hand_over.note_from(data.decode(errors="surrogateescape"))


def _read_spec(data: bytes) -> None:
    job_spec_json.job_spec_from_json(data.decode())


def _read_request(data: bytes) -> None:
    control_decoding.rendezvous_from_wire(control_pb2.LeadRendezvousRequest.FromString(data))


def _control_answers() -> list[bytes]:
    report = JobReport("j", JobState.RUNNING, 5, reason="r", command=("t.py", "--token=x"))
    event = RecordedEvent("j", 1, 2, "kind", "reason", details=(("a", "b"),))
    return [
        control_encoding.job_to_wire(report).SerializeToString(),
        control_encoding.event_to_wire(event).SerializeToString(),
    ]


def _read_control_answer(data: bytes) -> None:
    control_decoding.job_from_wire(control_pb2.Job.FromString(data))
    control_decoding.event_from_wire(control_pb2.Event.FromString(data))
    control_decoding.node_from_wire(control_pb2.Node.FromString(data))
    control_decoding.evidence_from_wire(control_pb2.GetStacksResponse.FromString(data))
    control_decoding.refusal_from_wire(data)


# --- what programs say ---------------------------------------------------------------------------------------------


def _of_programs() -> Iterator[Target]:
    answers = [
        nvhcd_pb2.HealthCheckResponse(success=success, output=output, error="e", exit_code=3).SerializeToString()
        for success in (True, False)
        for output in ('{"fail_count": 0}', 'x\n{"fail_count": 2, "failed_checks": ["gpu", 1, null]}', "[]", "")
    ]
    yield Target("replies of nvhcd", answers, _read_reply, (DecodeError,))
    yield Target("connections of nvhcd and etcd", fuzz_rpc.answers(), fuzz_rpc.read_answer, (CallError,), share=0.1)
    yield Target("connections of gRPC's clients", fuzz_rpc.requests(), fuzz_rpc.read_requests, share=0.1)
    outputs = [b'{"fail_count": 2, "failed_checks": ["gpu", {"a": 1}]}']
    yield Target("outputs of nvhcd", outputs, lambda data: _judged(Reply(True, data.decode(errors="replace"))))
    submission = b'{"log_path": "/logs/a_cycle1.log", "analysis_intent": "terminal", "user": "u", "job_id": "j"}'
    yield Target("attribution requests", [submission], _submit_log, share=0.1)
    outcome = (
        b'{"status": "completed", "recommendation": {"action": "STOP", "reason": "r", "source": "s"}, "result": {}}'
    )
    yield Target("answers of an attribution service", [outcome, b'{"error": "no"}'], _read_outcome, share=0.5)
    http = b"POST /logs?log_path=%2Fa&wait=true HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
    yield Target("HTTP requests", [http, http.replace(b"POST", b"GET")], _read_http, share=0.3)
    yield Target("last words of a rank", [TRACEBACK.encode()], _read_last_words, share=0.5)
    yield Target("logs of ranks", [TRACEBACK.encode()], _read_log, share=0.2)
    stacks = json.dumps([{"pid": 1, "thread_id": 1, "thread_name": "MainThread", "os_thread_id": 1, "active": True,
        "owns_gil": True, "frames": [{"name": "f", "filename": "a.py", "line": 3}], "process_info": None}])  # fmt: skip
    yield Target("stacks", [stacks.encode(), FAULTHANDLER.encode()], _read_stacks)
    secrets = [
        TRACEBACK.encode(),
        b'--header "Authorization: Bearer abc" {"api_key": "a\\"b"} postgres://u:p@h/?sig=1 PASSWORD=x',
    ]
    yield Target(
        "texts with secrets", secrets, lambda data: redaction.redacted_text(data.decode(errors="replace")), share=0.5
    )
    told = [msgspec.json.encode({"node": "n", "address": "h:1", "ttl_s": 5.0}), msgspec.json.encode(Ledger())]
    yield Target("records in etcd", told, _read_etcd, (BackendRefusedError,))


def _read_reply(data: bytes) -> None:
    reply = nvhcd_pb2.HealthCheckResponse.FromString(data)
    _judged(Reply(reply.success, reply.output, reply.exit_code, reply.error))


def _judged(reply: Reply) -> None:
    for policy in HealthCheckPolicy:
        judge(reply, policy)


def _submit_log(data: bytes) -> None:
    """Calls the service's handlers. The server turns what they raise into 500, which nobody should see."""
    service = Service(Analyses(Path("/logs")), is_private=False)
    query = urlencode({"log_path": data.decode(errors="replace")}).encode()

    async def receive() -> Message:
        return {"type": "http.request", "body": data}

    for handler in (service.submit, service.tell):
        request = Request({"type": "http", "headers": [], "query_string": query}, receive)
        assert asyncio.run(handler(request)).status_code < 500


def _now(answer: Coroutine[Any, Any, object]) -> object:
    """Returns what a coroutine returns that waits for nothing."""
    try:
        answer.send(None)
    except StopIteration as end:
        return cast("object", end.value)
    answer.close()
    return None


class _Asked:
    def __init__(self, body: bytes, status: int) -> None:
        self._answer = http_client.Answer(status, body)

    async def ask(self, *_: object) -> http_client.Answer:
        return self._answer


def _read_outcome(data: bytes) -> None:
    client = AttributionClient("http://h:1", {})
    for status in (200, 400, 503):
        vars(client)["_http"] = _Asked(data, status)
        _now(client.verdict("/logs/a.log"))


def _read_http(data: bytes) -> None:
    """Gives a connection what its client sends: whatever it is, the connection answers or ends."""
    loop, connections = _http_server()
    connection = connections.made()
    connection.connection_made(_Discarding())
    connection.data_received(data)
    loop.run_until_complete(asyncio.wait_for(_all_done(connections.state.tasks), 10))
    connection.connection_lost(None)


@cache
def _http_server() -> tuple[asyncio.AbstractEventLoop, Connections]:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response()(scope, receive, send)

    return loop, Connections(app, Places(1), 60.0)


async def _all_done(tasks: set[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks)


class _Discarding(asyncio.Transport):
    """What a connection writes is gone."""

    def write(self, data: object) -> None: ...
    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


def _read_last_words(data: bytes) -> None:
    last_printed_error.last_words(data, code=1, signal_number=None)
    last_printed_error.last_words(data, code=2, signal_number=None)
    last_printed_error.last_words(data, code=None, signal_number=11)


def _read_log(data: bytes) -> None:
    analysis = Analysis()
    for line in data.decode(errors="replace").split("\n"):
        analysis.take(line)
    analysis.judgement(earlier=[], has_ended=True)


def _read_stacks(data: bytes) -> None:
    stack_text.from_py_spy(data, 1)
    text = data.decode(errors="replace")
    stack_text.from_faulthandler(text)
    stack_text.main_thread_first(text)


def _read_etcd(data: bytes) -> None:
    etcd_backend.leader_in(cast("Any", _KeyValue(b"k", data, 1)))
    leader_term.read_ledger(data)


class _KeyValue(NamedTuple):
    key: bytes
    value: bytes
    create_revision: int
