"""Do client and stubs work with one protobuf runtime, and are the bytes the same? Run by a bare interpreter.

`python -I -W error round_trip.py CHECKOUT GOLDEN [write]` prints what was loaded, as JSON.
"""

import json
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

checkout, golden = Path(sys.argv[1]), Path(sys.argv[2])
sys.path[:0] = [str(checkout), str(checkout / "proto"), *sys.argv[3:4]]

import google.protobuf  # noqa: E402
from holdfast_wire.framing import WORKER_FRAME_BYTES_MAX, Decoder, encode  # noqa: E402
from holdfast_wire.v1 import cluster_pb2 as cluster  # noqa: E402
from holdfast_wire.v1 import worker_pb2 as wire  # noqa: E402

from worker_client import RankMonitorClient, WorkloadAction, WorkloadControlRequest  # noqa: E402
from worker_client import call_protocol as calls  # noqa: E402

LIMITS = wire.Limits(
    initial_heartbeat_s=1.5, out_of_section_s=2.25,
    sections=[wire.SectionLimit(name="step", limit_s=3), wire.SectionLimit(name="warmup")],
)  # fmt: skip

GOLDEN = {
    "hello": wire.WorkerFrame(
        hello=wire.Hello(
            protocol=1, token=b"\0\xff", job_id="jöb", cycle=2, rank=3, local_rank=1, can_share_page=True,
            monotonic_ns=1 << 60, client_version="0.1.0", warm_up_steps=0, stacks_signal=23, stacks_fd=9,
        )
    ),
    "progress": wire.WorkerFrame(
        progress=wire.Progress(
            initialised_age_ns=5, heartbeat_age_ns=0, heartbeats=1 << 63, out_of_section_age_ns=7,
            first_step_seen=True, steps_since_first=-1, open_sections=[wire.OpenSection(slot=255, age_ns=1)],
        )
    ),
    "limits_calculated": wire.WorkerFrame(limits_calculated=wire.LimitsCalculated(limits=LIMITS)),
    "workload_control": wire.WorkerFrame(
        workload_control=wire.WorkloadControl(
            action=wire.WorkloadControl.SHUTDOWN_WORKLOAD, description="why", request_id=6
        )
    ),
    "goodbye": wire.WorkerFrame(goodbye=wire.Goodbye()),
    "stacks_answer": wire.WorkerFrame(stacks_answer=wire.StacksAnswer(request_id=1, text="File …")),
    "welcome": wire.SupervisorFrame(
        welcome=wire.Welcome(
            protocol=1, cycle=2, rank=3, page_shared=True, limits=LIMITS, sections=["step", "warmup"],
            warm_up_steps=5, safety_factor=5.0, install_exception_hook=True,
        )
    ),
    "refused": wire.SupervisorFrame(refused=wire.Refused(reason="cannot: why; what", retry=True)),
    "accepted": wire.SupervisorFrame(accepted=wire.Accepted(request_id=6)),
    "stacks_request": wire.SupervisorFrame(stacks_request=wire.StacksRequest(request_id=1)),
    "cluster_hello": cluster.ClusterFrame(
        hello=cluster.Hello(protocol_version=1, job_id="jöb", node="n1", incarnation="i", proof=b"\0\xff")
    ),
    "cluster_ordered": cluster.ClusterFrame(
        ordered=cluster.Ordered(
            job_id="jöb",
            order=cluster.Order(
                tell_members=cluster.TellMembers(
                    cycle=2, members=[8, 9],
                    order=cluster.ToRank(
                        exchanged=wire.Exchanged(call=1, iteration=2, name="t", values={9: "b"})
                    ),
                )
            ),
        )
    ),
    "cluster_reported": cluster.ClusterFrame(
        reported=cluster.Reported(
            job_id="jöb",
            report=cluster.Report(
                node_joined=cluster.NodeJoined(
                    node="n1", cycle=-1, cause=cluster.Cause(sentence="why", age_s=0)
                )
            ),
        )
    ),
    "cluster_told": cluster.ClusterFrame(
        reported=cluster.Reported(
            job_id="j",
            report=cluster.Report(
                call_report=cluster.CallReport(
                    node="n1", cycle=0,
                    told=[cluster.Told(member=3, word=cluster.Word(rank_fault=wire.RankFault(call=1, rank=-1)))],
                )
            ),
        )
    ),
}  # fmt: skip

# What a rank says about a wrapped call, and the message of each.
SETTINGS = wire.CallSettings(
    last_call_wait_s=1, soft_timeout_s=1, hard_timeout_s=1, termination_grace_s=1, barrier_timeout_s=1,
    completion_timeout_s=1, heartbeat_timeout_s=1,
)  # fmt: skip
WORDS: dict[calls.Word, wire.WorkerFrame] = {
    calls.CallEnter(1, 2, 4, calls.CallSettings(*[timedelta(seconds=1)] * 7), calls.Stage.RUNNING): wire.WorkerFrame(
        call_enter=wire.CallEnter(call=1, initial_rank=2, initial_world_size=4, settings=SETTINGS, stage="RUNNING")
    ),
    calls.IterationBegan(1, 2, 3, 4, None, 0): wire.WorkerFrame(
        iteration_began=wire.IterationBegan(call=1, iteration=2, rank=3, world_size=4)
    ),
    calls.RankFault(1, 2, 3, "BASE_EXCEPTION", "why \udcff"): wire.WorkerFrame(
        rank_fault=wire.RankFault(call=1, iteration=2, rank=3, interruption="BASE_EXCEPTION", reason="why ?")
    ),
    calls.FaultsReported(1, 2): wire.WorkerFrame(faults_reported=wire.FaultsReported(call=1, iteration=2)),
    calls.BarrierArrive(1, 2, calls.Barrier.ITERATION, 3, True): wire.WorkerFrame(
        barrier_arrive=wire.BarrierArrive(call=1, iteration=2, barrier="ITERATION", rank=3, active=True)
    ),
    calls.CallLeave(1, 2, calls.Leaving.DISCARDED, "out", True): wire.WorkerFrame(
        call_leave=wire.CallLeave(call=1, iteration=2, why="DISCARDED", reason="out", unfit=True)
    ),
    calls.ExchangeValue(1, 2, "tree/1", 3, "{}"): wire.WorkerFrame(
        exchange_value=wire.ExchangeValue(call=1, iteration=2, name="tree/1", rank=3, value="{}")
    ),
}


def check_words() -> None:
    for word, message in WORDS.items():
        (payload,) = Decoder(frame_bytes_max=WORKER_FRAME_BYTES_MAX).feed(calls.frame(word))
        assert wire.WorkerFrame.FromString(payload) == message, word


def check_golden_bytes() -> None:
    for name, message in GOLDEN.items():
        expected = (golden / f"{name}.bin").read_bytes()
        assert message.SerializeToString(deterministic=True) == expected, name
        assert type(message).FromString(expected) == message, name


def read(peer: socket.socket) -> Iterator[wire.WorkerFrame]:
    decoder = Decoder(frame_bytes_max=WORKER_FRAME_BYTES_MAX)
    while data := peer.recv(65536):
        yield from map(wire.WorkerFrame.FromString, decoder.feed(data))


def next_of(frames: Iterator[wire.WorkerFrame], wanted: str) -> wire.WorkerFrame:
    """Returns the next wanted frame and skips others: progress may come at any time."""
    return next(frame for frame in frames if frame.WhichOneof("body") == wanted)


def serve(listener: socket.socket, told: dict[str, object]) -> None:
    peer, _ = listener.accept()
    frames = read(peer)
    hello = next_of(frames, "hello").hello
    welcome = wire.SupervisorFrame(
        welcome=wire.Welcome(protocol=1, cycle=hello.cycle, rank=hello.rank, limits=LIMITS, sections=["step", "warmup"])
    )
    peer.sendall(encode(welcome.SerializeToString(), frame_bytes_max=WORKER_FRAME_BYTES_MAX))
    while (progress := next_of(frames, "progress").progress).heartbeats != 2:
        pass
    told["heartbeats"] = progress.heartbeats
    told["open"] = [section.slot for section in progress.open_sections]
    told["limits"] = next_of(frames, "limits_calculated").limits_calculated.limits.HasField("heartbeat_s")
    control = next_of(frames, "workload_control").workload_control
    told["control"] = [control.action, control.description]
    accepted = wire.SupervisorFrame(accepted=wire.Accepted(request_id=control.request_id))
    peer.sendall(encode(accepted.SerializeToString(), frame_bytes_max=WORKER_FRAME_BYTES_MAX))
    next_of(frames, "goodbye")
    peer.close()


def talk() -> dict[str, object]:
    told: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path, token = os.path.join(folder, "s"), os.path.join(folder, "t")
        Path(token).write_bytes(b"t")
        listener.bind(path)
        listener.listen()
        os.environ.update(HOLDFAST_SOCKET=path, HOLDFAST_JOB_ID="j", HOLDFAST_TOKEN_FILE=token, WORLD_SIZE="1")
        serving = threading.Thread(target=serve, args=(listener, told))
        serving.start()
        client = RankMonitorClient()
        client.init_workload_monitoring()
        client.start_section("step")
        client.send_heartbeat()
        client.send_heartbeat()
        # The progress must be seen before the limits, since the server reads them in order.
        while "heartbeats" not in told and serving.is_alive():
            serving.join(0.01)
        client.calculate_and_set_hb_timeouts()
        client.send_workload_control_request(WorkloadControlRequest(WorkloadAction.ExcludeThisNode, "why"))
        client.shutdown_workload_monitoring()
        serving.join()
    return told


if sys.argv[3:] == ["write"]:
    for name, message in GOLDEN.items():
        (golden / f"{name}.bin").write_bytes(message.SerializeToString(deterministic=True))
else:
    check_golden_bytes()
    check_words()
    loaded = [name for name in ("grpc", "asyncio", "torch", "numpy") if name in sys.modules]
    print(json.dumps({"protobuf": google.protobuf.__version__, "loaded": loaded, **talk()}))
