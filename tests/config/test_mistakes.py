"""Does every mistake say what is wrong, where, and what to write instead?"""

# ruff: noqa: E501 - messages are quoted whole

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.errors import ConfigurationError, InvalidRequestError
from tests.config.runs import request, with_section

USAGE: list[tuple[list[str], str]] = [
    ([], "cannot run: no script is named; write holdfast run [options] script.py"),
    (["--"], "cannot run: no script is named; write holdfast run [options] script.py"),
    (["--max-restrats", "3", "t"], "cannot use --max-restrats: there is no such flag; did you mean --max-restarts"),
    (["--ft-rank-", "3", "t"],
     "cannot use --ft-rank-: it may mean --ft-rank-heartbeat-timeout, --ft-rank-out-of-section-timeout, "
     "--ft-rank-section-timeouts, --ft-rank-termination-signal; type more characters"),
    (["--ft-attribution-endpoint", "localhost", "--ft-per-cycle-applog-prefix", "/l/t.log",
      "--ft-attribution-llm-model", "m", "t"],
     "cannot use --ft-attribution-llm-model m: no model can be asked without its address; add "
     "--ft-attribution-llm-base-url URL, or write --ft-attribution-llm-model none to judge by rules alone"),
    (["--frobnicate", "t"], "cannot use --frobnicate: there is no such flag; see holdfast run --help"),
    (["-x", "t"], "cannot use -x: there is no such flag; see holdfast run --help"),
    (["-mq", "t"], "cannot use -q: there is no such flag; see holdfast run --help"),
    (["--store-ports", "20000", "t"],
     "cannot use --store-ports 20000: it is not a range of ports; write the first and the last, such as 20000-20999"),
    (["--store-ports", "80-20000", "t"],
     "cannot use --store-ports 80-20000: it is not a range between 1024 and 65535; write such as 20000-20999"),
    (["--store-ports", "20000-20100", "t"],
     "cannot use --store-ports 20000-20100: it has 101 ports, and a job needs 130: 65 for the running cycle and 65 for the next one; write such as 20000-20999"),
    (["--max-restarts"], "cannot use --max-restarts: it needs a value; write --max-restarts N"),
    (["--max-restarts", "--role", "a", "t"], "cannot use --max-restarts: it needs a value; write --max-restarts N"),
    (["--max-restarts", "-1", "t"], "cannot use --max-restarts -1: it is below the least value 0 restarts; write 0 or more"),
    (["--max-restarts", "1.5", "t"],
     "cannot use --max-restarts 1.5: it is not a whole number; write a whole number from 0 to 1000000"),
    (["--max-restarts", "1_0", "t"],
     "cannot use --max-restarts 1_0: it is not a whole number; write a whole number from 0 to 1000000"),
    (["--term-timeout", "1_0", "t"],
     "cannot use --term-timeout 1_0: seconds must be a plain number; write a number such as 30"),
    (["--nproc-per-node", "\N{ARABIC-INDIC DIGIT THREE}", "t"],
     "cannot use --nproc-per-node \N{ARABIC-INDIC DIGIT THREE}: it is neither a number nor auto, cpu or gpu; write the number of workers"),
    (["--nproc-per-node", "0", "t"],
     "cannot use --nproc-per-node 0: a node has 1 to 1024 workers; write a number in this range"),
    (["--nproc-per-node", "all", "t"],
     "cannot use --nproc-per-node all: it is neither a number nor auto, cpu or gpu; write the number of workers"),
    (["--nproc-per-node", "xpu", "t"],
     "cannot use --nproc-per-node xpu: Intel GPUs are not supported yet; write their number"),
    (["--nproc-per-node", "gpu", "t"],
     "cannot use --nproc-per-node gpu: this node has no GPU that a worker could use; check nvidia-smi, or write a number"),
    (["--nnodes", "2:1", "t"],
     "cannot use --nnodes 2:1: MIN must be 1 or more and MAX no less than MIN; write 1:2"),
    (["--nnodes", "1:5000000000", "t"],
     "cannot use --nnodes 1:5000000000: a job has at most 100000 nodes; write 100000 or fewer"),
    (["--nnodes", "a", "t"], "cannot use --nnodes a: it is neither a number of nodes nor MIN:MAX; write 1"),
    (["--rdzv-backend", "zookeeper", "t"],
     "cannot use --rdzv-backend zookeeper: no installed package offers such a backend; write c10d or etcd"),
    (["--rdzv-endpoint", "a:b", "t"],
     "cannot use --rdzv-endpoint a:b: it is not HOST:PORT; write HOST:PORT, an IPv6 address in brackets"),
    (["--rdzv-endpoint", "a..b:29400", "t"],
     "cannot use --rdzv-endpoint a..b:29400: each part of a host's name has 1 to 63 characters; write one such as "
     "node1.cluster"),
    (["--rdzv-conf", "timeout", "t"],
     "cannot use --rdzv-conf timeout: 'timeout' is not KEY=VALUE; write KEY=VALUE,KEY=VALUE"),
    (["--master-port", "65536", "t"],
     "cannot use --master-port 65536: it is above the greatest value 65535; write 65535 or less"),
    (["-r", "4", "t"],
     "cannot use -r 4: it is neither 0 to 3 nor a map of local ranks; write 3 (both streams of all ranks) or 0:1,1:2"),
    (["--local-ranks-filter", "a", "t"],
     "cannot use --local-ranks-filter a: it is not a list of local ranks; write ranks such as 0,1,2"),
    (["-m", "--no-python", "t"], "cannot use --no-python with --module: a module needs Python; remove one of them"),
    (["--spawn-method", "fork", "--no-python", "ls"],
     "cannot use --spawn-method fork: a command that is not Python cannot be forked; write --spawn-method auto"),
    (["--spawn-method", "thread", "t"],
     "cannot use --spawn-method thread: it is not one of auto, fork, exec; write auto or fork or exec"),
    (["--preload", "a b", "t"],
     "cannot use --preload a b: it is neither auto, torch, none nor a list of modules; write modules such as torch,numpy"),
    (["--job-id", ".hidden", "t"],
     "cannot use --job-id .hidden: a job id has 1 to 64 letters, digits, '.', '_' or '-' and no leading '.'; "
     "write one such as train-17"),
    (["--job-id", "j" * 65, "t"],
     f"cannot use --job-id {'j' * 65}: a job id has 1 to 64 letters, digits, '.', '_' or '-' and no leading '.'; "
     "write one such as train-17"),
    (["--job-id", "../x", "t"],
     "cannot use --job-id ../x: a job id has 1 to 64 letters, digits, '.', '_' or '-' and no leading '.'; "
     "write one such as train-17"),
    (["--signals-to-handle", "SIGKILL", "t"],
     "cannot use --signals-to-handle SIGKILL: SIGKILL cannot be handled and forwarded; leave SIGKILL out"),
    (["--signals-to-handle", "SIGFOO", "t"],
     "cannot use --signals-to-handle SIGFOO: there is no such signal; write a name such as SIGKILL, or its number"),
    (["--standalone=perhaps", "t"], "cannot use --standalone perhaps: it is neither true nor false; write true or false"),
    (["--socket-dir", "", "t"], "cannot use --socket-dir '': it is empty; write a dir"),
    (["--ft-rank-heartbeat-timeout", "30s", "t"],
     "cannot use --ft-rank-heartbeat-timeout 30s: seconds are plain numbers without a unit; write 30"),
    (["--ft-rank-heartbeat-timeout", "5m", "t"],
     "cannot use --ft-rank-heartbeat-timeout 5m: seconds are plain numbers without a unit; write 300"),
    (["--ft-rank-heartbeat-timeout", "0", "t"],
     "cannot use --ft-rank-heartbeat-timeout 0: a limit of 0 seconds could never be met; write none for no limit"),
    (["--ft-rank-heartbeat-timeout", "-5", "t"],
     "cannot use --ft-rank-heartbeat-timeout -5: it is below the least value 0 s; write 0 or more"),
    (["--ft-rank-heartbeat-timeout", "nan", "t"],
     "cannot use --ft-rank-heartbeat-timeout nan: seconds must be a finite number; "
     "write a number such as 30, or none for no limit"),
    (["--ft-rank-heartbeat-timeout", "inf", "t"],
     "cannot use --ft-rank-heartbeat-timeout inf: seconds must be a finite number; "
     "write a number such as 30, or none for no limit"),
    (["--ft-rank-heartbeat-timeout", "3600000", "t"],
     "cannot use --ft-rank-heartbeat-timeout 3600000: it is above the greatest value 604800 s (a week); "
     "write seconds, not milliseconds, or none for no limit"),
    (["--workers-stop-timeout", "none", "t"],
     "cannot use --workers-stop-timeout none: seconds must be a plain number; write a number such as 30"),
    (["--evidence-budget-s", "61", "t"],
     "cannot use --evidence-budget-s 61: it is above the greatest value 60 s; write 60 or less"),
    (["--ft-rank-section-timeouts", "step", "t"],
     "cannot use --ft-rank-section-timeouts step: 'step' is not NAME:SECONDS; "
     "write a map such as setup:600,step:60,save:null"),
    (["--ft-rank-section-timeouts", "a:1,a:2", "t"],
     "cannot use --ft-rank-section-timeouts a:1,a:2: section 'a' is named twice; keep one limit of 'a'"),
    (["--ft-rank-section-timeouts", "a:1h", "t"],
     "cannot use --ft-rank-section-timeouts a:1h: section 'a': seconds are plain numbers without a unit; write 3600"),
    (["--ft-rank-termination-signal", "SIGSTOP", "t"],
     "cannot use --ft-rank-termination-signal SIGSTOP: SIGSTOP does not end a process; write SIGKILL, SIGTERM or SIGABRT"),
    (["--ft-rank-termination-signal", "0", "t"],
     "cannot use --ft-rank-termination-signal 0: there is no such signal; write a name such as SIGKILL, or its number"),
    (["--ft-safety-factor", "0.5", "t"], "cannot use --ft-safety-factor 0.5: it is below the least value 1; write 1 or more"),
    (["--ft-no-restart-exit-code", "0", "t"],
     "cannot use --ft-no-restart-exit-code 0: it is below the least value 1; write 1 or more"),
    (["--ft-install-exception-hook", "ture", "t.py"],
     "cannot use --ft-install-exception-hook ture: it is neither true nor false; write true or false"),
    (["--ft-segment", "3", "t"],
     "cannot use --ft-segment 3: the job needs 1 node, which is not a multiple of it; write --nnodes with one as its MIN"),
    (["--ft-per-cycle-applog-prefix", "/lustre/", "t"],
     "cannot use --ft-per-cycle-applog-prefix /lustre/: it names a folder; add the name of a file, such as train.log"),
    (["--ft-restart-policy", "none-failed", "t"],
     "cannot use --ft-restart-policy none-failed: it is not one of any-failed, min-healthy; write any-failed or min-healthy"),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "message"), USAGE, ids=[" ".join(argv) or "nothing" for argv, _ in USAGE])
def test_on_the_command_line(argv: list[str], message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        request(*argv)
    assert str(caught.value) == message


def test_a_rank_has_a_bounded_number_of_sections(tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(257)]
    limits = request("--ft-rank-section-timeouts", ",".join(f"{name}:9" for name in names[:-1]), "t").spec.hang_limits
    assert [name for name, _ in limits.sections] == names[:-1]
    with pytest.raises(InvalidRequestError, match="there are more than 256 sections; keep 256 or fewer"):
        request("--ft-rank-section-timeouts", ",".join(f"{name}:9" for name in names), "t")
    with pytest.raises(ConfigurationError, match="line 259: rank_section_timeouts: there are more than 256 sections"):
        with_section(tmp_path, "\n".join(["rank_section_timeouts:", *(f"  {name}: 9" for name in names)]))


def test_the_name_of_a_section_has_a_bounded_length(tmp_path: Path) -> None:
    name = "n" * 256
    assert request("--ft-rank-section-timeouts", f"{name}:9", "t").spec.hang_limits.sections == ((name, 9.0),)
    said = f"the name of section '{'n' * 40}…' has 257 characters; write one of 256 or fewer"
    with pytest.raises(InvalidRequestError, match=said):
        request("--ft-rank-section-timeouts", f"{name}n:9", "t")
    with pytest.raises(ConfigurationError, match=said):
        with_section(tmp_path, f"rank_section_timeouts:\n  {name}n: 9")


ENVIRONMENT = [
    ({"PET_MAX_RESTARTS": "x"},
     "cannot use PET_MAX_RESTARTS=x: it is not a whole number; write a whole number from 0 to 1000000"),
    ({"PET_STANDALONE": "2"}, "cannot use PET_STANDALONE=2: it is neither true nor false; write true or false"),
    ({"PET_FT_LOG_SERVER_PORT": "65535"},
     "cannot use PET_FT_LOG_SERVER_PORT=65535: the last port of the log server would be 65536; choose a lower one, "
     "or fewer leaves"),
    ({"NVRX_GPUS_PER_NUMA": "0"},
     "cannot use NVRX_GPUS_PER_NUMA=0: it is not a number of GPUs from 1 to 1024; "
     "write the GPUs of one NUMA node, such as 4"),
    ({"NVRX_GPUS_PER_NUMA": "2", "HOLDFAST_GPUS_PER_NUMA": "4"},
     "cannot bind workers to NUMA nodes: HOLDFAST_GPUS_PER_NUMA=4 and NVRX_GPUS_PER_NUMA=2 differ; unset one of them"),
    ({"PET_FT_CFG_PATH": "/nowhere/job.yaml"},
     "cannot read /nowhere/job.yaml: No such file or directory; check the path and its permissions"),
]  # fmt: skip


@pytest.mark.parametrize(("environ", "message"), ENVIRONMENT, ids=[" ".join(environ) for environ, _ in ENVIRONMENT])
def test_in_the_environment(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        request("t.py", environ=environ)
    assert str(caught.value) == message


NOT_YET = [
    (["--run-path"], "running the script inside the launcher's worker is"),
    (["--duplicate-stdout-filters", "a"], "a filtered copy of the output is"),
    (["--logs-specs", "mine"], "a logging plug-in of torchrun is"),
    (["--virtual-local-rank"], "a virtual local rank is"),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "what"), NOT_YET, ids=[argv[0] for argv, _ in NOT_YET])
def test_what_is_not_there_yet(argv: list[str], what: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        request(*argv, "t.py")
    shown = " ".join(argv) if argv[1:] != ["true"] else argv[0]
    assert str(caught.value) == f"cannot use {shown}: {what} not supported yet; remove {argv[0]}"


@pytest.mark.parametrize(
    "argv",
    [
        ["--ft-enable-log-server", "false"],
        ["--ft-log-server-port", "50051"],
        ["--ft-attribution-stop-action", "log"],
        ["--logs-specs", "default"],
        ["--virtual-local-rank=false"],
    ],
)
def test_what_asks_for_nothing_passes_in_silence(argv: list[str]) -> None:
    assert request(*argv, "t.py").warnings == ()


def test_a_higher_layer_can_take_back_what_is_not_there_yet(tmp_path: Path) -> None:
    run = with_section(tmp_path, "enable_nic_healthcheck: true", "--ft-enable-nic-healthcheck", "false")
    assert run.warnings == ()


WARNINGS = [
    (["--monitor-interval", "5"],
     "--monitor-interval 5 has no effect here: the kernel reports exits at once; nothing polls"),
    (["--start-method=fork"], "--start-method fork has no effect here: --spawn-method says how workers are started"),
    (["--event-log-handler", "console"],
     "--event-log-handler console has no effect here: holdfast events and the journal hold the events"),
    (["--ft-restart-check-interval", "1"],
     "--ft-restart-check-interval 1 has no effect here: nothing polls for restarts"),
    (["--ft-skip-section-response", "false"],
     "--ft-skip-section-response false has no effect here: heartbeats and sections never wait for an answer"),
    (["--ft-ignore-missing-cfg"], "--ft-ignore-missing-cfg has no effect here: no configuration file is needed"),
    (["--rdzv-conf", "join_timeuot=3"], "--rdzv-conf join_timeuot has no effect here: there is no such key"),
    (["--local-ranks-filter", "0,5"], "output flags name local rank 5, but local ranks are 0 to 0: it has no effect"),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "warning"), WARNINGS, ids=[argv[0] for argv, _ in WARNINGS])
def test_what_has_no_effect_says_so_once(argv: list[str], warning: str) -> None:
    assert request(*argv, "t.py").warnings == (warning,)


def test_variables_that_are_not_read() -> None:
    run = request("t.py", environ={"NVRX_DISABLE_RANK_MONITORS": "1", "PET_MAX_RESTART": "3", "PET_NAME": "rex"})
    assert run.warnings == (
        "NVRX_DISABLE_RANK_MONITORS has no effect here: limits are switched off one by one, "
        "as with --ft-rank-heartbeat-timeout none",
        "PET_MAX_RESTART is not read: did you mean PET_MAX_RESTARTS",
    )
