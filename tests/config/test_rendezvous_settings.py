"""What do a user's settings about other nodes mean, and which are mistakes?"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from supervisor.config.job_spec import Nodes
from supervisor.config.job_spec_json import job_spec_from_json, job_spec_to_json
from supervisor.config.resolve import parse_run
from supervisor.config.values import JOB_ID
from supervisor.errors import InvalidRequestError

MEET = ("--nnodes", "2:3", "--rdzv-endpoint", "127.0.0.1:29500", "--rdzv-id", "night")


def request(*argv: str):
    return parse_run([*argv, "train.py"], environ={}, cwd="/data", count_gpus=lambda _: 0)


def spec(*argv: str):
    return request(*argv).spec


def test_without_other_nodes_there_is_nothing_to_meet():
    assert spec().nodes is None
    assert spec("--nnodes", "1", "--rdzv-endpoint", "10.0.0.1:29500").nodes is None


def test_all_nodes_get_the_same_job_and_each_its_own_name():
    found = spec(*MEET, "--local-addr", "10.0.0.7")
    assert found.nodes == Nodes(2, 3, "127.0.0.1", 29500, "10.0.0.7")
    assert (found.job_id, found.run_id, found.restart.min_nodes) == ("night", "night", 2)
    assert found.master_addr == "10.0.0.7"
    named = spec(*MEET, "--job-id", "day")
    assert (named.job_id, named.nodes.name if named.nodes else "") == ("day", os.uname().nodename)


@pytest.mark.parametrize(
    ("run_id", "readable"),
    [
        ("team/exp7", "team-exp7"), ("my run", "my-run"), ("5d0f:1", "5d0f-1"), ("5d0f#0", "5d0f-0"),
        ("../../root", "root"), (".hidden", "hidden"), ("n" * 65, "n" * 48), ("é", "job"), ("night\n", "night"),
    ],
)  # fmt: skip
def test_any_id_of_torchrun_s_names_the_job_and_reaches_the_ranks_unchanged(run_id: str, readable: str):
    found = request("--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:29500", "--rdzv-id", run_id)
    assert re.fullmatch(f"{re.escape(readable)}-[0-9a-f]{{12}}", found.spec.job_id)
    assert JOB_ID.fullmatch(found.spec.job_id)
    assert found.spec.run_id == run_id
    assert job_spec_from_json(job_spec_to_json(found.spec)) == found.spec  # as a daemon takes it
    told = [warning for warning in found.warnings if "is not a job id" in warning]
    assert len(told) == 1
    assert told[0].endswith(f"is not a job id: holdfast's commands know this job as {found.spec.job_id}")
    assert spec("--nnodes", "2", "--rdzv-endpoint", "127.0.0.1", "--rdzv-id", run_id).job_id == found.spec.job_id
    named = request("--nnodes", "2", "--rdzv-endpoint", "127.0.0.1", "--rdzv-id", run_id, "--job-id", "day")
    assert (named.spec.job_id, named.spec.run_id) == ("day", run_id)
    assert not any("is not a job id" in warning for warning in named.warnings)


def test_ids_that_read_alike_are_different_jobs():
    ids = {spec(*MEET[:4], "--rdzv-id", run_id).job_id for run_id in ("a/b", "a b", "a-b", "a//b")}
    assert len(ids) == 4


def test_an_empty_id_names_no_job():
    with pytest.raises(InvalidRequestError, match="several nodes must be told which job they share"):
        spec(*MEET[:4], "--rdzv-id", "")


def test_the_port_is_torchruns_and_the_options_are_read():
    options = ("--rdzv-conf", "token_file=secret,join_timeout=30,fan_out=64")
    found = spec("--nnodes", "2", "--rdzv-endpoint", "10.0.0.1", "--rdzv-id", "x", *options).nodes
    assert found is not None
    assert (found.port, found.token_file, found.join_timeout_s) == (29400, str(Path("/data/secret")), 30.0)
    assert found.fan_out == 64


@pytest.mark.parametrize(("nodes", "fan_out"), [("2:1025", 1024), ("2:1026", 256), ("10240", 256)])
def test_a_leader_takes_fewer_nodes_itself_where_the_others_need_relays_anyhow(nodes: str, fan_out: int):
    found = spec("--nnodes", nodes, "--rdzv-endpoint", "127.0.0.1", "--rdzv-id", "x").nodes
    assert found is not None
    assert found.fan_out == fan_out


def test_an_option_of_torchrun_s_without_effect_is_named_once():
    conf = "is_host=1,rank=0,last_call_timeout=2,join_timeout=30"
    assert request(*MEET, "--rdzv-conf", conf).warnings == (
        "--rdzv-conf is_host has no effect here: the node at --rdzv-endpoint leads, or with etcd an elected one; write "
        "that node's address there",
        "--rdzv-conf rank has no effect here: write --node-rank",
    )
    assert request("--nnodes", "1", "--rdzv-conf", conf).warnings == ()


def test_certificates_stand_for_a_token():
    options = ("--rdzv-conf", "tls_cert=own.pem,tls_key=own.key,tls_ca=/etc/ca.pem")
    found = spec("--nnodes", "2", "--rdzv-endpoint", "10.0.0.1", "--rdzv-id", "x", *options).nodes
    assert found is not None
    assert (found.tls_cert, found.tls_key, found.tls_ca) == ("/data/own.pem", "/data/own.key", "/etc/ca.pem")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:0", "--rdzv-id", "x"),
         "cannot use --rdzv-endpoint 127.0.0.1:0: the nodes can't meet at port 0; write the same port on each"),
        (("--nnodes", "2", "--rdzv-endpoint", "10.0.0.1:29500", "--rdzv-id", "x"),
         "cannot use --rdzv-endpoint 10.0.0.1:29500: anybody who reaches that address could join the job, and there is "
         "no home for a secret; write --rdzv-conf token_file=F, a secret that is the same on each, or tls_cert, "
         "tls_key and tls_ca"),
        ((*MEET, "--rdzv-conf", "tls_cert=own.pem"),
         "cannot use --rdzv-conf tls_cert: both sides of a connection show a certificate; write tls_key and tls_ca, "
         "too"),
        ((*MEET, "--rdzv-conf", "join_timeout=soon"),
         "cannot use --rdzv-conf join_timeout=soon: it is not a time in seconds; write join_timeout=600"),
        ((*MEET, "--rdzv-conf", "fan_out=0"),
         "cannot use --rdzv-conf fan_out=0: it is not a number of nodes from 1 to 100000; write fan_out=1024"),
        (("--node-rank", "1"),
         "cannot use --node-rank 1: the only node has rank 0; remove --node-rank, or write --nnodes"),
    ],
)  # fmt: skip
def test_mistakes(argv: tuple[str, ...], message: str):
    with pytest.raises(InvalidRequestError) as caught:
        spec(*argv)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("nnodes", "policy", "elastic"),
    [("2:3", "min-healthy", True), ("2:3", "any-failed", False), ("2", "min-healthy", False)],
)
def test_under_min_healthy_all_nodes_train(nnodes: str, policy: str, elastic: bool):
    meet = ("--rdzv-endpoint", "127.0.0.1:29400", "--rdzv-id", "j")
    assert spec("--nnodes", nnodes, "--ft-restart-policy", policy, *meet).rendezvous.elastic is elastic


SECRET = """
nodes that share no home folder also need a secret, made on one and copied to each:
  (umask 077; head -c 32 /dev/urandom | base64 > job.token)
"""


def test_what_several_nodes_must_be_told_is_said_at_once():
    def said(*argv: str) -> str:
        with pytest.raises(InvalidRequestError) as caught:
            spec(*argv)
        return "\n".join((str(caught.value), *caught.value.__notes__))

    line = "  holdfast run --nnodes 6:8 --rdzv-endpoint HOST:29400 --rdzv-id NAME"
    assert said("--nnodes=6:8") == (
        "cannot use --nnodes 6:8: several nodes must be told where they meet and which job they share; write on each, "
        f"with the first node's address for HOST:\n{line} …{SECRET}{line} --rdzv-conf token_file=job.token …"
    )
    line = "  holdfast run --nnodes 2 --rdzv-endpoint 127.0.0.1:29500 --rdzv-id NAME"
    assert said("--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:29500") == (
        "cannot use --nnodes 2: several nodes must be told which job they share; write on each:\n"
        f"{line} …{SECRET}{line} --rdzv-conf token_file=job.token …"
    )


def test_a_home_has_a_secret_that_its_nodes_share():
    argv = ["--nnodes", "2", "--rdzv-endpoint", "10.0.0.1", "--rdzv-id", "x"]
    for more, token in (
        ((), "/h/.config/holdfast/token"),
        (("--rdzv-conf", "token_file=/t"), "/t"),
        (("--rdzv-conf", "tls_cert=/a,tls_key=/b,tls_ca=/c"), ""),
    ):
        found = parse_run([*argv, *more, "train.py"], environ={"HOME": "/h"}, cwd="/data").spec.nodes
        assert found is not None
        assert found.token_file == token
    assert parse_run([*MEET, "t.py"], environ={"HOME": "/h"}, cwd="/").spec.nodes == spec(*MEET).nodes


@pytest.mark.parametrize(
    ("options", "nnodes", "says"),
    [
        ("members=2", "2:3", "members=2 would not survive the loss of any one node, or is more than needed; write"),
        ("members=5", "2:9", "members=5 would not"),
        ("members=3", "1:2", "3 members need as many nodes, and the job has at most 2; write --nnodes 2:3"),
        ("members=3,cacert=ca.pem", "2:3", "cacert is for an etcd that runs already; leave cacert or members out"),
    ],
)
def test_a_job_that_cannot_bring_its_etcd_is_refused(options: str, nnodes: str, says: str):
    meet = ("--nnodes", nnodes, "--rdzv-endpoint", "127.0.0.1", "--rdzv-id", "x", "--rdzv-backend", "etcd")
    with pytest.raises(InvalidRequestError, match=re.escape(says)):
        spec(*meet, "--rdzv-conf", options)


def test_the_next_port_of_a_member_is_a_port():
    meet = ("--nnodes", "2:3", "--rdzv-id", "x", "--rdzv-backend", "etcd", "--rdzv-conf", "members=3,token_file=/t")
    assert spec(*meet, "--rdzv-endpoint", "127.0.0.1:65534").nodes is not None
    with pytest.raises(InvalidRequestError, match="each member uses the next port, too; write a port up to 65534"):
        spec(*meet, "--rdzv-endpoint", "127.0.0.1:65535")


def test_members_are_those_of_an_etcd():
    with pytest.raises(InvalidRequestError, match="write --rdzv-backend etcd, too"):
        spec(*MEET, "--rdzv-conf", "members=3")


def test_a_job_that_brings_its_etcd_has_a_token_at_any_address():
    options = ("--rdzv-backend", "etcd", "--rdzv-conf", "members=3")
    found = parse_run(
        [*MEET, *options, "train.py"], environ={"HOME": "/data/own"}, cwd="/data", count_gpus=lambda _: 0
    ).spec.nodes
    assert found is not None
    assert found.brings_etcd
    assert found.token_file == "/data/own/.config/holdfast/token"
