"""Which attribution settings are accepted, which are mistakes, and which have no effect?"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.config.attribution_settings import Attribution, attribution_log_path, read_key, submitter
from supervisor.config.job_spec_json import job_spec_from_json, job_spec_to_json
from supervisor.errors import ConfigurationError, InvalidRequestError
from tests.config.runs import request, with_section

LOG = ("--ft-per-cycle-applog-prefix", "/lustre/job123/train.log")


def asked(*flags: str, environ: dict[str, str] | None = None) -> Attribution:
    return request(*LOG, *flags, "train.py", environ=environ).spec.attribution


def test_an_external_service():
    found = asked("--ft-attribution-endpoint", "http://attribution.service.internal:8000")
    assert found == Attribution("http://attribution.service.internal:8000")
    assert (found.is_asked, found.is_managed, found.stop_action, found.startup_timeout_s) == (True, False, "log", 20)
    assert asked("--ft_attribution_endpoint=https://h/base").is_asked


def test_the_guides_example_of_a_service_of_the_jobs_own(tmp_path: Path):
    key = tmp_path / "llm_api_key"
    key.write_text("k\n")
    found = asked(
        "--ft-attribution-endpoint", "localhost",
        "--ft-attribution-llm-api-key-file", str(key),
        "--ft-attribution-llm-base-url", "https://integrate.api.nvidia.com/v1",
        "--ft-attribution-llm-model", "nvidia/nemotron-3-super-120b-a12b",
        "--ft-attribution-export-url", "https://dataflow.example.test/dataflow2/example-index/posting",
    )  # fmt: skip
    assert found.is_managed
    assert (found.llm_api_key_file, found.llm_model) == (str(key), "nvidia/nemotron-3-super-120b-a12b")
    url = ("--ft-attribution-llm-base-url", "https://m")
    assert asked("--ft-attribution-endpoint", "localhost", *url, environ={"LLM_API_KEY_FILE": str(key)}).needs_key
    assert not asked("--ft-attribution-endpoint", "localhost").needs_key
    assert not asked("--ft-attribution-endpoint", "localhost", "--ft-attribution-llm-model", "none").needs_key


def test_the_file_says_the_same(tmp_path: Path):
    section = "attribution_endpoint: http://h:1\nattribution_stop_action: no-restart\nattribution_export_url: http://e"
    run = with_section(tmp_path, section, *LOG)
    assert (run.spec.attribution.stop_action, run.spec.attribution.export_url) == ("no-restart", "http://e")
    assert any("attribution_export_url: http://e) has no effect: http://h:1 is not" in each for each in run.warnings)


@pytest.mark.parametrize("endpoint", ["grpc://h:50050", "unix:///run/attribution.sock"])
def test_other_transports_are_kept_and_said_to_be_silent(endpoint: str):
    run = request(*LOG, "--ft-attribution-endpoint", endpoint, "train.py")
    assert (run.spec.attribution.endpoint, run.spec.attribution.is_asked) == (endpoint, False)
    assert any("only http:// and https:// are supported, so no log is submitted" in each for each in run.warnings)


@pytest.mark.parametrize(
    "endpoint",
    [
        "h:8000", "127.0.0.1", "ftp://h", "http://", "http://0.0.0.0:8000", "http://[::]:8000", "http://h:0",
        "http://h:99999", "http://u:secret@h", "http://h/?q=1", "http://h/#x", "http://h h", "unix://x", "http://\u00fc",
        "http://" + "x" * 3000, "http://[x", "http://*:1",
    ],
)  # fmt: skip
def test_what_is_no_endpoint(endpoint: str):
    with pytest.raises(InvalidRequestError, match="cannot use --ft-attribution-endpoint"):
        asked("--ft-attribution-endpoint", endpoint)


def test_mistakes_say_what_to_do(tmp_path: Path):
    with pytest.raises(InvalidRequestError, match="add --ft-per-cycle-applog-prefix"):
        request("--ft-attribution-endpoint", "http://h", "train.py")
    url = ("--ft-attribution-llm-base-url", "https://m")
    for more, why in (((), "no key is given; set --ft-attribution-llm-api-key-file"), (("/none",), "No such file")):
        flags = ("--ft-attribution-llm-api-key-file", *more) if more else ()
        with pytest.raises(ConfigurationError, match=why):
            asked("--ft-attribution-endpoint", "localhost", *url, *flags)
    (tmp_path / "key").write_text(" \n")
    with pytest.raises(ConfigurationError, match="the file is empty"):
        asked("--ft-attribution-endpoint", "localhost", *url, environ={"LLM_API_KEY_FILE": str(tmp_path / "key")})


@pytest.mark.timeout(60)  # a reader that waits for a writer would wait without end
def test_a_pipe_in_the_place_of_the_key_keeps_nobody_waiting(tmp_path: Path):
    os.mkfifo(tmp_path / "key")
    with pytest.raises(ConfigurationError, match="it is a pipe, not a regular file; check the file"):
        read_key(str(tmp_path / "key"))
    (tmp_path / "real").write_text("k\n")
    (tmp_path / "link").symlink_to("real")  # as Kubernetes mounts a secret
    assert read_key(str(tmp_path / "link")) == "k"


def test_on_several_nodes_the_key_is_the_leaders_matter():
    nodes = ("--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:1", "--rdzv-id", "j")
    assert asked(*nodes, "--ft-attribution-endpoint", "localhost").is_managed


def test_what_has_no_effect_is_said():
    run = request("--ft-attribution-llm-model", "m", "--ft-attribution-analysis-backend", "mcp", "train.py")
    assert "--ft-attribution-llm-model m has no effect without --ft-attribution-endpoint" in run.warnings
    assert any("there is one analyser" in each for each in run.warnings)


def test_a_supervisor_of_the_version_before_takes_jobs_that_do_not_ask_for_it():
    plain, asking = (request(*LOG, *more, "t.py").spec for more in ((), ("--ft-attribution-endpoint", "http://h")))
    assert '"attribution"' not in job_spec_to_json(plain)
    assert job_spec_from_json(job_spec_to_json(plain)) == plain
    assert job_spec_from_json(job_spec_to_json(asking)) == asking


def test_names():
    assert attribution_log_path("/lustre/job123/train.log") == "/lustre/job123/train_attribution.log"
    assert attribution_log_path("/lustre/job123/train") == "/lustre/job123/train_attribution.log"
    assert attribution_log_path("/lustre/llama-3.1") == "/lustre/llama-3.1_attribution.log"
    slurm = {"SLURM_JOB_USER": "a", "USER": "b", "SLURM_JOB_ID": "2", "SLURM_ARRAY_JOB_ID": "1"}
    assert submitter(slurm) == {"user": "a", "job_id": "1"}
    assert submitter({"USER": "b", "SLURM_JOB_ID": "2"}) == {"user": "b", "job_id": "2"}
    assert submitter({}) == {}
