"""Writes docs/architecture/imports.md: which package imports which, according to the code."""

from pathlib import Path

import grimp

PACKAGES = ("supervisor", "worker_client", "holdfast_wire")
UNFOLDED = ("supervisor", "supervisor.core", "supervisor.edges")

HEADER = """# Who imports whom

<!-- Written by docs/make_architecture.py from the imports in the code. Do not edit: run `make docs`. -->

"""


def place(module: str) -> str | None:
    """Returns the box that a module is drawn in; None for the unfolded packages themselves."""
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        if name not in UNFOLDED:
            return name
    return None


def arrows() -> set[tuple[str, str]]:
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    found: set[tuple[str, str]] = set()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            source, target = place(module), place(imported)
            if source and target and source != target:
                found.add((source, target))
    return found


def box(name: str) -> str:
    return f'{name.replace(".", "_")}["{name}"]'


def page() -> str:
    lines = [f"    {box(source)} --> {box(target)}" for source, target in sorted(arrows())]
    return HEADER + "\n".join(["```mermaid", "flowchart TD", *lines, "```", ""])


if __name__ == "__main__":
    (Path(__file__).parent / "architecture" / "imports.md").write_text(page())
