"""Does a specification survive encoding, and is every other document refused?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from supervisor.config import JobSpec
from supervisor.config.job_spec_json import job_spec_from_json, job_spec_to_json
from supervisor.config.resolve import replace_at
from supervisor.errors import InvalidRequestError
from tests.config.runs import request, with_section
from tests.config.samples import SAMPLES, SETTINGS

SPEC = JobSpec(job_id="night-7", command=("t.py", "--lr", "ü"), cwd="/somewhere", local_world_size=4)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.flag)
def test_every_setting_survives(setting: Any) -> None:  # noqa: ANN401 - pytest's parameter
    for text in SAMPLES[setting.flag]:
        spec = replace_at(SPEC, setting.path, setting.kind.parse(text))
        read = job_spec_from_json(job_spec_to_json(spec))
        assert read == spec
        assert repr(read) == repr(spec)  # enumerations are enumerations again, not words that compare equal


def test_what_a_run_asks_for_survives() -> None:
    spec = request("--nproc-per-node", "4", "-r", "0:1,1:3", "-t", "3", "-m", "pkg", "-x").spec
    assert job_spec_from_json(job_spec_to_json(spec)) == spec
    assert "\n" not in job_spec_to_json(spec)


def test_what_a_private_run_takes_survives(tmp_path: Path) -> None:
    """More arguments than people type, and names of sections that no flag could say."""
    sections = 'rank_section_timeouts:\n  "fwd,bwd": 5\n  " save ": null'
    spec = replace(with_section(tmp_path, sections).spec, command=("t.py", *["--input=x"] * 20_000))
    assert spec.hang_limits.sections == (("fwd,bwd", 5.0), (" save ", None))
    assert job_spec_from_json(job_spec_to_json(spec)) == spec


def test_a_missing_field_has_its_default() -> None:
    assert job_spec_from_json('{"job_id":"a","command":["t.py"]}') == JobSpec(job_id="a", command=("t.py",))


REFUSED: list[tuple[dict[str, object], str]] = [
    ({"frobnicate": 1}, "frobnicate: there is no such field"),
    ({"resource_limits": [["NOFILE", 1, 1]]}, "resource_limits: they are those of the process that submits it"),
    ({"hang_limits": {"x": 1}}, "hang_limits.x: there is no such field"),
    ({"hang_limits": 5}, "hang_limits is not an object"),
    ({"hang_limits": {"heartbeat_s": "5"}}, "hang_limits.heartbeat_s: it is not a finite float"),
    ({"hang_limits": {"heartbeat_s": -5}}, "hang_limits.heartbeat_s: it is below the least value 0 s"),
    ({"hang_limits": {"heartbeat_s": True}}, "hang_limits.heartbeat_s: it is not a finite float"),
    ({"hang_limits": {"heartbeat_s": 10**400}}, "hang_limits.heartbeat_s: it is not a finite float"),
    ({"hang_limits": {"sections": [["a", 1], ["a", 2]]}}, "hang_limits.sections: section 'a' is named twice"),
    ({"hang_limits": {"sections": [["", 1]]}}, "hang_limits.sections: a section has no name"),
    ({"hang_limits": {"sections": [["a", 0]]}}, "hang_limits.sections: section 'a': a limit of 0 seconds"),
    ({"hang_limits": {"sections": [["a"]]}}, "hang_limits.sections: an entry has 1 parts instead of 2"),
    ({"command": []}, "command: it is empty"),
    ({"command": [""]}, "command: it is empty"),
    ({"command": ["t.py", "x" * (2 << 20)]}, "command: it has more than 2 MiB; let the script read its arguments"),
    ({"command": "t.py"}, "command is not a list"),
    ({"command": ["t.py", 1]}, "command: it is not text"),
    ({"command": ["t.py\0"]}, "command or cwd: a NUL byte is in it"),
    ({"job_id": "../../etc"}, "job_id: a job id has 1 to 64 letters, digits, '.', '_' or '-' and no leading '.'"),
    ({"job_id": ""}, "job_id: a job id has 1 to 64 letters, digits, '.', '_' or '-' and no leading '.'"),
    ({"job_id": None}, "job_id: it is not text"),
    ({"local_world_size": 0}, "local_world_size: a node has 1 to 1024 workers"),
    ({"local_world_size": 2.0}, "local_world_size: it is not a finite int"),
    ({"entry": "macro"}, "entry: there is no such word"),
    ({"redirects": [[0, 9]]}, "redirects: it is neither 0 to 3 nor a map of local ranks"),
    ({"rank_termination_signal": 19}, "rank_termination_signal: SIGSTOP does not end a process"),
    ({"rank_termination_signal": 999}, "rank_termination_signal: there is no such signal"),
    ({"signals_to_handle": ["SIGKILL"]}, "signals_to_handle: SIGKILL cannot be handled and forwarded"),
    ({"restart": {"max_restarts": -1}}, "restart.max_restarts: it is below the least value 0 restarts"),
    ({"restart": {"min_nodes": 2}}, "restart.min_nodes: a job without nodes has one node"),
    ({"restart": {"backoff_base_s": -1}}, "restart.backoff_base_s: it is below the least value 0"),
    ({"gpus_per_numa": 0}, "gpus_per_numa: it is below the least value 1"),
    ({"install_exception_hook": 1}, "install_exception_hook: it is not a finite bool"),
]


@pytest.mark.parametrize(("change", "why"), REFUSED, ids=[json.dumps(change)[:40] for change, _ in REFUSED])
def test_what_is_refused(change: dict[str, object], why: str) -> None:
    body = json.loads(job_spec_to_json(SPEC)) | change
    with pytest.raises(InvalidRequestError) as caught:
        job_spec_from_json(json.dumps(body))
    assert str(caught.value).startswith(f"cannot use the job specification: {why}")


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '{"job_id":"a"}', "{", "[" * 100_000, '{"job_id":NaN}'])
def test_what_is_no_specification(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot use the job specification: "):
        job_spec_from_json(text)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(json.loads(job_spec_to_json(SPEC)))), _JSON)
def test_any_value_in_any_field_is_taken_or_refused(name: str, value: object) -> None:
    body = json.loads(job_spec_to_json(SPEC)) | {name: value}
    try:
        spec = job_spec_from_json(json.dumps(body))
    except InvalidRequestError:
        return
    assert job_spec_from_json(job_spec_to_json(spec)) == spec


def test_a_supervisor_of_the_version_before_takes_a_job_without_a_range_of_ports() -> None:
    """It refuses fields that it does not know."""
    spec = JobSpec("j", ("t.py",))
    sent = json.loads(job_spec_to_json(spec))
    assert not {"store_ports", "attribution", "auto_heartbeat_s", "on_sigterm"} & sent.keys()
    assert "submitted_at_ms" not in sent["facts"]
    ranged = JobSpec("j", ("t.py",), store_ports=(20_000, 20_999))
    assert job_spec_from_json(job_spec_to_json(ranged)) == ranged
