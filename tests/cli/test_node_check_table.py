"""How are the checks of nodes shown in a terminal and in a pipe?"""

from __future__ import annotations

from supervisor.cli import node_check_table, output
from supervisor.ports.reports import CheckReport, JobNodeReport

NOW_NS = 100 * 10**9
PIPE = output.TextLayout(None, colours=False)
WELL = CheckReport("storage", "healthy", "", 0.0021, "/data", NOW_NS - 12 * 10**9)
ILL = CheckReport("nvhcd", "unhealthy", "nvhcd counts 2 failed checks (gpu, nic)", 3.5, "", NOW_NS - 10**9)


def test_they_are_counted_the_worst_first() -> None:
    assert node_check_table.counts([WELL, ILL, WELL]) == "1 unhealthy, 2 healthy"
    assert node_check_table.counts([]) == ""
    assert node_check_table.counts([CheckReport("x", "of a later version"), WELL]) == "1 healthy, 1 of a later version"


def test_each_has_a_row_with_how_long_it_took_and_why() -> None:
    lines = node_check_table.table([JobNodeReport("n1", "ready", checks=(WELL, ILL))], NOW_NS, PIPE).splitlines()
    assert lines[0].split() == ["CHECK", "NODE", "VERDICT", "TOOK", "LOOKED", "AT", "REASON"]
    assert lines[1].split() == ["storage", "/data", "n1", "healthy", "2.1", "ms", "12s", "ago"]
    assert lines[2].endswith("nvhcd counts 2 failed checks (gpu, nic)")
    assert node_check_table.table([JobNodeReport("n1", "ready")], NOW_NS, PIPE) == ""


def test_of_many_only_the_bad_ones_are_shown() -> None:
    nodes = [JobNodeReport(f"n{number}", "active", checks=(WELL,)) for number in range(node_check_table.ROWS_MAX)]
    assert len(node_check_table.table(nodes, NOW_NS, PIPE).splitlines()) == 1 + node_check_table.ROWS_MAX
    nodes.append(JobNodeReport("sick", "excluded", checks=(ILL,)))
    assert [line.split()[1] for line in node_check_table.table(nodes, NOW_NS, PIPE).splitlines()[1:]] == ["sick"]
