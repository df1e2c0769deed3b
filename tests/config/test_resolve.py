"""Which value wins, and what becomes of it?"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config import Entry, JobSpec, Redirect, SpawnMethod
from supervisor.config.log_limits import LogLimits
from supervisor.config.resolve import default_job_id, parse_run
from supervisor.config.setting import Setting, value_at
from supervisor.config.values import JOB_ID, SECTIONS, Shape
from supervisor.core.facts import HangLimits, RestartPolicyName, RestartRules
from supervisor.errors import ConfigurationError, InvalidRequestError
from tests.config.runs import CWD, request, with_section
from tests.config.samples import NEEDED, SAMPLES, SECTION_SETTINGS, SETTINGS


def by_flag(setting: Setting) -> str:
    return setting.flag


def test_a_plain_run_has_the_defaults_of_the_specification() -> None:
    run = request("train.py", "--lr", "0.1")
    assert run.spec == JobSpec(job_id=run.spec.job_id, command=("train.py", "--lr", "0.1"), cwd=CWD)
    assert JOB_ID.fullmatch(run.spec.job_id)
    assert run.warnings == ()
    assert (run.socket_dir, run.state_dir, run.config_file, run.dry_run) == (None, None, None, False)


def test_defaults_that_users_know() -> None:
    spec = request("train.py").spec
    assert spec.hang_limits == HangLimits(None, 2700.0, (), None, 5)
    assert spec.restart == RestartRules(RestartPolicyName.ANY_FAILED, 0, 1, 93, 3, 1)
    assert (spec.workers_stop_timeout_s, spec.term_timeout_s, spec.rank_termination_signal) == (15.0, 1800.0, 9)


def test_every_setting_has_samples() -> None:
    assert {setting.flag for setting in SETTINGS} == set(SAMPLES)


@pytest.mark.parametrize("setting", SETTINGS, ids=by_flag)
def test_command_line_beats_variable_beats_default(setting: Setting) -> None:
    first, second, _ = SAMPLES[setting.flag]
    environ = {setting.variables[0]: first, **NEEDED.get(setting.flag, {})}
    default = value_at(request("train.py").spec, setting.path)
    from_variable = value_at(request("train.py", environ=environ).spec, setting.path)
    typed = value_at(request(f"{setting.flag}={second}", "train.py", environ=environ).spec, setting.path)
    assert from_variable == setting.kind.parse(first) != default
    assert typed == setting.kind.parse(second)


@pytest.mark.parametrize("setting", SECTION_SETTINGS, ids=by_flag)
def test_variable_beats_file_beats_default_and_the_command_line_beats_all(setting: Setting, tmp_path: Path) -> None:
    first, second, third = SAMPLES[setting.flag]
    in_file = f"\n  {first.replace(':', ': ')}" if setting.kind is SECTIONS else f" {first}"
    section = f"{setting.keys[0]}:{in_file}"
    needed = NEEDED.get(setting.flag, {})
    environ = {setting.variables[0]: second, **needed}

    def value(*argv: str, environ: dict[str, str] = needed) -> object:
        return value_at(with_section(tmp_path, section, *argv, environ=environ).spec, setting.path)

    assert value() == setting.kind.parse(first) != value_at(request("train.py").spec, setting.path)
    assert value(environ=environ) == setting.kind.parse(second)
    assert value(setting.flag + "=" + third, environ=environ) == setting.kind.parse(third)


@pytest.mark.parametrize("setting", SETTINGS, ids=by_flag)
def test_both_spellings_of_a_flag(setting: Setting) -> None:
    text = SAMPLES[setting.flag][0]
    underscored = "--" + setting.flag[2:].replace("-", "_")
    typed = [[f"{setting.flag}={text}"], [f"{underscored}={text}"], [setting.flag, text], [underscored, text]]
    if setting.kind.shape is Shape.BOOLEAN:
        typed.append([setting.flag, text.upper()])
    environ = NEEDED.get(setting.flag, {})
    found = [value_at(request(*argv, "train.py", environ=environ).spec, setting.path) for argv in typed]
    assert found == [setting.kind.parse(text)] * len(typed)


@pytest.mark.parametrize("flag", [flag for flag in SAMPLES if flag.startswith("--ft-")])
def test_the_older_names_of_ft_flags_mean_the_same_and_warn_once(flag: str) -> None:
    (setting,) = (one for one in SETTINGS if one.flag == flag)
    old = "--ft-param-" + flag.removeprefix("--ft-").replace("-", "_")
    run = request(old, SAMPLES[flag][0], old, SAMPLES[flag][0], "train.py", environ=NEEDED.get(flag))
    assert value_at(run.spec, setting.path) == setting.kind.parse(SAMPLES[flag][0])
    assert [each for each in run.warnings if "old name" in each] == [f"{old} is an old name: write {flag}"]


def test_the_older_names_of_file_and_policy(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("fault_tolerance: {safety_factor: 2}")
    run = request("--fault-tol-cfg-path", str(path), "--restart-policy", "min-healthy", "train.py")
    assert run.spec.safety_factor == 2.0
    assert run.spec.restart.policy is RestartPolicyName.MIN_HEALTHY
    assert [warning.split(":")[0] for warning in run.warnings] == [
        "--fault-tol-cfg-path is an old name",
        "--restart-policy is an old name",
    ]


def test_the_file_may_be_named_by_a_variable_and_relative_to_the_directory(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("fault_tolerance: {safety_factor: 2}")
    run = parse_run(["train.py"], environ={"PET_FT_CFG_PATH": "job.yaml"}, cwd=str(tmp_path))
    assert run.spec.safety_factor == 2.0
    assert run.config_file == str(tmp_path / "job.yaml")


def test_an_empty_variable_is_not_set() -> None:
    assert request("train.py", environ={"PET_MAX_RESTARTS": "", "PET_NNODES": ""}).spec.restart.max_restarts == 0


# --- what is run ---------------------------------------------------------------------------------------------------


def test_entries() -> None:
    assert request("train.py").spec.entry is Entry.SCRIPT
    assert request("-m", "pkg.train", "-x").spec.command == ("pkg.train", "-x")
    assert request("-m", "pkg.train").spec.entry is Entry.MODULE
    assert request("--no_python", "bash", "-c", "true").spec.entry is Entry.COMMAND
    assert request("train.py", environ={"PET_MODULE": "1"}).spec.entry is Entry.MODULE


@pytest.mark.parametrize(
    ("entry", "program", "job_id"),
    [
        (Entry.SCRIPT, "a/train.py", "train-17"),
        (Entry.MODULE, "pkg.train", "pkg.train-17"),
        (Entry.SCRIPT, "/", "job-17"),
        (Entry.SCRIPT, "..", "job-17"),
        (Entry.SCRIPT, "мой скрипт.py", "job-17"),
        (Entry.COMMAND, "x" * 99, "x" * 40 + "-17"),
    ],
)
def test_default_job_ids(entry: Entry, program: str, job_id: str) -> None:
    assert default_job_id(entry, program, "17") == job_id


@given(st.text(min_size=1), st.sampled_from(Entry))
def test_default_job_ids_are_job_ids(program: str, entry: Entry) -> None:
    assert JOB_ID.fullmatch(default_job_id(entry, program, "0123abcd"))


def test_two_runs_have_two_ids_and_a_given_one_is_kept() -> None:
    assert request("train.py").spec.job_id != request("train.py").spec.job_id
    assert request("--job-id", "night-7", "train.py").spec.job_id == "night-7"


def test_workers() -> None:
    cpus = request("--nproc-per-node", "cpu", "t.py", gpus=3).spec.local_world_size
    assert cpus >= 1
    assert request("--nproc_per_node=gpu", "t.py", gpus=3).spec.local_world_size == 3
    assert request("--nproc-per-node", "auto", "t.py", gpus=3).spec.local_world_size == 3
    assert request("--nproc-per-node", "auto", "t.py").spec.local_world_size == cpus
    assert request("t.py", environ={"PET_NPROC_PER_NODE": "4"}).spec.local_world_size == 4


def test_streams_and_ranks() -> None:
    spec = request("--nproc-per-node", "4", "-r", "0:1,1:3", "-t3", "--local-ranks-filter", "2,0", "t.py").spec
    assert spec.redirects == ((0, Redirect.OUT), (1, Redirect.ALL))
    assert spec.tee == ((None, Redirect.ALL),)
    assert spec.local_ranks_filter == (0, 2)
    assert request("-r", "0", "t.py").spec.redirects == ()


def test_paths_are_made_absolute() -> None:
    run = request("--log-dir", "logs", "--ft-checkpoint-iteration-file", "ckpt/latest", "--socket-dir", "s", "t.py")
    assert run.spec.log_dir == f"{CWD}/logs"
    assert run.spec.checkpoint_iteration_file == f"{CWD}/ckpt/latest"
    assert run.socket_dir == f"{CWD}/s"


def test_directories_come_from_variables_too() -> None:
    environ = {"HOLDFAST_SOCKET_DIR": "/run/a", "HOLDFAST_STATE_DIR": "/var/a"}
    assert request("t.py", environ=environ).socket_dir == "/run/a"
    assert request("t.py", environ=environ).state_dir == "/var/a"


def test_how_much_of_old_logs_is_kept() -> None:
    assert request("t.py").log_limits == LogLimits()
    environ = {"HOLDFAST_LOG_JOBS_MAX": "5", "PET_LOG_GIB_MAX": "0.5"}
    assert request("--log-jobs-max", "3", "t.py", environ=environ).log_limits == LogLimits(3, 0.5)
    assert request("--socket-dir", "/run/b", "t.py", environ=environ).socket_dir == "/run/b"


def test_the_interpreter() -> None:
    assert request("t.py", environ={"PYTHON_EXEC": "/opt/python"}).spec.python == "/opt/python"
    assert request("--python", "/b", "t.py", environ={"PYTHON_EXEC": "/opt/python"}).spec.python == "/b"


def test_the_store_s_place() -> None:
    assert request("--local-addr", "10.0.0.7", "t.py").spec.master_addr == "10.0.0.7"
    assert request("--local-addr", "10.0.0.7", "--master-addr", "[::1]", "t.py").spec.master_addr == "::1"
    assert not request("--no-agent-store", "t.py").spec.agent_store


def test_torchrun_s_one_stop_timeout_sets_both_unless_they_are_given() -> None:
    spec = request("--shutdown-timeout", "7", "t.py").spec
    assert (spec.workers_stop_timeout_s, spec.term_timeout_s) == (7.0, 7.0)
    spec = request("--shutdown-timeout", "7", "--term-timeout", "9", "t.py").spec
    assert (spec.workers_stop_timeout_s, spec.term_timeout_s) == (7.0, 9.0)
    assert request("t.py", environ={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "3"}).spec.term_timeout_s == 3.0


def test_typical_command_lines_of_torchrun_warn_of_nothing() -> None:
    request_lines = (
        ["--standalone", "--nproc-per-node=2", "t.py"],
        ["--nnodes=1", "--nproc_per_node=2", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", "t.py"],
        ["--nnodes", "1:1", "--rdzv-id", "77", "--rdzv-conf", "timeout=900,is_host=1", "--node-rank=0", "t.py"],
        ["--master_addr", "127.0.0.1", "--master_port", "29501", "--max-restarts=3", "--role", "trainer", "t.py"],
    )
    for argv in request_lines:
        assert request(*argv, environ={"OMP_NUM_THREADS": "1"}).warnings == ()


# --- the base environment ------------------------------------------------------------------------------------------


def test_omp_num_threads_follows_torchrun_s_rule() -> None:
    many = request("--nproc-per-node", "2", "t.py", environ={"A": "b"})
    assert many.environment == {"A": "b", "OMP_NUM_THREADS": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    assert len(many.warnings) == 1
    assert "OMP_NUM_THREADS" in many.warnings[0]
    assert "OMP_NUM_THREADS" not in request("t.py").environment
    kept = request("--nproc-per-node", "2", "t.py", environ={"OMP_NUM_THREADS": "8"})
    assert kept.environment["OMP_NUM_THREADS"] == "8"
    assert kept.warnings == ()


def test_a_user_s_nccl_setting_is_kept() -> None:
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    assert request("t.py", environ={name: "0"}).environment[name] == "0"


def test_the_numa_node_of_the_gpu_needs_no_program() -> None:
    assert request("--numa-binding", "node", "t.py", environ={"PATH": "/nowhere"}).spec.numa_binding == "node"
    for mode in ("socket", "exclusive", "core-complex"):
        assert request("--numa-binding", mode, "t.py").spec.numa_binding == mode
    with pytest.raises(InvalidRequestError, match="it is not one of none, node, socket, exclusive, core-complex"):
        request("--numa-binding", "l3", "t.py")
    with pytest.raises(InvalidRequestError, match="HOLDFAST_GPUS_PER_NUMA binds the workers already"):
        request("--numa-binding", "node", "t.py", environ={"HOLDFAST_GPUS_PER_NUMA": "4", "PATH": "/bin:/usr/bin"})


def test_the_gpus_that_a_job_may_see_travel_with_it() -> None:
    assert request("t.py", environ={}).spec.visible_gpus is None
    assert request("t.py", environ={"CUDA_VISIBLE_DEVICES": "1, GPU-a"}).spec.visible_gpus == ("1", "GPU-a")


def test_numa_binding(tmp_path: Path) -> None:
    numactl = tmp_path / "numactl"
    numactl.write_text("#!/bin/sh\n")
    numactl.chmod(0o755)
    for variable in ("NVRX_GPUS_PER_NUMA", "HOLDFAST_GPUS_PER_NUMA"):
        assert request("t.py", environ={variable: "4", "PATH": str(tmp_path)}).spec.gpus_per_numa == 4
    with pytest.raises(ConfigurationError, match="numactl is not in PATH; install numactl"):
        request("t.py", environ={"NVRX_GPUS_PER_NUMA": "4", "PATH": "/nowhere"})


def test_spawn_method_is_the_enumeration(tmp_path: Path) -> None:
    assert with_section(tmp_path, "spawn_method: exec").spec.spawn_method is SpawnMethod.EXEC


def test_only_workers_that_are_forked_can_be_watched_without_a_line_in_the_script(tmp_path: Path) -> None:
    flag = ("--ft-auto-heartbeat-timeout", "60")
    assert request(*flag, "t.py").spec.rules().auto_heartbeat_s == 60.0
    assert with_section(tmp_path, "auto_heartbeat_timeout: 60").spec.auto_heartbeat_s == 60.0
    (tmp_path / "numactl").write_text("#!/bin/sh\n")
    (tmp_path / "numactl").chmod(0o755)
    bound = {"HOLDFAST_GPUS_PER_NUMA": "4", "PATH": str(tmp_path)}
    with pytest.raises(InvalidRequestError, match="numactl executes can't be watched; remove it, or write --numa"):
        request(*flag, "t.py", environ=bound)
    with pytest.raises(InvalidRequestError, match="executed can't be watched; remove it, or write --spawn-method auto"):
        request(*flag, "--spawn-method", "exec", "t.py")
    with pytest.raises(InvalidRequestError, match="not a Python script can't be watched; remove it, or --no-python"):
        request(*flag, "--no-python", "t.sh")


def test_parsing_is_quick_and_imports_neither_yaml_nor_argparse() -> None:
    import subprocess

    code = (
        "import sys; before = set(sys.modules); import supervisor.config.resolve as r;"
        "r.parse_run(['--nproc-per-node', '4', '--max-restarts=3', 't.py'], environ={'PET_ROLE': 'x'}, cwd='/');"
        "print(*sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"yaml", "argparse", "torch", "pynvml", "difflib", "grpc", "asyncio"} & set(loaded)
    best_s = min(_seconds_of_one_parse() for _ in range(20))
    assert best_s < 0.01


def _seconds_of_one_parse() -> float:
    started = time.perf_counter()
    request("--nproc-per-node", "4", "--max-restarts=3", "-r", "3", "--ft-rank-heartbeat-timeout", "60", "t.py")
    return time.perf_counter() - started


@pytest.mark.parametrize(("entry", "expected"), [((), "/usr/bin/python3"), (("--no-python",), "")])
def test_the_interpreter_of_the_ranks_is_not_that_of_a_command(entry: tuple[str, ...], expected: str):
    """It may be an old one: the command's spawner needs that of Holdfast."""
    run = parse_run([*entry, "train"], environ={"PYTHON_EXEC": "/usr/bin/python3"}, cwd="/")
    assert run.spec.python == expected
