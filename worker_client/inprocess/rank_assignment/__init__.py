"""Which number does each rank have in the next iteration, and which ranks call the wrapped function?"""

from worker_client.inprocess.rank_assignment.applying import assign as assign
from worker_client.inprocess.rank_assignment.applying import resolve as resolve
from worker_client.inprocess.rank_assignment.assignment import RankAssignment as RankAssignment
from worker_client.inprocess.rank_assignment.assignment import RankAssignmentCtx as RankAssignmentCtx
from worker_client.inprocess.rank_assignment.assignment import RankDiscarded as RankDiscarded
from worker_client.inprocess.rank_assignment.assignment import RankFilter as RankFilter
from worker_client.inprocess.rank_assignment.composable import ActivateAllRanks as ActivateAllRanks
from worker_client.inprocess.rank_assignment.composable import ActiveWorldSizeDivisibleBy as ActiveWorldSizeDivisibleBy
from worker_client.inprocess.rank_assignment.composable import FillGaps as FillGaps
from worker_client.inprocess.rank_assignment.composable import MaxActiveWorldSize as MaxActiveWorldSize
from worker_client.inprocess.rank_assignment.composable import ShiftRanks as ShiftRanks
from worker_client.inprocess.rank_assignment.grouped import FilterCountGroupedByKey as FilterCountGroupedByKey
from worker_client.inprocess.rank_assignment.tree import Tree as Tree
from worker_client.inprocess.rank_assignment.tree_layers import Layer as Layer
from worker_client.inprocess.rank_assignment.tree_layers import LayerFlag as LayerFlag
