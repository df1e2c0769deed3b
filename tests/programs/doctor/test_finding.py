"""Does every finding that is not ok say why it matters?"""

from __future__ import annotations

from supervisor.programs.doctor.finding import Area, Finding, Grade


def test_an_area_keeps_its_findings_in_order():
    area = Area("kernel")
    area.ok("a", "fine")
    area.skip("b", "not here")
    area.note("c", "so", why="x")
    area.warn("d", "less", why="x", remedy="y")
    area.problem("e", "broken", why="x", remedy="y")
    assert area.findings == [
        Finding("kernel", "a", Grade.OK, "fine"),
        Finding("kernel", "b", Grade.SKIPPED, "not here"),
        Finding("kernel", "c", Grade.NOTE, "so", "x"),
        Finding("kernel", "d", Grade.WARNING, "less", "x", "y"),
        Finding("kernel", "e", Grade.PROBLEM, "broken", "x", "y"),
    ]
