"""What torch.compile would find out in each worker is found out before they are forked, or not at all."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from worker_client.spawner import compile_facts


class Instruction:
    def __init__(self, name: str, *, works: bool) -> None:
        self._name, self.works, self.probes = name, works, 0

    def __str__(self) -> str:
        return self._name

    @functools.cache  # noqa: B019 - as torch's
    def __bool__(self) -> bool:
        self.probes += 1
        return self.works


class Torch:
    """The two modules of torch, with as many vector instructions as given; the CPU has no "amx"."""

    def __init__(self, patch: pytest.MonkeyPatch, *of_compiler: Instruction) -> None:
        self.hashed = 0
        cache, instructions = ModuleType("torch._inductor.codecache"), ModuleType("torch._inductor.cpu_vec_isa")

        @functools.cache
        def torch_key() -> bytes:
            self.hashed += 1
            return b"key"

        @functools.cache
        def valid() -> list[Instruction]:
            return [each for each in of_compiler if str(each) != "amx" and each]

        self.torch_key, self.valid = torch_key, valid
        vars(cache).update(torch_key=torch_key)
        vars(instructions).update(
            supported_vec_isa_list=list(of_compiler),
            x86_isa_checker=lambda: ["avx2", "avx512"],
            valid_vec_isa_list=valid,
        )
        for module in (cache, instructions):
            patch.setitem(sys.modules, module.__name__, module)


def test_both_are_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Instruction("avx512", works=True), Instruction("avx2", works=True), Instruction("amx", works=True)
    torch = Torch(monkeypatch, *known)
    compile_facts.find_out()
    assert (torch.torch_key(), torch.valid()) == (b"key", list(known[:2]))
    assert (torch.hashed, [each.probes for each in known]) == (1, [1, 1, 0])


def test_a_probe_that_failed_is_made_again_by_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its script may name a compiler that is not there by default."""
    failing = Instruction("avx512", works=False)
    torch = Torch(monkeypatch, failing)
    compile_facts.find_out()
    failing.works = True
    assert torch.valid() == [failing]


def test_where_torch_has_no_such_thing_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._inductor.codecache", ModuleType("torch._inductor.codecache"))
    monkeypatch.delitem(sys.modules, "torch._inductor.cpu_vec_isa", raising=False)
    compile_facts.find_out()
    monkeypatch.delitem(sys.modules, "torch._inductor.codecache")
    compile_facts.find_out()
    assert "torch._inductor.codecache" not in sys.modules


REAL = """
import sys
import torch._inductor.codecache as cache
import torch._inductor.cpu_vec_isa as instructions
from worker_client.spawner import compile_facts

compile_facts.find_out()

def refuse(*_arguments, **_keywords):
    raise AssertionError("found out once more")

cache.build_code_hash = instructions.VecISA.check_build = refuse
cache.torch_key()
print(instructions.pick_vec_isa())
"""


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++ is installed")
def test_the_torch_that_is_here_keeps_both() -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", REAL], cwd=root, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
