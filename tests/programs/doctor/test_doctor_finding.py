"""Does every finding that is not ok say why it matters?"""

from __future__ import annotations

from supervisor.programs.doctor.doctor_finding import Area, DoctorFinding, Grade


def test_an_area_keeps_its_findings_in_order():
    area = Area("kernel")
    area.ok("a", "fine")
    area.skip("b", "not here")
    area.note("c", "so", why="x")
    area.warn("d", "less", why="x", remedy="y")
    area.problem("e", "broken", why="x", remedy="y")
    assert area.findings == [
        DoctorFinding("kernel", "a", Grade.OK, "fine"),
        DoctorFinding("kernel", "b", Grade.SKIPPED, "not here"),
        DoctorFinding("kernel", "c", Grade.NOTE, "so", "x"),
        DoctorFinding("kernel", "d", Grade.WARNING, "less", "x", "y"),
        DoctorFinding("kernel", "e", Grade.PROBLEM, "broken", "x", "y"),
    ]
