"""What is a node's place: the order of the variables, the submitter's environment, and mistakes in it?"""

from __future__ import annotations

import msgspec
import pytest

from supervisor.config.job_spec import JobSpec
from supervisor.config.job_spec_json import job_spec_to_json
from supervisor.config.resolve import parse_run
from supervisor.core.facts import NodeFacts, RendezvousRules
from supervisor.errors import ConfigurationError, InvalidRequestError

MEET = ("--nnodes", "2:3", "--rdzv-endpoint", "127.0.0.1:29500", "--rdzv-id", "night")


def spec(*argv: str, **environ: str) -> JobSpec:
    argv = argv if "train.py" in argv else (*argv, "train.py")
    return parse_run([*MEET, *argv], environ=environ, cwd="/data", count_gpus=lambda _: 0).spec


@pytest.mark.parametrize(
    ("argv", "environ", "facts"),
    [
        ((), {}, NodeFacts()),
        ((), {"SLURM_PROCID": "3", "GROUP_RANK": "7"}, NodeFacts(3, "SLURM_PROCID")),
        ((), {"GROUP_RANK": "7", "PET_NODE_RANK": "1"}, NodeFacts(7, "GROUP_RANK")),
        (("--node-rank", "2"), {}, NodeFacts(2, "--node-rank")),
        ((), {"PET_NODE_RANK": "0"}, NodeFacts(0, "--node-rank")),
        (("--node-rank", "2"), {"SLURM_PROCID": "0", "GROUP_RANK": ""}, NodeFacts(0, "SLURM_PROCID")),
        ((), {"SLURM_PROCID": "1", "SLURM_ARRAY_TASK_ID": "3", "SLURM_NNODES": "2"},
         NodeFacts(7, "SLURM_ARRAY_TASK_ID and SLURM_PROCID", replacement_group="3")),
        ((), {"CROSS_SLURM_PROCID": "12", "SLURM_PROCID": "1", "SLURM_ARRAY_TASK_ID": "3", "SLURM_NNODES": "2"},
         NodeFacts(12, "CROSS_SLURM_PROCID", replacement_group="3")),
        ((), {"SLURM_TOPOLOGY_ADDR": "block3.node12", "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node", "SLURM_PROCID": "1"},
         NodeFacts(30000000012, "SLURM_TOPOLOGY_ADDR")),
        ((), {"SLURM_TOPOLOGY_ADDR": "b3.n12", "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node", "SLURM_PROCID": "1",
              "SLURM_TOPOLOGY_NODES_PER_BLOCK": "18"}, NodeFacts(66, "SLURM_TOPOLOGY_ADDR")),
        ((), {"SLURM_TOPOLOGY_ADDR": "b3.n12", "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node", "CROSS_SLURM_PROCID": "4"},
         NodeFacts(4, "CROSS_SLURM_PROCID")),
        ((), {"SLURM_TOPOLOGY_ADDR": "s0.s1.n12", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node",
              "SLURM_PROCID": "1"}, NodeFacts(1, "SLURM_PROCID")),
        ((), {"SLURM_TOPOLOGY_ADDR": "left.n12", "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node", "SLURM_PROCID": "1"},
         NodeFacts(1, "SLURM_PROCID")),
        ((), {"SLURM_TOPOLOGY_ADDR": "b3.r1n12", "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node", "SLURM_PROCID": "1"},
         NodeFacts(1, "SLURM_PROCID")),
        ((), {"SLURM_TOPOLOGY_ADDR": "b3.n18", "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node", "SLURM_PROCID": "1",
              "SLURM_TOPOLOGY_NODES_PER_BLOCK": "18"}, NodeFacts(1, "SLURM_PROCID")),
        ((), {"NVRX_INFRA_RANK_FROM_NODENAME": "1", "SLURMD_NODENAME": "nvl72134-T01", "CROSS_SLURM_PROCID": "12"},
         NodeFacts(7213401, "NVRX_INFRA_RANK_FROM_NODENAME and SLURMD_NODENAME")),
        ((), {"NVRX_INFRA_RANK_FROM_NODENAME": "false", "SLURMD_NODENAME": "n7", "SLURM_PROCID": "1"},
         NodeFacts(1, "SLURM_PROCID")),
        ((), {"NVRX_REPLACEMENT_GROUP_ID": "rack7"}, NodeFacts(replacement_group="rack7")),
        (("--rdzv-conf", "nvlink_domain=pod1"), {}, NodeFacts(domain="pod1")),
        (("-m", "--node-rank", "1", "pkg.train", "train.py"), {}, NodeFacts(1, "--node-rank", program="-m pkg.train")),
        (("/somewhere/train.py",), {}, NodeFacts()),
    ],
)  # fmt: skip
def test_where_a_node_stands(argv: tuple[str, ...], environ: dict[str, str], facts: NodeFacts):
    found = spec(*argv, **environ)
    expected = facts if facts.program else msgspec.structs.replace(facts, program="train.py")
    assert found.facts == found.rules().facts == expected
    assert f'"replacement_group":"{facts.replacement_group}"' in job_spec_to_json(found), "it travels with the job"


def test_what_the_nodes_must_agree_on():
    conf = "join_timeout=30,last_call_timeout=2.5,replacement_group_size=2"
    found = spec("--ft-segment", "2", "--keep-ranks", "--elastic", "--rdzv-conf", conf, NVRX_REPLACEMENT_GROUP_ID="r")
    assert found.rules().rendezvous == RendezvousRules(
        3, 30.0, 2.5, segment=2, replacement_group_size=2, keep_ranks=True, elastic=True
    )
    assert found.rules().restart.min_nodes == 2
    assert spec().rules().rendezvous == RendezvousRules(3, join_timeout_s=600.0)


def test_alone_a_node_needs_no_domain():
    found = parse_run(["--ft-segment", "1", "train.py"], environ={"SLURM_PROCID": "x"}, cwd="/").spec
    assert found.rules().rendezvous == RendezvousRules()


@pytest.mark.parametrize(
    ("argv", "environ", "message"),
    [
        (("--ft-segment", "4"), {},
         "cannot use --ft-segment 4: the job needs 2 nodes, which is not a multiple of it; "
         "write --nnodes with one as its MIN"),
        ((), {"SLURM_PROCID": "-1"},
         "cannot use SLURM_PROCID=-1: it is not a whole number from 0 to 2147483647; unset SLURM_PROCID where no "
         "scheduler sets it"),
        ((), {"CROSS_SLURM_PROCID": "first"},
         "cannot use CROSS_SLURM_PROCID=first: it is not a whole number from 0 to 2147483647; unset CROSS_SLURM_PROCID "
         "where no scheduler sets it"),
        ((), {"NVRX_INFRA_RANK_FROM_NODENAME": "maybe"},
         "cannot use NVRX_INFRA_RANK_FROM_NODENAME=maybe: it is neither true nor false; "
         "write NVRX_INFRA_RANK_FROM_NODENAME=1"),
        ((), {"NVRX_INFRA_RANK_FROM_NODENAME": "1"},
         "cannot take the node's rank from SLURMD_NODENAME: it is not set; unset NVRX_INFRA_RANK_FROM_NODENAME"),
        ((), {"NVRX_INFRA_RANK_FROM_NODENAME": "1", "SLURMD_NODENAME": "head"},
         "cannot take the node's rank from SLURMD_NODENAME=head: it has no digits; "
         "unset NVRX_INFRA_RANK_FROM_NODENAME"),
        ((), {"NVRX_INFRA_RANK_FROM_NODENAME": "1", "SLURMD_NODENAME": "gpu-2024110001-2024110002"},
         "cannot take the node's rank from SLURMD_NODENAME=gpu-2024110001-2024110002: it has more than 18 digits; "
         "unset NVRX_INFRA_RANK_FROM_NODENAME"),
        (("--rdzv-conf", "last_call_timeout=x"), {},
         "cannot use --rdzv-conf last_call_timeout=x: it is not a time in seconds; write last_call_timeout=1"),
        (("--rdzv-conf", "replacement_group_size=0"), {},
         "cannot use --rdzv-conf replacement_group_size=0: it is not a number of nodes from 1 to 100000; "
         "write one such as 2"),
        (("--rdzv-conf", "replacement_group_size=2"), {},
         "cannot use --rdzv-conf replacement_group_size=2: this node belongs to no replacement group; "
         "set NVRX_REPLACEMENT_GROUP_ID"),
    ],
)  # fmt: skip
def test_mistakes(argv: tuple[str, ...], environ: dict[str, str], message: str):
    with pytest.raises((ConfigurationError, InvalidRequestError)) as caught:
        spec(*argv, **environ)
    assert str(caught.value) == message
