"""Is a section found wherever it is, and is every mistake in the file reported with its line?"""

# ruff: noqa: E501 - messages are quoted whole

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.config import JobSpec
from supervisor.config.plan_text import fault_tolerance_yaml
from supervisor.config.resolve import replace_at
from supervisor.config.setting import value_at
from supervisor.core.facts import HangLimits
from supervisor.errors import ConfigurationError
from tests.config.runs import request, with_section
from tests.config.samples import SECTION_SETTINGS


def run_file(folder: Path, text: str | bytes) -> JobSpec:
    path = folder / "job.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return request("--ft-cfg-path", str(path), "t.py").spec


@pytest.mark.parametrize(
    "text",
    [
        "fault_tolerance:\n  safety_factor: 2\n",
        "a: 1\ntrainer:\n  plugins:\n    - x: 1\n    - fault_tolerance: {safety_factor: 2}\n",
        "- - fault_tolerance: {safety_factor: 2.0}\n",
        "\ufefffault_tolerance: {safety_factor: 2}",
        "base: &base {safety_factor: 2, max_restarts: 1}\nfault_tolerance: {<<: *base, max_restarts: 2}\n",
        "base: &b {safety_factor: 3}\nx: &x {safety_factor: 2}\nfault_tolerance: {<<: [*x, *b]}\n",
        "x: &ft\n  fault_tolerance: {safety_factor: 2}\ny: *ft\n",
        "fault_tolerance: {safety_factor: 2e0}\n",
        "a: !!python/object/apply:os.system [echo]\nfault_tolerance: {safety_factor: 2}\n",
    ],
)
def test_where_a_section_may_be(text: str, tmp_path: Path) -> None:
    assert run_file(tmp_path, text).safety_factor == 2.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fault_tolerance:\n", "line 1: fault_tolerance has no keys; write its keys below it, indented, or do not name the file"),
        ("a: 1\nx:\n  fault_tolerance: {}\n", "line 3: fault_tolerance has no keys; write its keys below it, indented, or do not name the file"),
        ("fault_tolerance:\n# Seconds\nrank_heartbeat_timeout: 5\nsafety_factor: 2\n",
         "line 3: rank_heartbeat_timeout stands beside fault_tolerance (line 1), where it has no effect; "
         "indent it by two spaces more than fault_tolerance, to stand below it"),
        ("max_restarts: 5\nfault_tolerance:\n  safety_factor: 2\n",
         "line 1: max_restarts stands beside fault_tolerance (line 2), where it has no effect; "
         "indent it by two spaces more than fault_tolerance, to stand below it"),
        ("a:\n  fault_tolerance: {safety_factor: 2}\n  storage_healthcheck_path: /data\n",
         "line 3: storage_healthcheck_path stands beside fault_tolerance (line 2), where it has no effect; "
         "indent it by two spaces more than fault_tolerance, to stand below it"),
    ],
)  # fmt: skip
def test_keys_that_lost_their_indentation_and_a_section_without_any(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        run_file(tmp_path, text)
    assert str(caught.value) == f"cannot use {tmp_path}/job.yaml, {message}"


def test_words_that_are_anybodys_may_stand_beside_the_section_and_ours_elsewhere(tmp_path: Path) -> None:
    text = "log_level: INFO\nsegment: 3\nother: {max_restarts: 9}\nfault_tolerance: {safety_factor: 2}\n"
    assert run_file(tmp_path, text).safety_factor == 2.0


def test_a_whole_section_as_the_reference_launcher_writes_it(tmp_path: Path) -> None:
    section = (
        "attribution_endpoint: null\ncheckpoint_iteration_file: null\ncycle_info_dir: null\n"
        "enable_dist_storage_healthcheck: false\nenable_nic_healthcheck: false\nenable_nic_monitor: false\n"
        "gpu_memory_poll_interval: 2.0\ngpu_memory_reclaim_timeout: 50.0\ngpu_memory_tolerance_mb: 512.0\n"
        "initial_rank_heartbeat_timeout: 3600.0\ninstall_exception_hook: false\n"
        "link_down_path_template: null\nlog_level: INFO\nmax_no_progress_cycles: 3\nmin_progress_iterations: 1\n"
        "no_restart_exit_code: 93\nnode_health_check_interval: 5.0\nnum_warmup_iterations: 5\nnuma_bind_strict: yes\n"
        "pci_topo_file: null\nrank_heartbeat_timeout: null\nrank_out_of_section_timeout: 30\n"
        "rank_section_timeouts:\n  setup: 600\n  step: 60.5\n  checkpointing: null\n"
        "rank_termination_signal: sigterm\nrestart_check_interval: 60.0\nsafety_factor: 5.0\nsegment: null\n"
        "skip_section_response: true\nstorage_healthcheck_path: null\nworkload_check_interval: 5.0\n"
    )
    run = with_section(tmp_path, section)
    assert run.spec.hang_limits == HangLimits(
        3600.0, None, (("setup", 600.0), ("step", 60.5), ("checkpointing", None)), 30.0, 5
    )
    assert run.spec.rank_termination_signal == 15
    told = [warning.partition("(")[2].partition(":")[0] for warning in run.warnings]
    assert told == ["log_level", "restart_check_interval", "skip_section_response"]


SECTION_MISTAKES = [
    ("rank_heartbeat_timout: 5", "line 2: there is no key rank_heartbeat_timout; write rank_heartbeat_timeout"),
    ("frobnicate: 5", "line 2: there is no key frobnicate; remove it"),
    ("safety_factor: 2\nsafety_factor: 3", "line 3: safety_factor is given twice (first on line 2); keep one of them"),
    ("rank_heartbeat_timeout: '30'",
     "line 2: rank_heartbeat_timeout must be a number, and quotes make it text; remove the quotes"),
    ("rank_heartbeat_timeout: 30s",
     "line 2 (rank_heartbeat_timeout: 30s): seconds are plain numbers without a unit; write 30"),
    ("rank_heartbeat_timeout: 1:30",
     "line 2: rank_heartbeat_timeout must be a number; write seconds as a plain number"),
    ("rank_heartbeat_timeout: .nan",
     "line 2 (rank_heartbeat_timeout: .nan): seconds must be a plain number; "
     "write a number such as 30, or none for no limit"),
    ("rank_heartbeat_timeout: [1]", "line 2: rank_heartbeat_timeout must be a number; "
     "write rank_heartbeat_timeout: SECONDS|none"),
    ("max_restarts: -1", "line 2 (max_restarts: -1): it is below the least value 0 restarts; write 0 or more"),
    ("max_restarts: true", "line 2 (max_restarts: true): it is not a whole number; write a whole number from 0 to 1000000"),
    ("install_exception_hook: 'true'",
     "line 2: install_exception_hook must be true or false, and quotes make it text; remove the quotes"),
    ("install_exception_hook: maybe",
     "line 2 (install_exception_hook: maybe): it is neither true nor false; write true or false"),
    ("checkpoint_iteration_file: 5", "line 2: checkpoint_iteration_file must be text; quote it: '5'"),
    ("rank_termination_signal: SIGKIL",
     "line 2 (rank_termination_signal: SIGKIL): there is no such signal; write a name such as SIGKILL, or its number"),
    ("rank_section_timeouts: step:5",
     "line 2: rank_section_timeouts must be a mapping of names to seconds; "
     "write one NAME: SECONDS a line below it, indented"),
    ("rank_section_timeouts:\n  step: '5'",
     "line 3: section 'step' must have a number of seconds; write a plain number"),
    ("rank_section_timeouts:\n  step: 5m",
     "line 3: rank_section_timeouts: section 'step': seconds are plain numbers without a unit; write 300"),
    ("rank_section_timeouts:\n  step: 5\n  step: 6", "line 4: step is given twice (first on line 3); keep one of them"),
    ("safety_factor: !!python/name:os.system 3",
     "line 2: safety_factor has the tag tag:yaml.org,2002:python/name:os.system; write a plain value"),
    ("attribution_endpoint: localhost",
     "line 2 (attribution_endpoint: localhost): the service reads the logs of cycles, and none are written; add "
     "--ft-per-cycle-applog-prefix /path/to/train.log"),
    ("link_state_path_template: /sys/state",
     "line 2 (link_state_path_template: /sys/state): there is no {nic} in it; write {nic} in place of the card's name"),
    ("link_down_path_template: counters/{nic}",
     "line 2 (link_down_path_template: counters/{nic}): it is not an absolute path; write such as "
     "/sys/class/infiniband/{nic}/ports/1/state"),
    ("storage_healthcheck_path: data",
     "line 2 (storage_healthcheck_path: data): 'data' is not an absolute path; "
     "write paths such as /data/checkpoints,/mnt/dataset"),
    ("storage_healthcheck_path: /data\nstorage_health_check_path: /data",
     "line 3: storage_health_check_path is given twice under two names; keep one of them"),
    ("? [a]\n: 1", "line 2: a key is not a word; write keys as plain words"),
    ("<<: 5", "line 2: << names no mapping, or itself; merge other mappings only"),
    ("&a\n<<: *a", "line 2: << names no mapping, or itself; merge other mappings only"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("section", "message"), SECTION_MISTAKES, ids=[one.split("\n")[0] for one, _ in SECTION_MISTAKES]
)
def test_mistakes_in_the_section(section: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        with_section(tmp_path, section)
    assert str(caught.value) == f"cannot use {tmp_path}/job.yaml, {message}"


FILE_MISTAKES = [
    ("", "cannot use {}: it has no fault_tolerance section; put the keys under 'fault_tolerance:'"),
    ("a: 1", "cannot use {}: it has no fault_tolerance section; put the keys under 'fault_tolerance:'"),
    ("a: 1\nfault_tolerence: {}",
     "cannot use {}, line 2: no section is called fault_tolerence; write fault_tolerance"),
    ("fault_tolerance: {}\nb:\n  fault_tolerance: {}",
     "cannot use {}, line 3: it is a second fault_tolerance section (the first is on line 1); keep one of them"),
    ("fault_tolerance: [1]", "cannot use {}, line 1: fault_tolerance is not a mapping; write its keys below it, indented"),
    ("fault_tolerance: true", "cannot use {}, line 1: fault_tolerance is not a mapping; write its keys below it, indented"),
    ("a: 1\nb: [1\n", "cannot read {}, line 3: while parsing a flow sequence, did not find expected ',' or ']'; correct the YAML"),
    ("a:\n\tb: 1\n", "cannot read {}, line 2: a tab indents it; replace the tab by spaces"),
    ("a: *b\n", "cannot read {}, line 1: found undefined alias; correct the YAML"),
    (b"a: 1\nb: \xff\n", "cannot read {}, line 2: it is not UTF-8; save the file as UTF-8"),
    ("a: 1\n---\nb: 1\n", "cannot read {}, line 2: expected a single document in the stream, but found another document; correct the YAML"),
    ("x" * (4 * 1024 * 1024 + 1), "cannot read {}: it is larger than 4194304 bytes; check the path"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), FILE_MISTAKES, ids=[repr(text[:30]) for text, _ in FILE_MISTAKES])
def test_mistakes_in_the_file(text: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        run_file(tmp_path, text)
    assert str(caught.value) == message.format(f"{tmp_path}/job.yaml")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, why in ((tmp_path, "Is a directory"), (tmp_path / "no.yaml", "No such file or directory")):
        with pytest.raises(ConfigurationError) as caught:
            request("--ft-cfg-path", str(path), "t.py")
        assert str(caught.value) == f"cannot read {path}: {why}; check the path and its permissions"


def test_depth_and_aliases_are_bounded(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40)]
    assert run_file(tmp_path, "\n".join([*lines, "fault_tolerance: {safety_factor: 2}"])).safety_factor == 2.0
    with pytest.raises(ConfigurationError, match="line 1: it is nested deeper than 100 levels; check the path"):
        run_file(tmp_path, "[" * 200)
    with pytest.raises(ConfigurationError, match=r"line 1: .*nest"):  # newer scanners have a limit of their own
        run_file(tmp_path, "[" * 100_000)


# --- round trip ----------------------------------------------------------------------------------------------------

_NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=12)
_SECONDS = st.floats(0.001, 604_800, allow_nan=False)
_VALUES: dict[str, st.SearchStrategy[object]] = {
    "--spawn-method": st.sampled_from(["auto", "exec", "fork"]),
    "--preload": st.sampled_from(["auto", "none", "torch,numpy"]),
    "--max-restarts": st.integers(0, 1_000_000),
    "--workers-stop-timeout": _SECONDS,
    "--term-timeout": _SECONDS,
    "--completion-grace-s": st.none() | _SECONDS,
    "--evidence-budget-s": st.floats(0, 60),
    "--ft-segment": st.none() | st.just(1),  # all that divides one node
    "--ft-enable-log-server": st.booleans(),
    "--ft-log-server-port": st.integers(1, 55_000),  # the tiers use the ports after it
    "--ft-log-aggregator-count": st.integers(0, 10_000),
    "--ft-log-leaf-max-queue-chunks": st.integers(-1, 100_000_000),
    "--ft-log-server-log-prefix": _NAMES.filter(lambda name: not name.endswith("/")).map(lambda name: "/g/" + name),
    "--ft-log-server-graceful-shutdown-timeout": _SECONDS,
    "--ft-nvrx-logfile": _NAMES.filter(lambda name: not name.endswith("/")).map(lambda name: "/n/" + name),
    "--ft-cycle-info-dir": _NAMES.map(lambda name: "/" + name),
    "--ft-per-cycle-applog-prefix": _NAMES.filter(lambda name: not name.endswith("/")).map(lambda name: "/l/" + name),
    "--ft-attribution-endpoint": st.sampled_from(["", "http://h:8000", "https://h", "grpc://h:1", "unix:///run/a"]),
    "--ft-attribution-stop-action": st.sampled_from(["log", "no-restart"]),
    "--ft-attribution-startup-timeout": st.floats(0.01, 1000),
    "--ft-attribution-llm-api-key-file": _NAMES.map(lambda name: "/" + name),
    "--ft-attribution-llm-base-url": st.sampled_from(["", "http://m/v1", "https://m"]),
    "--ft-attribution-llm-model": _NAMES,
    "--ft-attribution-log-level": st.sampled_from(["debug", "info", "warning"]),
    "--ft-attribution-export-url": st.sampled_from(["", "http://e/x", "https://e"]),
    "--ft-restart-policy": st.sampled_from(["any-failed", "min-healthy"]),
    "--ft-no-restart-exit-code": st.integers(1, 255),
    "--ft-max-no-progress-cycles": st.integers(-1, 1_000_000),
    "--ft-min-progress-iterations": st.integers(1, 1_000_000_000),
    "--ft-checkpoint-iteration-file": _NAMES.map(lambda name: "/" + name),
    "--ft-initial-rank-heartbeat-timeout": st.none() | _SECONDS,
    "--ft-auto-heartbeat-timeout": st.none() | _SECONDS,
    "--ft-rank-heartbeat-timeout": st.none() | _SECONDS,
    "--ft-rank-section-timeouts": st.dictionaries(_NAMES, st.none() | _SECONDS, max_size=4).map(
        lambda limits: tuple(limits.items())
    ),
    "--ft-rank-out-of-section-timeout": st.none() | _SECONDS,
    "--ft-num-warmup-iterations": st.integers(0, 1_000_000_000),
    "--ft-safety-factor": st.floats(1, 1000),
    "--ft-workload-check-interval": st.floats(0.01, 1000),
    "--ft-rank-termination-signal": st.sampled_from([2, 6, 9, 15, 64]),
    "--ft-install-exception-hook": st.booleans(),
    "--ft-node-health-check-endpoint": _NAMES.map(lambda name: "/" + name[:100]),
    "--ft-node-health-check-policy": st.sampled_from(["documented", "tolerant", "strict"]),
    "--ft-node-health-check-interval": st.floats(0.01, 1000),
    "--ft-enable-nic-healthcheck": st.booleans(),
    "--ft-enable-nic-monitor": st.booleans(),
    "--ft-link-state-path-template": _NAMES.map(lambda name: f"/{name}/{{nic}}"),
    "--ft-link-down-path-template": _NAMES.map(lambda name: f"/{name}/{{nic}}"),
    "--ft-gpu-memory-reclaim-timeout": _SECONDS,
    "--ft-gpu-memory-tolerance-mb": st.floats(0, 1_048_576),
    "--ft-gpu-memory-poll-interval": st.floats(0.01, 1000),
    "--ft-enable-dist-storage-healthcheck": st.booleans(),
    "--ft-storage-health-check-path": st.lists(st.sampled_from(["/a", "/b c", "/d#e"]), unique=True).map(tuple),
    "--ft-numa-bind-strict": st.booleans(),
}


@given(values=st.fixed_dictionaries({}, optional=_VALUES))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_a_specification_writes_is_what_it_reads(values: dict[str, object], tmp_path: Path) -> None:
    assert set(_VALUES) == {setting.flag for setting in SECTION_SETTINGS}
    spec = JobSpec(job_id="j", command=("t.py",), cwd="/somewhere")
    for setting in SECTION_SETTINGS:
        if setting.flag in values:
            spec = replace_at(spec, setting.path, values[setting.flag])
    if spec.attribution.endpoint and not spec.logs.cycle_prefix:
        spec = replace_at(spec, "logs.cycle_prefix", "/l/t.log")
    if spec.auto_heartbeat_s is not None:  # it needs forked workers
        spec = replace_at(spec, "spawn_method", "auto")
    read = run_file(tmp_path, fault_tolerance_yaml(spec))
    for setting in SECTION_SETTINGS:
        assert value_at(read, setting.path) == value_at(spec, setting.path), setting.flag


@given(data=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: f"fault_tolerance:\n  {text}".encode()))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_file_raises_anything_but_a_configuration_error(data: bytes, tmp_path: Path) -> None:
    message = ""
    try:
        run_file(tmp_path, data)
    except ConfigurationError as error:
        message = str(error)
    assert message == "" or message.startswith("cannot ")
    assert "\n" not in message


def test_sections_of_the_command_line_replace_those_of_the_file_and_say_so(tmp_path: Path) -> None:
    def told(limits: str) -> list[str]:
        section = "rank_section_timeouts:\n  step: 5\n  save: 7"
        run = with_section(tmp_path, section, "--ft-rank-section-timeouts", limits)
        return [each for each in run.warnings if "replaces" in each]

    assert told("eval:3,step:1") == [
        f"--ft-rank-section-timeouts eval:3,step:1 replaces the sections of {tmp_path}/job.yaml, line 3 "
        "(rank_section_timeouts): without a limit: save"
    ]
    assert told("save:3,step:1") == []
