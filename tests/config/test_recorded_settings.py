"""Are settings recorded with their source, without secrets?"""

from __future__ import annotations

from pathlib import Path

from supervisor.config.job_spec_json import job_spec_from_json, job_spec_to_json
from supervisor.config.recorded_settings import recorded_settings, with_sources
from supervisor.config.resolve import parse_run


def told(*argv: str, **environ: str) -> dict[str, str]:
    request = parse_run([*argv, "train.py"], environ=environ, cwd="/tmp", count_gpus=lambda _: 0)
    spec = with_sources(request.spec, request.sources)
    assert job_spec_from_json(job_spec_to_json(spec)).sources == spec.sources  # as a daemon gets it
    return dict(recorded_settings(spec))


def test_flags_and_variables():
    recorded = told("--max-restarts", "3", "--nproc-per-node=2", PET_ROLE="trainer")
    assert recorded == {
        "set max_restarts": "3", "from max_restarts": "--max-restarts 3", "set nproc_per_node": "2",
        "from nproc_per_node": "--nproc-per-node 2", "set role": "trainer", "from role": "PET_ROLE=trainer",
    }  # fmt: skip


def test_a_file(tmp_path: Path):
    path = tmp_path / "job.yaml"
    path.write_text("fault_tolerance:\n  rank_heartbeat_timeout: 45\n")
    recorded = told("--ft-cfg-path", str(path))
    assert recorded["set ft_rank_heartbeat_timeout"] == "45"
    assert "line 2" in recorded["from ft_rank_heartbeat_timeout"]


def test_nodes_without_the_options_of_their_backend():
    recorded = told(
        "--nnodes", "2", "--rdzv-id", "night",
        "--rdzv-endpoint", "127.0.0.1:29400", "--rdzv-conf", "token_file=/etc/secret", "--on-event",
        "curl -H 'Authorization: Bearer abcdefghij'",
    )  # fmt: skip
    assert recorded["set nnodes"] == "2:2"
    assert recorded["set rdzv_endpoint"] == "127.0.0.1:29400"
    assert "secret" not in str(recorded)
    assert "Bearer" not in str(recorded)


def test_defaults_are_not_recorded():
    assert told() == {}
