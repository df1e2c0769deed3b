"""Writes docs/architecture/rules-taken-away.md from tests/soak/rules/*.toml."""

from __future__ import annotations

from pathlib import Path

from tests.soak.rule_entries import TABLES, rows, rows_without, rules

HEAD = """\
# Rules that were taken away, and the tests that fail without them

<!-- Written by docs/make_rules.py from tests/soak/rules/*.toml. Do not edit: run `make docs`. -->

A test shows a rule only if it fails without the rule. So each rule below has an entry in `tests/soak/rules`: the text
in the source that is the rule, what stands there without it, and the tests that fail then. `python -m tests.soak rules`
makes a copy of the sources, runs these tests in it as it is, then takes away one rule after the other, and names each
test that passes all the same. `python -m tests.soak rules B2 S5` tries the rules of these rows only.
`tests/test_rules_taken_away.py` checks that each text is still in its file exactly once, and that each row of the
tables has a rule here or a reason.
"""
TITLES = {
    "faults.md": "Faults on one node",
    "cluster-faults.md": "Faults between nodes",
    "security.md": "Rules of security",
}


def page() -> str:
    """Returns the whole page."""
    parts = [HEAD]
    every, without, shown = rules(), rows_without(), set[str]()
    for table in TABLES:
        of_table = [row for row in rows(table) if row not in shown]
        shown.update(of_table)
        parts.append(f"\n## {TITLES[table.name]}\n\nThe rows are those of [this table]({table.name}).\n")
        parts.append("\n| row | rule | where | fails without it |\n|---|---|---|---|\n")
        for rule in every:
            if rule.row in of_table:
                tests = ", ".join(f"`{test}`" for test in rule.tests)
                parts.append(f"| {rule.row} | {rule.says} | `{rule.file}` | {tests} |\n")
        if left := [row for row in of_table if row in without]:
            parts.append("\nRows without a rule here:\n\n| row | why |\n|---|---|\n")
            parts += [f"| {row} | {without[row]} |\n" for row in left]
    return "".join(parts)


if __name__ == "__main__":
    (Path(__file__).parent / "architecture" / "rules-taken-away.md").write_text(page())
