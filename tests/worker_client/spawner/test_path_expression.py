"""Which folder does a script insert into sys.path? Read from its source, and compared with Python's result."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from holdfast_wire.spawner_link import Ready

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, clean_env, worker
from worker_client.spawner.path_expression import Folders

HEAD = """
import os, sys, os.path as osp
from os import path
from os.path import dirname, join
from pathlib import Path
import pathlib
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT: str
TWICE = "a"
TWICE = "b"
"""


def calls(source: str) -> tuple[ast.Module, list[ast.Call]]:
    tree = ast.parse(source)
    inserts = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "sys.path.insert"
    ]
    return tree, inserts


def found(path: str, source: str) -> list[str] | None:
    """Returns the folders of all inserts; None if one is unknown."""
    tree, inserts = calls(source)
    folders = Folders(tree, path, os.path.dirname(os.path.realpath(path)))
    return folders.found if all(folders.take(call) for call in inserts) and inserts else None


@pytest.mark.parametrize(
    "expression",
    [
        "'/mine'",
        "'.'",
        "'..'",
        "''",
        "HERE",
        "os.path.join(HERE, '..')",
        "os.path.join(HERE, os.pardir, 'src')",
        "os.path.dirname(os.path.dirname(os.path.realpath(__file__)))",
        "os.path.abspath(os.path.join(os.path.dirname(__file__), '../..'))",
        "osp.join(osp.dirname(__file__), 'lib')",
        "path.normpath(path.join(path.dirname(__file__), 'a', '..', 'b'))",
        "dirname(dirname(__file__))",
        "join(HERE, 'x')",
        "os.getcwd()",
        "HERE + '/x'",
        "str(Path(__file__).parent)",
        "str(Path(__file__).resolve().parent.parent)",
        "str(Path(__file__).absolute().parents[1] / 'src')",
        "str(pathlib.Path(__file__).parent / '..' / 'lib')",
        "os.fspath(Path.cwd() / 'lib')",
        "str(Path('a/b/').parent)",
        "str(Path('/').parent)",
        "sys.path[0]",
    ],
)
def test_it_is_what_python_makes_of_it(script: Script, tmp_path: Path, expression: str) -> None:
    source = f"{HEAD}\nfirst = {expression}\nsys.path.insert(0, {expression})\n"
    path = script(f"{source}print(os.path.abspath(first))")
    link = tmp_path / "link.py"
    link.symlink_to(path)
    for name in (path, str(link)):
        done = subprocess.run([sys.executable, name], cwd=tmp_path, capture_output=True, text=True, check=True)
        here = os.getcwd()
        os.chdir(tmp_path)
        try:
            assert found(name, source) == [done.stdout.rstrip("\n")]
        finally:
            os.chdir(here)


@pytest.mark.parametrize(
    "line",
    [
        "sys.path.insert(0, where())",
        "sys.path.insert(0, os.environ['PROJECT'])",
        "sys.path.insert(0, TWICE)",
        "sys.path.insert(0, ROOT)",
        "sys.path.insert(0, f'{HERE}/x')",
        "sys.path.insert(0, HERE.replace('a', 'b'))",
        "sys.path.insert(0, os.path.join(HERE, sys.argv[1]))",
        "sys.path.insert(0, os.path.join(*HERE))",
        "sys.path.insert(0, basename(HERE))",
        "sys.path.insert(0, Path(__file__).parents[-1])",
        "sys.path.insert(0, loop)\nloop = loop",
        "sys.path.insert(*arguments)",
        "sys.path.insert(0)",
        "def f(HERE):\n    sys.path.insert(0, HERE)",
        "os.chdir('/')\nsys.path.insert(0, 'lib')",
        "os.chdir('/')\nsys.path.insert(0, os.path.abspath('lib'))",
        "os.chdir('/')\nsys.path.insert(0, os.getcwd())",
        "os.chdir('/')\nsys.path.insert(0, str(Path('lib').resolve()))",
    ],
)
def test_what_can_not_be_told(script: Script, line: str) -> None:
    source = HEAD + line
    assert found(script(source), source) is None


def test_a_folder_named_by_its_file_is_told_wherever_the_script_goes(script: Script) -> None:
    source = "import os, sys\nos.chdir('/')\nsys.path.insert(0, os.path.dirname(__file__))"
    path = script(source)
    assert found(path, source) == [os.path.dirname(path)]


class TestForReal:
    """A module stands for torch."""

    SOURCE = """
        import os, sys
        sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "src"))
        import torch, mine
        print(torch.WHO, mine.WHO)
    """

    def run(self, script: Script, tmp_path: Path) -> tuple[Ready, str]:
        script("WHO = 'installed'\nclass default_generator:\n    seed = staticmethod(int)", "library/torch.py")
        script("WHO = 'mine'", "src/mine.py")
        with Rig(script(self.SOURCE), env=clean_env(PYTHONPATH=str(tmp_path / "library"))) as rig:
            ready = rig.receive(Ready)
            assert rig.run(worker(0))[0].code == 0
            return ready, rig.end()[0]

    def test_a_project_beside_the_scripts_is_no_reason_to_load_nothing_ahead(
        self, script: Script, tmp_path: Path
    ) -> None:
        ready, out = self.run(script, tmp_path)
        assert (ready.method, ready.preloaded) == ("fork", ("torch",))
        assert out == "installed mine\n"

    def test_where_one_hides_torch_each_worker_loads_it_itself(self, script: Script, tmp_path: Path) -> None:
        script("WHO = 'project'", "src/torch.py")
        ready, out = self.run(script, tmp_path)
        assert (ready.method, ready.preloaded) == ("fork", ())
        assert f"torch.py in {tmp_path / 'src'} would be hidden by the preloaded module torch" in ready.method_reason
        assert out == "project mine\n"
