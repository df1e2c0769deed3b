"""The in-process guide, statement by statement: names, parameters, examples. What jobs go through is in jobs/."""

from __future__ import annotations

import inspect
import json
import logging
from datetime import timedelta
from pathlib import Path

import pytest

from supervisor.programs.doctor import training
from supervisor.programs.doctor.doctor_finding import Grade
from tests.config.runs import request
from tests.programs.doctor.machines import graded, machine_of, program
from tests.programs.doctor.test_training import GOOD, judged
from tests.seeds.documents import ROOT, Document
from tests.worker_client.inprocess.rank_world import World
from tests.worker_client.inprocess.test_compose import Named, calls
from worker_client import inprocess
from worker_client.inprocess import CallWrapper, Compose, FrozenState, Mode, Wrapper
from worker_client.inprocess.rank_assignment import RankAssignment

GUIDE = Document("inprocess-usage-guide")


def default(name: str) -> object:
    return inspect.signature(Wrapper).parameters[name].default


def state_of(iteration: int = 0, world_size: int = 4, active: int = 4) -> FrozenState:
    return FrozenState(0, world_size, 0, active, 0, 4, iteration, Mode.ACTIVE, None)


# --- what it needs ---------------------------------------------------------------------------------------------------


@GUIDE.says(13, "In-process restart functionality requires `PyTorch <https://pypi.org/project/torch/>`_ v2.5.1 or")
def test_doctor_warns_of_an_older_torch():
    assert (graded(judged(torch="2.5.0"))["torch"], graded(judged(torch="2.5.1"))["torch"]) == (Grade.WARNING, Grade.OK)


@GUIDE.says(16, "`NCCL <https://github.com/NVIDIA/nccl>`_ v2.26.2 or higher")
def test_doctor_warns_of_an_older_nccl():
    assert (graded(judged(nccl="2.26.1"))["nccl"], graded(judged(nccl="2.26.2"))["nccl"]) == (Grade.WARNING, Grade.OK)


@GUIDE.says(576, "``TORCH_NCCL_RETHROW_CUDA_ERRORS`` environment variable to ``0``")
@GUIDE.says(593, "Support for NVLink SHARP (NVLS) in NCCL must be disabled")
def test_doctor_knows_the_variables(tmp_path: Path):
    names = ("TORCH_NCCL_RETHROW_CUDA_ERRORS", "NCCL_NVLS_ENABLE")
    program(tmp_path, "python", f"echo '{json.dumps(GOOD)}'")
    cases: tuple[tuple[dict[str, str], Grade], ...] = (({}, Grade.NOTE), (dict.fromkeys(names, "0"), Grade.OK))
    for environ, grade in cases:
        found = graded(training.look(machine_of(tmp_path, environ=environ), str(tmp_path / "bin/python")))
        assert [found[name] for name in names] == [grade, grade]


@GUIDE.says(55, "Users can use torchrun to override the environment variables (--master_addr=127.0.0.1,")
def test_the_address_of_rank_0_can_be_given():
    nodes = ("--nnodes=2", "--node_rank=0", "--master_addr=127.0.0.1", "--master_port=29500")
    found = request(*nodes, "basic_example.py").spec.nodes
    assert found is not None
    assert (found.host, found.port) == ("127.0.0.1", 29500)


@GUIDE.says(57, "``torchrun --nproc_per_node=8 --nnodes=1 --node_rank=0 basic_example.py``")
def test_the_command_of_the_examples():
    found = request("--nproc_per_node=8", "--nnodes=1", "--node_rank=0", "basic_example.py")
    assert (found.spec.local_world_size, found.spec.command) == (8, ("basic_example.py",))


@GUIDE.says(60, "recommended default values (for example, --monitor-interval=5)")
def test_an_interval_of_torchrun_has_no_effect_and_is_no_error():
    assert request("--monitor-interval=5", "train.py").spec.command == ("train.py",)


# --- stores ----------------------------------------------------------------------------------------------------------


@GUIDE.says(85, "by default, rank 0 hosts internal :py:class:`torch.distributed.TCPStore`")
def test_the_default_store():
    assert default("store_factory") is inprocess.store.TCPStore


@GUIDE.says(87, "users may specify a different implementation of a distributed store by subclassing from")
def test_a_store_of_ones_own():
    class Mine(inprocess.store.StoreMixin): ...

    assert Wrapper(store_factory=Mine, store_kwargs={"host": "h"}).store_factory is Mine
    with pytest.raises(TypeError, match="StoreMixin"):
        Wrapper(store_factory=dict)  # pyright: ignore[reportArgumentType]


# --- aborts ----------------------------------------------------------------------------------------------------------


@GUIDE.says(94, "asynchronously aborted by a separate monitoring thread that calls")
def test_the_default_abort():
    assert isinstance(default("abort"), inprocess.abort.AbortTorchDistributed)


@GUIDE.says(95, "users can specify additional :py:class:`nvidia_resiliency_ext.inprocess.abort.Abort` subclasses")
def test_an_abort_of_ones_own():
    class Mine(inprocess.abort.Abort):
        def __call__(self, state: FrozenState) -> FrozenState:
            return state

    composed = Compose(Mine(), inprocess.abort.AbortTorchDistributed())
    assert Wrapper(abort=composed).abort is composed


@GUIDE.says(103, "the last callback in the chain is executed first, so the following composition is recommended")
def test_the_last_callback_comes_first():
    assert calls(Compose(Named("a"), Named("b"), Named("c")), "x") == "a(b(c(x)))"


@GUIDE.says(
    107, "inprocess.Compose( inprocess.abort.AbortTransformerEngine(), inprocess.abort.AbortTorchDistributed(),"
)
def test_the_example_of_aborts():
    composed = inprocess.Compose(
        inprocess.abort.AbortTransformerEngine(),
        inprocess.abort.AbortTorchDistributed(),
    )
    assert isinstance(composed, inprocess.abort.Abort)
    assert Wrapper(abort=composed).abort is composed


# --- rank assignment -------------------------------------------------------------------------------------------------


def groups_of_eight() -> RankAssignment:
    return inprocess.Compose(
        inprocess.rank_assignment.ActivateAllRanks(),
        inprocess.rank_assignment.ShiftRanks(),
        inprocess.rank_assignment.FilterCountGroupedByKey(
            key_or_fn=lambda state: state.rank // 8,  # pyright: ignore[reportArgumentType]  # as printed
            condition=lambda count: count == 8,
        ),
    )


@GUIDE.says(128, "rank_filter() # deprecated")
def test_a_rank_filter_is_deprecated():
    with pytest.warns(DeprecationWarning, match="rank_filter"):
        Wrapper(
            rank_assignment=inprocess.rank_assignment.ShiftRanks(),
            rank_filter=inprocess.rank_assignment.ActivateAllRanks(),
        )


@GUIDE.says(187, "Multiple RankAssignments could be composed with")
@GUIDE.says(194, "rank_assignment = inprocess.Compose( inprocess.rank_assignment.ActivateAllRanks(),")
def test_the_example_of_groups_of_eight():
    assert World(24, lambda _: groups_of_eight()).assign().sizes() == (24, 24)
    Wrapper(rank_assignment=groups_of_eight())


@GUIDE.says(204, "If any rank within a group of 8 is unhealthy or terminated, the entire group is terminated")
def test_a_group_goes_as_a_whole():
    world = World(24, lambda _: groups_of_eight()).assign().assign({9})
    assert world.discarded() == [8, *range(10, 16)]


@GUIDE.says(205, "The remaining healthy ranks are then reassigned by shifting left to close any gaps")
def test_the_others_close_the_gap():
    ranks = World(24, lambda _: groups_of_eight()).assign().assign({9}).ranks()
    assert ranks == {rank: rank if rank < 8 else rank - 8 for rank in (*range(8), *range(16, 24))}


@GUIDE.says(233, "rank_assignment=inprocess.Compose( inprocess.rank_assignment.ActiveWorldSizeDivisibleBy(M),")
@GUIDE.says(240, "ensures that the active world size visible to the wrapped function is the largest multiple of ``M``")
@pytest.mark.parametrize(("lost", "sizes"), [(set[int](), (6, 10)), ({0, 1, 2}, (6, 7)), ({0, 1, 2, 3, 4}, (4, 5))])
def test_the_example_of_a_multiple_and_a_maximum(lost: set[int], sizes: tuple[int, int]):
    def assignment() -> RankAssignment:
        return inprocess.Compose(
            inprocess.rank_assignment.ActiveWorldSizeDivisibleBy(2),
            inprocess.rank_assignment.MaxActiveWorldSize(7),
            inprocess.rank_assignment.ShiftRanks(),
        )

    assert World(10, lambda _: assignment()).assign().assign(lost).sizes() == sizes


# --- Initialize ------------------------------------------------------------------------------------------------------


@GUIDE.says(254, "or to halt execution if the number of healthy workers drops below a specified threshold")
def test_the_retry_controller_needs_enough_ranks():
    controller = inprocess.initialize.RetryController(min_world_size=3)
    assert controller(state_of(world_size=3)).world_size == 3
    with pytest.raises(inprocess.exception.RestartAbort):
        controller(state_of(world_size=2))


@GUIDE.says(253, "can be used to limit the number of restart attempts")
def test_the_retry_controller_counts_iterations():
    controller = inprocess.initialize.RetryController(max_iterations=2)
    controller(state_of(iteration=1))
    with pytest.raises(inprocess.exception.RestartAbort):
        controller(state_of(iteration=2))


@GUIDE.says(257, "Multiple initializers could be composed with")
@GUIDE.says(259, "when using nested restarters, the")
def test_the_nested_restarter_is_listed_first(capsys: pytest.CaptureFixture[str]):
    composed = Compose(
        inprocess.nested_restarter.NestedRestarterHandlingCompleted(),
        inprocess.initialize.RetryController(max_iterations=1),
    )
    with pytest.raises(inprocess.exception.RestartAbort):
        composed(state_of(iteration=1))
    assert capsys.readouterr().out == "", "the controller, listed last, was called first"


# --- timeouts and intervals ------------------------------------------------------------------------------------------


@GUIDE.says(265, "waits for the ``last_call_wait`` interval")
@GUIDE.says(332, "The ``termination_grace_time`` parameter, configurable via :py:class:`Wrapper`")
@GUIDE.says(434, "``monitor_thread_interval`` parameter of the :py:class:`Wrapper`")
@GUIDE.says(450, "configured with ``heartbeat_timeout`` parameter of the :py:class:`Wrapper`")
@GUIDE.says(456, "``monitor_process_interval`` parameter of the :py:class:`Wrapper`")
@GUIDE.says(471, "governed by the ``progress_watchdog_interval`` parameter of the :py:class:`Wrapper`")
@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("last_call_wait", 1), ("termination_grace_time", 5), ("monitor_thread_interval", 1), ("heartbeat_timeout", 30),
        ("monitor_process_interval", 1), ("progress_watchdog_interval", 1), ("soft_timeout", 60), ("hard_timeout", 90),
        ("barrier_timeout", 120), ("completion_timeout", 120), ("heartbeat_interval", 1),
    ],
)  # fmt: skip
def test_each_duration_is_a_parameter(name: str, seconds: float):
    assert default(name) == timedelta(seconds=seconds)


@GUIDE.says(338, "it is safe to set ``termination_grace_time`` to 0 seconds")
def test_no_grace_time():
    assert Wrapper(termination_grace_time=timedelta(0)).termination_grace_time == timedelta(0)


@GUIDE.says(363, "progress by periodically calling the :py:meth:`inprocess.CallWrapper.ping`")
@GUIDE.says(295, "offers :py:meth:`inprocess.CallWrapper.atomic` context manager")
@pytest.mark.parametrize("name", ["ping", "atomic", "iteration"])
def test_what_a_call_wrapper_offers(name: str):
    assert hasattr(CallWrapper, name)


# --- families of callbacks -------------------------------------------------------------------------------------------


@GUIDE.says(394, "Multiple finalizers could be composed with")
@GUIDE.says(414, "Multiple health checks could be composed with")
@pytest.mark.parametrize(("name", "kind"), [("finalize", "Finalize"), ("health_check", "HealthCheck")])
def test_a_composition_is_of_its_family(name: str, kind: str):
    family: type[object] = getattr(getattr(inprocess, name), kind)

    class Mine(family):  # pyright: ignore[reportGeneralTypeIssues, reportUntypedBaseClass]
        def __call__(self, state: FrozenState) -> FrozenState:
            return state

    composed = Compose(Mine(), Mine())
    assert isinstance(composed, family)
    assert getattr(Wrapper(**{name: composed}), name) is composed  # pyright: ignore[reportArgumentType]


@GUIDE.says(601, "nvidia_resiliency_ext.inprocess.health_check.CudaHealthCheck`. Waiting for CUDA kernels")
def test_the_check_of_cuda_does_nothing_without_cuda():
    state = state_of()
    assert inprocess.health_check.CudaHealthCheck()(state) is state


# --- logging and known limits ----------------------------------------------------------------------------------------


@GUIDE.says(
    478,
    "leverages the Python logging module to output messages",
    instead="reference/in-process.md: the log goes to an ordinary logger, `holdfast.inprocess`",
)
def test_the_log_is_an_ordinary_logger():
    assert logging.getLogger("holdfast.inprocess").propagate


@GUIDE.says(566, "is not fully compatible with :py:func:`torch.distributed.run`")
def test_the_page_says_what_torchrun_does():
    page = " ".join((ROOT / "docs" / "reference" / "in-process.md").read_text().split())
    assert "under torchrun a job survives only exceptions and hangs" in page


@GUIDE.says(
    449,
    "The timeout for receiving a heartbeat from other distributed ranks is",
    instead="reference/in-process.md: another node is lost after 5 s of silence, whatever `heartbeat_timeout` says",
)
def test_heartbeat_timeout_is_checked_but_nodes_watch_each_other():
    with pytest.raises(ValueError, match="heartbeat_timeout < barrier_timeout"):
        Wrapper(heartbeat_timeout=timedelta(seconds=200))


@GUIDE.says(
    433,
    "The execution interval of the monitoring loop is governed by",
    instead="reference/in-process.md: nothing waits for an interval to pass; intervals are upper bounds",
)
def test_intervals_only_have_to_fit():
    with pytest.raises(ValueError, match="monitor_thread_interval < soft_timeout"):
        Wrapper(monitor_thread_interval=timedelta(seconds=60))


def test_the_statements_stand_at_their_lines():
    GUIDE.compare()
