"""Does the soak of restarts detect growth and slowdown, and nothing else?"""

from __future__ import annotations

from dataclasses import replace

from tests.soak.restarts import Row, judged


def rows(restarts: int = 2000) -> list[Row]:
    """Returns a flat run of 40 restarts a second."""
    return [
        Row(done, done / 40, (50_000, 14_000), (30_000, 5_000), (43, 19), (done * 0.02, done * 0.01), 40, 0)
        for done in range(1, restarts + 2, 50)
    ]


def changed(kib: float = 0.0, descriptors: float = 0.0, files: float = 0.0) -> list[str]:
    """Returns the failures if each restart leaves this much."""
    return judged(
        [
            replace(
                row,
                rss_kib=(row.rss_kib[0] + int(kib * row.restarts), row.rss_kib[1]),
                descriptors=(row.descriptors[0], row.descriptors[1] + int(descriptors * row.restarts)),
                files=row.files + int(files * row.restarts),
            )
            for row in rows()
        ],
        ranks=2,
    )


def test_a_flat_run_is_well() -> None:
    assert changed() == []


def test_what_grows_is_said() -> None:
    assert changed(kib=0.4) == []
    (said,) = changed(kib=0.6)
    assert said.startswith("supervisor: 50")
    assert "0.60 KiB a restart" in said
    (said,) = changed(descriptors=0.01)
    assert said.startswith("spawner: ")


def test_what_the_first_look_at_the_logs_takes_is_no_growth() -> None:
    looked = [
        replace(row, rss_kib=(50_900, 14_000), files=40)
        if row.restarts > 1000
        else replace(row, files=4 * row.restarts)
        for row in rows()
    ]
    assert judged(looked, ranks=2) == []
    grown = [replace(row, rss_kib=(row.rss_kib[0] + int(0.6 * row.restarts), 14_000)) for row in looked]
    (said,) = judged(grown, ranks=2)
    assert said.startswith("supervisor: 51")


def test_logs_that_are_never_pruned_are_said() -> None:
    slow = [replace(row, at_s=row.at_s * 40, files=row.files + 4 * row.restarts) for row in rows()]
    (said,) = judged(slow, ranks=2)
    assert "files after" in said


def test_slower_is_wrong_where_a_restart_costs_more_and_not_where_the_machine_had_less_time() -> None:
    late = [replace(row, at_s=row.at_s + max(0, row.restarts - 1700) / 20) for row in rows()]
    assert judged(late, ranks=2) == []
    dear = [replace(row, cpu_s=(row.cpu_s[0] + max(0, row.restarts - 1700) * 0.02, row.cpu_s[1])) for row in late]
    (said,) = judged(dear, ranks=2)
    assert said.startswith("restarts a second: 40.0, at the end 13.3")


def test_the_memory_of_a_short_run_is_not_judged() -> None:
    short = [replace(row, rss_kib=(50_000 + 6 * row.restarts, 14_000)) for row in rows(800)]
    assert judged(short, ranks=2) == []


def test_too_little_is_not_judged() -> None:
    assert judged([], ranks=2) == ["too few measurements to judge"]
