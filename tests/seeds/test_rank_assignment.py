"""The page about rank assignment, statement by statement, with its figures and examples."""

from __future__ import annotations

import inspect
import socket
from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.seeds.documents import Document
from tests.worker_client.inprocess.rank_world import World
from worker_client import inprocess
from worker_client.inprocess.rank_assignment import (
    ActivateAllRanks,
    ActiveWorldSizeDivisibleBy,
    FillGaps,
    FilterCountGroupedByKey,
    Layer,
    LayerFlag,
    MaxActiveWorldSize,
    RankAssignment,
    RankDiscarded,
    RankFilter,
    ShiftRanks,
    Tree,
)
from worker_client.inprocess.state import Mode, State

PAGE = Document("rank-assignment")
RESERVE, BACKFILL = LayerFlag.RESERVE, LayerFlag.BACKFILL


def after(size: int, die: set[int], make: Callable[[], RankAssignment]) -> World:
    """Returns the world after one restart at which the initial ranks `die` were lost."""
    return World(size, lambda _: make()).assign().assign(die)


def by(size: int) -> Callable[[State], str]:
    return lambda state: str(state.rank // size)


def active(world: World) -> str:
    """Formats active ranks by initial rank; "-" for inactive, discarded and dead ones."""
    return " ".join("-" if rank is None else str(rank) for rank in world.active())


def parameters(kind: Callable[..., object]) -> dict[str, object]:
    """Returns parameters and defaults, in order."""
    found = inspect.signature(kind).parameters.values()
    return {each.name: None if each.default is each.empty else each.default for each in found}


# --- Tree ------------------------------------------------------------------------------------------------------------


@PAGE.says(9, "Layer(min_ranks=1, max_ranks=None, key_or_fn='', flag=None)")
def test_the_parameters_of_a_layer():
    assert list(parameters(Layer).items()) == [("min_ranks", 1), ("max_ranks", None), ("key_or_fn", ""), ("flag", None)]


@PAGE.says(14, "the minimum number of healthy ranks in a subtree")
def test_a_subtree_below_its_minimum_goes():
    world = after(4, {3}, lambda: Tree([Layer(), Layer(min_ranks=2, key_or_fn=by(2))]))
    assert world.discarded() == [2]


@PAGE.says(16, "the maximum number of ranks to activate in a subtree, no limit if None")
@pytest.mark.parametrize(("most", "shown"), [(2, "0 1 - -"), (None, "0 1 2 3")])
def test_a_subtree_activates_no_more_than_its_maximum(most: int | None, shown: str):
    assert active(World(4, lambda _: Tree([Layer(max_ranks=most)])).assign()) == shown


@PAGE.says(18, "a string key, or a Callable evaluated with inprocess.State")
@pytest.mark.parametrize(("key", "shown"), [("all", "0 - - -"), (by(2), "0 - 1 -")])
def test_a_key_is_a_string_or_comes_from_the_state(key: str | Callable[[State], str], shown: str):
    assert active(World(4, lambda _: Tree([Layer(), Layer(max_ranks=1, key_or_fn=key)])).assign()) == shown


@PAGE.says(20, "an optional flag that modifies rank assignment policy in a given branch")
def test_a_layer_has_no_flag_or_one():
    assert Layer().flag is None
    assert Layer(flag=RESERVE).flag is RESERVE


@PAGE.says(22, "class nvidia_resiliency_ext.inprocess.rank_assignment.LayerFlag(value)")
def test_there_are_two_flags():
    assert [flag.name for flag in LayerFlag] == ["RESERVE", "BACKFILL"]


@PAGE.says(28, "may be traversed while searching for a replacement inactive rank")
def test_with_reserve_an_inactive_rank_steps_in():
    assert active(after(4, {0}, lambda: Tree([Layer(max_ranks=2, flag=RESERVE)]))) == "- 1 - 0"


@PAGE.says(32, "may be traversed while searching for a replacement active rank")
def test_with_backfill_the_last_active_rank_steps_in():
    assert active(after(4, {0}, lambda: Tree([Layer(flag=BACKFILL)]))) == "- 1 2 0"


@PAGE.says(34, "Tree(layers, world_size_filter=None)")
def test_the_parameters_of_a_tree():
    assert list(parameters(Tree).items())[:2] == [("layers", None), ("world_size_filter", None)]


@PAGE.says(38, "Tree constructs a rooted topology tree whose depth equals the number of layers")
def test_each_layer_divides_the_one_above():
    layers = [Layer(), Layer(max_ranks=3, key_or_fn=by(4)), Layer(max_ranks=1, key_or_fn=by(2))]
    assert active(World(8, lambda _: Tree(layers)).assign()) == "0 - 1 - 2 - 3 -"


@PAGE.says(44, "traverses all ranks in depth-first order. For each visited rank, if all ancestor layers permit more")
def test_ranks_are_activated_where_all_layers_above_permit_it():
    layers = [Layer(max_ranks=3), Layer(max_ranks=2, key_or_fn=by(3))]
    assert active(World(6, lambda _: Tree(layers)).assign()) == "0 1 - 2 - -"


@PAGE.says(52, "that entire branch (and its subtree) is terminated")
def test_the_termination_spreads_to_the_branch_above():
    layers = [Layer(), Layer(min_ranks=3, key_or_fn=by(4)), Layer(min_ranks=2, key_or_fn=by(2))]
    world = after(8, {0}, lambda: Tree(layers))
    assert world.discarded() == [1, 2, 3], "rank 1 goes with 0, so that too few are left of the four"


@PAGE.says(56, "from the nearest ancestor subtree that has the LayerFlag.RESERVE flag")
def test_the_nearest_reserve_comes_first():
    layers = [Layer(flag=RESERVE), Layer(max_ranks=3, key_or_fn=by(4), flag=RESERVE)]
    assert active(after(8, {1}, lambda: Tree(layers))) == "0 - 2 1 3 4 5 -"


@PAGE.says(56, "continues recursively upward until a branch without the LayerFlag.RESERVE flag is reached")
@pytest.mark.parametrize(("root", "shown"), [(RESERVE, "- - 2 0 3 4 5 1"), (None, "- - 1 0 2 3 4 -")])
def test_the_search_ends_where_the_flag_does(root: LayerFlag | None, shown: str):
    layers = [Layer(flag=root), Layer(max_ranks=3, key_or_fn=by(4), flag=RESERVE)]
    assert active(after(8, {0, 1}, lambda: Tree(layers))) == shown


@PAGE.says(60, "an active rank with the largest rank index swaps places with a terminated rank")
def test_backfill_within_its_subtree():
    layers = [Layer(), Layer(key_or_fn=by(4), flag=BACKFILL)]
    assert active(after(8, {0}, lambda: Tree(layers))) == "- 1 2 0 3 4 5 6"


@PAGE.says(64, "remaining gaps from unhandled terminations are closed by shifting healthy ranks left")
def test_without_flags_ranks_shift():
    assert active(after(5, {1}, lambda: Tree([Layer()]))) == "0 - 1 2 3"


@PAGE.says(68, "invoked with the current number of active ranks as an argument, and returns the adjusted number")
def test_a_filter_deactivates_the_last_ranks():
    heard: list[int] = []

    def even(size: int) -> int:
        heard.append(size)
        return size // 2 * 2

    assert active(after(4, {1}, lambda: Tree([Layer()], world_size_filter=even))) == "0 - 1 -"
    assert set(heard) == {4, 3}


@PAGE.says(68, "no greater than the input")
def test_a_filter_that_asks_for_more_is_an_error():
    world = World(2, lambda _: Tree([Layer()], world_size_filter=lambda size: size + 1)).assign()
    assert all(issubclass(each or int, Exception) for each in world.outcomes())


@PAGE.says(68, "deactivated and become part of the reserve pool")
def test_what_a_filter_deactivates_can_come_back():
    tree = World(4, lambda _: Tree([Layer(flag=RESERVE)], world_size_filter=lambda size: min(size, 3))).assign()
    assert active(tree) == "0 1 2 -"
    assert active(tree.assign({1})) == "0 - 2 1"


@PAGE.says(72, "Tree cannot be composed with any other instance of RankAssignment or RankFilter")
@pytest.mark.parametrize("other", [ShiftRanks(), ActivateAllRanks()])
def test_a_tree_stands_alone(other: RankAssignment):
    with pytest.raises(TypeError):
        inprocess.Compose(Tree([Layer()]), other)


def example(host: Callable[[State], str]) -> Tree:
    """Returns the page's tree; hosts are told by rank."""
    return inprocess.rank_assignment.Tree(
        [
            inprocess.rank_assignment.Layer(
                min_ranks=128, max_ranks=256, key_or_fn="root", flag=inprocess.rank_assignment.LayerFlag.RESERVE
            ),
            inprocess.rank_assignment.Layer(
                min_ranks=8, max_ranks=8, key_or_fn=host, flag=inprocess.rank_assignment.LayerFlag.RESERVE
            ),
        ]
    )


@PAGE.says(76, "inprocess.rank_assignment.Tree( [ inprocess.rank_assignment.Layer( min_ranks=128,")
def test_the_example_as_printed():
    tree = example(lambda _: socket.gethostname())
    assert inprocess.Wrapper(rank_assignment=tree).rank_assignment is tree


@PAGE.says(95, "The first layer (hostname-based) allows up to 8 active ranks per host")
def test_eight_ranks_of_each_host_are_active():
    assert World(18 * 9, lambda _: example(by(9))).assign().sizes() == (18 * 8, 18 * 9)


@PAGE.says(95, "If the number of healthy ranks in any host drops below 8 (Layer.min_ranks=8), that entire host")
def test_a_host_with_seven_ranks_goes():
    world = after(17 * 8, {3}, lambda: example(by(8)))
    assert world.discarded() == [0, 1, 2, 4, 5, 6, 7]
    assert world.sizes() == (128, 128)


@PAGE.says(97, "If the global healthy rank count drops below 128 (Layer.min_ranks=128), all ranks are terminated")
def test_below_the_minimum_of_the_root_all_go():
    assert after(16 * 8, {3}, lambda: example(by(8))).sizes() == (0, 0)


@PAGE.says(97, "permits up to 256 active ranks (Layer.max_ranks=256)")
def test_the_root_limits_all_hosts_together():
    assert World(34 * 8, lambda _: example(by(8))).assign().sizes() == (256, 272)


# --- rank assignments that compose -----------------------------------------------------------------------------------


@PAGE.says(110, "preserves the previous rank assignment for the first world_size - len(terminated_ranks) healthy ranks")
def test_only_the_last_ranks_move_into_gaps():
    assert after(6, {0, 5}, FillGaps).ranks() == {1: 1, 2: 2, 3: 3, 4: 0}


@PAGE.says(117, "| 0 | X | 2 | 3 | X | X | 6 | 7 | --> | 0 | 6 | 2 | 3 | 7 |")
def test_the_figure_of_fill_gaps():
    assert after(8, {1, 4, 5}, FillGaps).ranks() == {0: 0, 6: 1, 2: 2, 3: 3, 7: 4}


@PAGE.says(124, "FilterCountGroupedByKey(key_or_fn, condition, timeout=datetime.timedelta(seconds=60))")
def test_the_parameters_of_the_counting_filter():
    assert list(parameters(FilterCountGroupedByKey).items()) == [
        ("key_or_fn", None), ("condition", None), ("timeout", timedelta(seconds=60)),
    ]  # fmt: skip


def pairs(condition: Callable[[int], bool] = lambda count: count == 2) -> RankAssignment:
    return inprocess.Compose(ShiftRanks(), FilterCountGroupedByKey(key_or_fn=by(2), condition=condition))


@PAGE.says(128, "For each group, it increments a group counter by 1 for every healthy rank")
def test_the_condition_gets_the_number_of_healthy_ranks():
    heard: set[int] = set()

    def condition(count: int) -> bool:
        heard.add(count)
        return True

    after(6, {1}, lambda: pairs(condition))
    assert heard == {1, 2}


@PAGE.says(130, "If condition(group_counter) evaluates to True, the rank is preserved")
def test_whole_groups_stay():
    assert after(4, {2, 3}, pairs).ranks() == {0: 0, 1: 1}


@PAGE.says(132, "If it evaluates to False, the rank is considered unhealthy and marked for termination")
def test_broken_groups_go():
    assert after(4, {3}, pairs).discarded() == [2]


@PAGE.says(134, "another RankAssignment that performs the actual rank termination by raising RankDiscarded exception")
def test_the_rank_is_discarded_by_an_exception():
    assert after(4, {3}, pairs).outcomes()[2] is RankDiscarded


@PAGE.says(139, "| 0 | X | 2 | 3 | X | X | 6 | 7 | --> | X | X | 2 | 3 | X | X | 6 | 7 |")
def test_the_figure_of_groups_of_two():
    assert after(8, {1, 4, 5}, pairs).ranks() == {2: 0, 3: 1, 6: 2, 7: 3}


@PAGE.says(153, "rank_assignment = ( inprocess.Compose( inprocess.rank_assignment.ShiftRanks(),")
def test_the_example_of_hosts_of_eight_as_printed():
    rank_assignment = (
        inprocess.Compose(
            inprocess.rank_assignment.ShiftRanks(),
            inprocess.rank_assignment.FilterCountGroupedByKey(
                key_or_fn=lambda _: socket.gethostname(),
                condition=lambda count: count == 8,
            ),
        ),
    )
    inprocess.Wrapper(rank_assignment=rank_assignment)
    alone = rank_assignment[0]
    assert World(8, lambda _: alone).assign().sizes() == (8, 8)
    assert World(7, lambda _: alone).assign().sizes() == (0, 0)


@PAGE.says(163, "a string key, or a Callable evaluated")
def test_a_string_is_one_group():
    def all_four() -> RankAssignment:
        return inprocess.Compose(ShiftRanks(), FilterCountGroupedByKey("all", lambda count: count == 4))

    assert World(4, lambda _: all_four()).assign().sizes() == (4, 4)
    assert after(4, {3}, all_four).sizes() == (0, 0)


@PAGE.says(173, "preserves the relative order of all healthy ranks, but all ranks past the first unhealthy rank are")
def test_shifting_keeps_the_order():
    assert after(6, {2}, ShiftRanks).ranks() == {0: 0, 1: 1, 3: 2, 4: 3, 5: 4}


@PAGE.says(182, "| 0 | X | 2 | 3 | X | X | 6 | 7 | --> | 0 | 2 | 3 | 6 | 7 |")
def test_the_figure_of_shift_ranks():
    assert after(8, {1, 4, 5}, ShiftRanks).ranks() == {0: 0, 2: 1, 3: 2, 6: 3, 7: 4}


# --- rank filters ----------------------------------------------------------------------------------------------------


@PAGE.says(190, "Rank Filtering")
@pytest.mark.parametrize("kind", [ActivateAllRanks, ActiveWorldSizeDivisibleBy, MaxActiveWorldSize])
def test_filters_have_a_class_of_their_own(kind: type[RankFilter]):
    assert issubclass(kind, RankFilter)


@PAGE.says(200, "All healthy distributed ranks will call the provided wrapped function in the next iteration")
def test_all_ranks_are_active():
    world = after(4, {1}, lambda: inprocess.Compose(ActivateAllRanks(), ShiftRanks()))
    assert {rank.state.mode for rank in world.living} == {Mode.ACTIVE}


@PAGE.says(202, "cannot be combined with any other RankAssignment performing rank activation")
def test_two_activators_are_an_error():
    with pytest.raises(TypeError):
        inprocess.Compose(ActivateAllRanks(), MaxActiveWorldSize(2))


@PAGE.says(204, "ActiveWorldSizeDivisibleBy(divisor=1)")
def test_the_parameter_of_divisibility():
    assert parameters(ActiveWorldSizeDivisibleBy) == {"divisor": 1}


@PAGE.says(206, "ensures that the active world size is divisible by a given number")
def test_the_active_world_is_a_multiple():
    world = after(8, {1}, lambda: inprocess.Compose(ActiveWorldSizeDivisibleBy(4), ShiftRanks()))
    assert world.sizes() == (4, 7)
    assert active(world) == "0 - 1 2 3 - - -"


@PAGE.says(212, "MaxActiveWorldSize(max_active_world_size=None)")
def test_the_parameter_of_the_maximum():
    assert parameters(MaxActiveWorldSize) == {"max_active_world_size": None}


@PAGE.says(214, "Ranks with indices less than the active world size are active and calling the wrapped function")
def test_the_first_ranks_are_active():
    assert active(after(5, {1}, lambda: inprocess.Compose(MaxActiveWorldSize(3), ShiftRanks()))) == "0 - 1 2 -"


@PAGE.says(218, "maximum active world size, no limit if None")
def test_no_maximum():
    assert World(5, lambda _: MaxActiveWorldSize()).assign().sizes() == (5, 5)


def test_the_statements_stand_at_their_lines():
    PAGE.compare()
