"""Is the program etcd found, and refused if it is of no use?"""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.edges.peers.election import etcd_program
from supervisor.edges.peers.election.etcd_member_connection import Endpoint
from supervisor.edges.peers.election.etcd_program import EtcdProgram
from supervisor.edges.peers.election.member_tls import MemberFiles
from supervisor.errors import ConfigurationError

REMEDY = "install etcd 3.4 or newer"


def _install(folder: Path, script: str) -> Path:
    path = folder / "etcd"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'etcd Version: 3.3.25'", "etcd is version 3.3, which knows no learners; " + REMEDY),
        ("echo 'etcd Version: 2.10.1'", "etcd is version 2.10, which"),
        ("exit 127", "etcd does not start: .*; " + REMEDY),
    ],
)
def test_a_program_of_no_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str):
    _install(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ConfigurationError, match=says):
        etcd_program.find()


@pytest.mark.parametrize("version", ["3.4.23", "3.10.0", "4.0.0"])
def test_a_program_that_is_new_enough_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str):
    path = _install(tmp_path, f"echo 'etcd Version: {version}'")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert etcd_program.find() == str(path)


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ('{"msg":"one"}\n{"msg":"cannot listen","error":"in use"}\n', "cannot listen: in use"),
        ('{"msg":"one"}\npanic: no space left\n\ngoroutine 1 [running]:\n\tmain.go:28 +0x17\n', "panic: no space left"),
        ("flag provided but not defined: -x\nSee 'etcd --help'.\n", "See 'etcd --help'."),
        ("", ""),
    ],
)
def test_the_last_words_are_those_that_say_why_it_ended(tmp_path: Path, log: str, says: str):
    (tmp_path / "log").write_text(log)
    files = MemberFiles("certificate", "key", "authority")
    assert EtcdProgram("etcd", tmp_path, Endpoint("127.0.0.1", 1), files).last_words() == says


def test_without_a_program_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="there is no program etcd on this node; " + REMEDY):
        etcd_program.find()
