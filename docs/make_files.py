"""Writes docs/architecture/files.md: the question that each file answers, from the first line of its docstring."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("supervisor", "worker_client", "proto/holdfast_wire")

HEADER = """# The question that each file answers

<!-- Written by docs/make_files.py from the first lines of the files. Do not edit: run `make docs`. -->

Search here for the words of a symptom. [Where to look](where-to-look.md) lists known symptoms.
"""


def question(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split())


def page() -> str:
    rows = [f"| `{path.name}` | {question(path)} |" for path in sorted(ROOT.glob("holdfast_*.py"))]
    parts = [HEADER, "## ./\n\n| file | |\n|---|---|\n" + "\n".join(rows) + "\n"]
    for package in PACKAGES:
        folders = sorted({path.parent for path in (ROOT / package).rglob("*.py")})
        for folder in folders:
            files = [path for path in sorted(folder.glob("*.py")) if "_pb2" not in path.name]
            told = [(path.name, question(path)) for path in files]
            rows = [
                f"| `{name}` | {text.replace('|', 'or')} |" for name, text in told if text and name != "__init__.py"
            ]
            if rows:
                about = next((text for name, text in told if name == "__init__.py"), "")
                heading = f"## {folder.relative_to(ROOT).as_posix()}/\n\n"
                parts.append(
                    heading + (f"{about}\n\n" if about else "") + "| file | |\n|---|---|\n" + "\n".join(rows) + "\n"
                )
    return "\n".join(parts)


if __name__ == "__main__":
    (Path(__file__).parent / "architecture" / "files.md").write_text(page())
