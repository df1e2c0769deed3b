"""The launcher's guide, statement by statement: what is typed and configured. Checks stand apart, jobs in jobs/."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from supervisor.config import JobSpec
from supervisor.config.attribution_settings import MANAGED_ADDRESS, attribution_log_path, submitter
from supervisor.config.launch_settings import RUN_SETTINGS, settings_by_flag
from supervisor.config.numa import numactl_prefix
from supervisor.config.resolve import RunRequest
from supervisor.core.cluster.active_and_spare_nodes import place
from supervisor.core.facts import NodeFacts, RendezvousRules, RestartPolicyName
from supervisor.errors import ConfigurationError, HoldfastError, InvalidRequestError
from tests.config.runs import request, with_section
from tests.config.test_slurm_step import STEP
from tests.core.cluster.test_active_and_spare_nodes import in_domains, ranked, shown
from tests.seeds.documents import ROOT, Document, asked

GUIDE = Document("launcher-usage-guide")
LOG = ("--ft-per-cycle-applog-prefix", "/lustre/job123/train.log")


def nodes(wanted: str, *flags: str, **environ: str) -> RunRequest:
    """Returns a job of several nodes as a Slurm step gives it."""
    meet = ("--rdzv-endpoint", "127.0.0.1:29500", "--rdzv-id", "night", "--rdzv-conf", "nvlink_domain=d")
    return request("--nnodes", wanted, *meet, *flags, "training_script.py", environ=environ)


# --- the command -----------------------------------------------------------------------------------------------------


@GUIDE.says(23, "launcher tool called ft_launcher, which is based on torchrun and supports most torchrun command-line")
def test_torchruns_parameters_are_understood():
    flags = (
        *("--nnodes=1", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=j"),
        *(
            "--rdzv-conf=is_host=1",
            "--max-restarts=3",
            "--monitor-interval=5",
            "--start-method=spawn",
            "--role=trainer",
        ),
        *("--log-dir=/l", "--redirects=3", "--tee=3", "--local-ranks-filter=0", "--node-rank=0"),
        *("--standalone", "-m"),
    )
    found = request(*flags, "pkg.train")
    assert (found.spec.local_world_size, found.spec.restart.max_restarts, found.spec.role) == (2, 3, "trainer")


@GUIDE.says(24, "FT configuration can be specified either via a YAML file using --ft-cfg-path or through command-line")
def test_the_file_and_the_flags_say_the_same(tmp_path: Path):
    section = "rank_heartbeat_timeout: 90\nrank_section_timeouts:\n  step: 30\nmax_restarts: 2"
    typed = asked("--ft-rank-heartbeat-timeout", "90", "--ft-rank-section-timeouts", "step:30", "--max-restarts", "2")
    in_file = with_section(tmp_path, section).spec
    assert (in_file.hang_limits, in_file.restart) == (typed.hang_limits, typed.restart)


@GUIDE.says(26, "using --ft-<parameter-name>")
def test_each_parameter_of_the_file_has_its_flag():
    flags = settings_by_flag()
    keys = [(setting, key) for setting in RUN_SETTINGS for key in setting.keys if setting.flag.startswith("--ft-")]
    assert len(keys) > 50
    assert [key for setting, key in keys if flags["--ft-" + key.replace("_", "-")][0] is not setting] == []


@GUIDE.says(29, "If --max-restarts is specified, the launcher restarts failed workers.")
def test_without_it_nothing_is_restarted():
    assert asked().restart.max_restarts == 0
    assert asked("--max-restarts", "3").restart.max_restarts == 3


@GUIDE.says(
    30,
    "--ft-restart-policy parameter is deprecated; only any-failed is supported",
    instead="from-reference-product.md: `any-failed` (default) and `min-healthy`",
)
def test_both_policies_are_supported():
    assert asked().restart.policy is RestartPolicyName.ANY_FAILED
    assert asked("--ft-restart-policy", "any-failed").restart.policy is RestartPolicyName.ANY_FAILED
    assert asked("--ft-restart-policy", "min-healthy").restart.policy is RestartPolicyName.MIN_HEALTHY


# --- attribution -----------------------------------------------------------------------------------------------------


@GUIDE.says(110, "Per-cycle application logs do not enable attribution by themselves. To enable attribution, set")
def test_a_log_alone_asks_no_service():
    assert not asked(*LOG).attribution.is_asked


@GUIDE.says(111, "The endpoint value localhost makes ft_launcher run the attribution service on the TCPStore host")
def test_localhost_is_a_service_of_the_jobs_own():
    assert asked(*LOG, "--ft-attribution-endpoint", "localhost").attribution.is_managed
    assert not asked(*LOG, "--ft-attribution-endpoint", "http://h:1").attribution.is_managed


@GUIDE.says(114, "External endpoints may use schemes such as http://, grpc://, or unix://")
@pytest.mark.parametrize(("endpoint", "is_asked"), [("http://h:1", True), ("grpc://h:1", False), ("unix:///s", False)])
def test_other_schemes_are_kept_but_only_http_is_spoken(endpoint: str, is_asked: bool):
    found = asked(*LOG, "--ft-attribution-endpoint", endpoint).attribution
    assert (found.endpoint, found.is_asked) == (endpoint, is_asked)


@GUIDE.says(117, "If --ft-attribution-endpoint is set, --ft-per-cycle-applog-prefix is required")
def test_attribution_needs_logs():
    with pytest.raises(InvalidRequestError, match="add --ft-per-cycle-applog-prefix"):
        asked("--ft-attribution-endpoint", "http://h:1")


@GUIDE.says(120, "Install the wheel with the attribution extra before running a launcher-managed attribution service")
def test_the_extra_has_that_name():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "attribution" in project["optional-dependencies"]


@GUIDE.says(126, "--ft-attribution-endpoint <ENDPOINT>(alias:--ft_attribution_endpoint), default disabled")
def test_attributions_flags_and_their_aliases():
    names = ["endpoint", "llm-api-key-file", "llm-base-url", "llm-model", "startup-timeout", "export-url"]
    flags = settings_by_flag()
    assert {flags[f"--ft-attribution-{name}"][0].path.partition(".")[0] for name in names} == {"attribution"}
    assert asked(*LOG, "--ft_attribution_endpoint", "http://h:1").attribution.endpoint == "http://h:1"
    assert (asked().attribution.endpoint, asked().attribution.startup_timeout_s) == ("", 20.0)


@GUIDE.says(128, "Its stdout/stderr log is derived from--ft-per-cycle-applog-prefixas*_attribution.log")
def test_the_services_log_lies_beside_the_cycles():
    assert attribution_log_path("/lustre/job123/train.log") == "/lustre/job123/train_attribution.log"


@GUIDE.says(128, "The managed service listens on127.0.0.1:50050")
def test_the_services_address():
    assert MANAGED_ADDRESS == ("127.0.0.1", 50050)


@GUIDE.says(128, "The managed attribution API key must come from --ft-attribution-llm-api-key-fileor inherited")
def test_a_model_without_a_readable_key_is_an_error(tmp_path: Path):
    url = ("--ft-attribution-endpoint", "localhost", "--ft-attribution-llm-base-url", "https://m")
    for more in ((), ("--ft-attribution-llm-api-key-file", str(tmp_path / "none"))):
        with pytest.raises(HoldfastError, match="key"):
            asked(*LOG, *url, *more)
    (tmp_path / "key").write_text("k")
    assert asked(*LOG, *url, environ={"LLM_API_KEY_FILE": str(tmp_path / "key")}).attribution.needs_key


@GUIDE.says(130, "or setattribution_export_urlin the fault tolerance YAML config")
def test_results_are_exported_by_flag_or_file(tmp_path: Path):
    localhost = ("--ft-attribution-endpoint", "localhost")
    in_file = with_section(tmp_path, "attribution_export_url: http://e", *LOG, *localhost)
    typed = request(*LOG, *localhost, "--ft-attribution-export-url", "http://e", "train.py")
    assert in_file.spec.attribution.export_url == typed.spec.attribution.export_url == "http://e"


@GUIDE.says(130, "useris read fromSLURM_JOB_USERorUSER, andjob_idis read fromSLURM_ARRAY_JOB_IDorSLURM_JOB_ID")
def test_who_submits():
    slurm = {"SLURM_JOB_USER": "a", "USER": "b", "SLURM_JOB_ID": "2", "SLURM_ARRAY_JOB_ID": "1"}
    assert submitter(slurm) == {"user": "a", "job_id": "1"}
    assert submitter({"USER": "b", "SLURM_JOB_ID": "2"}) == {"user": "b", "job_id": "2"}
    assert submitter({}) == {}


@GUIDE.says(131, "--ft-attribution-endpoint localhost \\ --ft-attribution-llm-api-key-file /secure/llm_api_key")
def test_the_example_of_a_managed_service(tmp_path: Path):
    key = tmp_path / "llm_api_key"
    key.write_text("k")
    found = request(
        *LOG, "--ft-attribution-endpoint", "localhost", "--ft-attribution-llm-api-key-file", str(key),
        "--ft-attribution-llm-base-url", "https://integrate.api.nvidia.com/v1",
        "--ft-attribution-llm-model", "nvidia/nemotron-3-super-120b-a12b",
        "--ft-attribution-export-url", "https://dataflow.example.test/dataflow2/example-index/posting", "train.py",
    )  # fmt: skip
    assert found.spec.attribution.is_managed
    assert found.warnings == ()


@GUIDE.says(133, "--ft-attribution-endpoint http://attribution.service.internal:8000 \\ train.py")
def test_the_example_of_an_external_service():
    assert asked(*LOG, "--ft-attribution-endpoint", "http://attribution.service.internal:8000").attribution.is_asked


# --- logs ------------------------------------------------------------------------------------------------------------


@GUIDE.says(142, "consolidated per-cycle application logs (for example via --ft-per-cycle-applog-prefix)")
def test_logs_and_the_server_are_configured():
    found = nodes("2", *LOG, "--ft-enable-log-server", "true").spec
    assert found.has_log_server
    assert found.logs.cycle_prefix == LOG[1]


# --- ranks -----------------------------------------------------------------------------------------------------------


@GUIDE.says(151, "The launcher first checks SLURM_PROCID(automatically set in SLURM environments)")
def test_slurms_number_comes_first():
    facts = nodes("2", SLURM_PROCID="1", GROUP_RANK="0").spec.facts
    assert (facts.infrastructure_rank, facts.rank_source) == (1, "SLURM_PROCID")


@GUIDE.says(152, "If not available, it falls back to GROUP_RANK")
def test_then_the_group_rank():
    facts = nodes("2", GROUP_RANK="1").spec.facts
    assert (facts.infrastructure_rank, facts.rank_source) == (1, "GROUP_RANK")


@GUIDE.says(153, "If neither environment variable is set, ranks are assigned deterministically based on sorted node")
def test_else_the_names_in_order():
    assert nodes("2").spec.facts == NodeFacts(domain="d", program="training_script.py")
    assert shown(place({name: NodeFacts() for name in ("nC", "nA", "nB")}, RendezvousRules(), wanted=3)) == "A B C"


@GUIDE.says(158, "By default (--ft-segment=None), the launcher uses simple hot spare mode")
def test_no_segments_by_default():
    assert nodes("6:8").spec.rendezvous.segment is None


@GUIDE.says(160, "The first min_nodes(from--nnodes) are assigned as active workersAny additional nodes beyond")
def test_the_first_nodes_train_and_the_others_are_spares():
    rules = nodes("6:8", "--nproc-per-node=8").spec.rules()
    assert (rules.restart.min_nodes, rules.rendezvous.max_nodes) == (6, 8)
    assert shown(place(ranked(*range(8)), RendezvousRules(8), wanted=6)) == "0 1 2 3 4 5 | 6 7"


@GUIDE.says(157, "Hot spare functionality is always enabled and works with --max-restarts")
def test_a_spare_takes_the_place_of_a_lost_node():
    assert shown(place(ranked(0, 1, 2, 4, 5, 6, 7), RendezvousRules(8), wanted=6)) == "0 1 2 4 5 6 | 7"


@GUIDE.says(162, "Hot spares do not require GPU ClusterUUID or NVLink domain awareness")
def test_without_segments_no_domain_is_asked_for():
    found = request("--nnodes=6:8", "--rdzv-endpoint=127.0.0.1:1", "--rdzv-id=j", "t.py").spec
    assert (found.facts.domain, found.rendezvous.segment) == ("", None)


@GUIDE.says(166, "Nspecifies the minimum number of nodes required per NVLink domain")
def test_a_domain_with_fewer_nodes_takes_no_part():
    small = in_domains(A=range(3), B=range(3, 12))
    assert shown(place(small, RendezvousRules(segment=4), wanted=8)) == "3 4 5 6 7 8 9 10 | 0 1 2 11"


@GUIDE.says(167, "From each valid domain, as many complete segments as possible are selected")
def test_as_many_segments_as_possible():
    both = in_domains(A=range(6), B=range(6, 12))
    assert shown(place(both, RendezvousRules(segment=4), wanted=8)) == "0 1 2 3 6 7 8 9 | 4 5 10 11"


@GUIDE.says(168, "Nodes in the same segment receive contiguous group ranks")
def test_nodes_of_a_segment_are_neighbours():
    mixed = in_domains(A=(0, 2, 4), B=(1, 3))
    assert shown(place(mixed, RendezvousRules(segment=2), wanted=4)) == "0 2 1 3 | 4"


@GUIDE.says(170, "min_nodesparameter (from--nnodes) must be divisible bysegment")
def test_a_remainder_is_an_error():
    with pytest.raises(InvalidRequestError, match="not a multiple of it"):
        nodes("7:8", "--ft-segment", "4")


@GUIDE.says(172, "--ft-segment=1: Each node is a segment, similar to simple mode but requires ClusterUUID")
def test_a_segment_of_one_needs_a_domain():
    assert shown(place(in_domains(A=(1, 2)) | ranked(0), RendezvousRules(segment=1), wanted=2)) == "1 2 | 0"


@GUIDE.says(174, "ft_launcher --nnodes=6:8 --nproc-per-node=8 \\ --max-restarts=3 \\ training_script.py")
def test_the_example_with_two_spares(tmp_path: Path):
    step = STEP | {"SLURM_STEP_NUM_NODES": "8", "SLURM_STEP_NUM_TASKS": "8", "HOME": str(tmp_path)}
    found = request("--nnodes=6:8", "--nproc-per-node=8", "--max-restarts=3", "training_script.py", environ=step).spec
    assert (found.local_world_size, found.restart.max_restarts, found.rules().restart.min_nodes) == (8, 3, 6)


@GUIDE.says(174, "ft_launcher --nnodes=6:8 --nproc-per-node=8")
def test_without_a_scheduler_the_example_says_all_that_it_needs():
    with pytest.raises(InvalidRequestError, match="several nodes must be told where they meet") as caught:
        request("--nnodes=6:8", "--nproc-per-node=8", "--max-restarts=3", "training_script.py")
    line = caught.value.__notes__[0]
    assert "--rdzv-endpoint" in line
    assert "--rdzv-id" in line


@GUIDE.says(
    180, "ft_launcher --nnodes=8:12 --nproc-per-node=8 \\ --ft-segment=4 --max-restarts=3 \\ training_script.py"
)
def test_the_example_with_segments():
    found = nodes("8:12", "--nproc-per-node=8", "--ft-segment=4", "--max-restarts=3").spec
    assert (found.rendezvous.segment, found.rules().restart.min_nodes) == (4, 8)


@GUIDE.says(184, "8 active nodes = 2 complete segments # 4 hot spare nodes available for restart")
def test_two_segments_train_and_four_nodes_are_spares():
    three = in_domains(A=range(4), B=range(4, 8), C=range(8, 12))
    assert shown(place(three, RendezvousRules(12, segment=4), wanted=8)) == "0 1 2 3 4 5 6 7 | 8 9 10 11"


# --- NUMA ------------------------------------------------------------------------------------------------------------


@GUIDE.says(187, "automatic NUMA node binding for workers through the NVRX_GPUS_PER_NUMA environment variable")
def test_the_variable_binds_workers(tmp_path: Path):
    assert bound(tmp_path, "4").gpus_per_numa == 4
    assert asked().gpus_per_numa is None


@GUIDE.says(192, "The launcher will fail to start workers if numactl is not found")
def test_numactl_is_needed():
    with pytest.raises(ConfigurationError, match="numactl is not in PATH; install numactl"):
        asked(environ={"NVRX_GPUS_PER_NUMA": "4", "PATH": "/none"})


@GUIDE.says(200, "numa_node = local_rank // gpus_per_numa")
def test_the_node_is_a_quotient(tmp_path: Path):
    spec = bound(tmp_path, "2")
    assert [numactl_prefix(spec, rank)[1] for rank in range(5)] == [f"--cpunodebind={node}" for node in (0, 0, 1, 1, 2)]


@GUIDE.says(201, "numactl --cpunodebind=<numa_node> --membind=<numa_node>")
def test_the_command_that_binds(tmp_path: Path):
    assert numactl_prefix(bound(tmp_path, "4"), 5) == ("numactl", "--cpunodebind=1", "--membind=1")


@GUIDE.says(203, "For a system with 4 GPUs per NUMA node (8 GPUs total, 2 NUMA nodes) export NVRX_GPUS_PER_NUMA=4")
def test_the_example_of_binding(tmp_path: Path):
    spec = bound(tmp_path, "4", "--nproc-per-node=8")
    bindings = [numactl_prefix(spec, rank)[1] for rank in range(spec.local_world_size)]
    assert bindings == ["--cpunodebind=0"] * 4 + ["--cpunodebind=1"] * 4


def bound(folder: Path, gpus: str, *flags: str) -> JobSpec:
    """Returns a job on a machine that has numactl."""
    (folder / "numactl").touch(0o755)
    return asked(*flags, environ={"NVRX_GPUS_PER_NUMA": gpus, "PATH": str(folder)})


def test_the_statements_stand_at_their_lines():
    GUIDE.compare()
