"""What do the flags of the log server mean, and are those without effect reported?"""

from __future__ import annotations

import pytest

from supervisor.config.job_logs import JobLogs, LogServer, log_sender_socket, server_log_prefix
from tests.config.runs import request

NODES = ("--nnodes", "2", "--rdzv-id", "j", "--rdzv-endpoint", "127.0.0.1:29400")
LOG = ("--ft-per-cycle-applog-prefix", "/l/train.log")


def test_it_is_for_several_nodes_and_a_log() -> None:
    both = request("--ft-enable-log-server", "true", *NODES, *LOG, "t.py")
    assert (both.spec.has_log_server, both.warnings) == (True, ())
    assert not request(*NODES, *LOG, "t.py").spec.has_log_server
    words = request("--ft-enable-log-server", "true", "--ft-nvrx-logfile", "/l/words.log", *NODES, "t.py")
    assert (words.spec.has_log_server, words.warnings) == (True, ())
    alone = request("--ft-enable-log-server", *LOG, "t.py")
    assert not alone.spec.has_log_server
    assert alone.warnings == (
        "--ft-enable-log-server has no effect here: on one node, one process writes the logs in any case",
    )
    nothing = request("--ft-enable-log-server", "true", *NODES, "t.py")
    assert not nothing.spec.has_log_server
    assert nothing.warnings[0].startswith("--ft-enable-log-server has no effect here: no log is asked for")


def test_many_leaves_are_told() -> None:
    run = request("--ft-enable-log-server", "--ft-log-aggregator-count", "17", *NODES, *LOG, "t.py")
    assert run.warnings == (
        "--ft-log-aggregator-count 17 is a lot: each leaf is a process of about 50 MiB on the leader's node",
    )


@pytest.mark.parametrize(
    ("logs", "server", "prefix"),
    [
        (JobLogs("/l/train.log", "/n/nvrx.log"), LogServer(), "/n/nvrx_grpc"),
        (JobLogs("/l/train.log"), LogServer(), "/l/train_grpc"),
        (JobLogs("/l/train"), LogServer(), "/l/train_grpc"),
        (JobLogs("/l/train.log", "/n/nvrx.log"), LogServer(log_prefix="/g/mine"), "/g/mine"),
    ],
)
def test_the_servers_own_logs_stand_beside_the_jobs(logs: JobLogs, server: LogServer, prefix: str) -> None:
    assert server_log_prefix(logs, server) == prefix


def test_the_socket_of_a_sender_is_no_longer_than_that_of_the_workers() -> None:
    sender_socket = log_sender_socket("/run/holdfast/worker/worker.sock", "job-1")
    assert sender_socket.startswith("/run/holdfast/worker/log.")
    assert len(sender_socket) <= len("/run/holdfast/worker/worker.sock")
    assert sender_socket != log_sender_socket("/run/holdfast/worker/worker.sock", "job-2")
