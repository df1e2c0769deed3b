"""Are our stores torch's, and is torch loaded only once one is opened?"""

from __future__ import annotations

from pathlib import Path

from tests.worker_client.inprocess.store_process import ran, ran_without_torch
from worker_client.inprocess.store import BarrierError, FileStore, PrefixStore, StoreMixin, TCPStore


def test_the_classes_are_one_family_without_torch(tmp_path: Path):
    assert all(issubclass(each, StoreMixin) for each in (TCPStore, FileStore, PrefixStore))
    assert BarrierError.__mro__[1].__name__ == "RestartError"
    ran_without_torch("assert 'torch' not in sys.modules and 'logging' not in sys.modules, sys.modules", tmp_path)


def test_subclasses_of_ours_and_of_torchs_with_the_mixin(tmp_path: Path):
    script = """
class Mine(FileStore):
    made = 0
    def __init__(self, name, *, folder="."):
        Mine.made += 1
        super().__init__(os.path.join(folder, name))
        self.name = name
first, second = Mine("shared"), Mine("shared", folder=os.getcwd())
assert type(first) is type(second) and Mine.made == 2 and first.name == "shared"
first.set("a", "1")
assert second.get("a") == b"1"

import torch.distributed as dist
for bases in ((dist.FileStore, StoreMixin), (StoreMixin, dist.FileStore)):
    class Theirs(*bases):
        def __init__(self, path):
            super().__init__(path, -1)
    theirs = Theirs("shared")
    assert theirs.get("a") == b"1"
    assert Theirs.barrier is StoreMixin.barrier  # torch has one of another meaning
    theirs.barrier([0], f"name {bases}", 1, SECOND)
"""
    ran(script, tmp_path)
