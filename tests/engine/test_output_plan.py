from holdfast_wire.spawner_link import StreamPlan

from supervisor.config import JobSpec, Redirect
from supervisor.engine.output_plan import DEFAULT_LOG_BYTES_MAX, Console, plan_streams

PIPE = Console()
TERMINAL = Console(stdout_is_tty=True, stderr_is_tty=True)


def plans(spec: JobSpec, console: Console, local_rank: int = 1) -> tuple[StreamPlan, StreamPlan]:
    return plan_streams(spec, console, log_dir="/logs/j/run_1", cycle=2, local_rank=local_rank, rank=local_rank)


def spec(
    redirects: tuple[tuple[int | None, Redirect], ...] = (),
    tee: tuple[tuple[int | None, Redirect], ...] = (),
    shown: tuple[int, ...] = (),
) -> JobSpec:
    return JobSpec("j", ("t.py",), redirects=redirects, tee=tee, local_ranks_filter=shown)


LOGS = "/logs/j/run_1/cycle_2/rank_1"


def shown_and_kept(name: str) -> StreamPlan:
    return StreamPlan(console=True, file=f"{LOGS}/{name}.log", file_bytes_max=DEFAULT_LOG_BYTES_MAX)


def test_what_goes_to_a_terminal_is_kept_in_one_file() -> None:
    assert plans(spec(), TERMINAL) == (shown_and_kept("stdout"), shown_and_kept("stdout"))
    half = Console(stdout_is_tty=True)
    assert plans(spec(), half) == (shown_and_kept("stdout"), shown_and_kept("stderr"))


def test_a_pipe_is_passed_on_without_prefix_and_kept_under_a_cap() -> None:
    stdout, stderr = plans(spec(), PIPE)
    assert stdout == StreamPlan(
        console=True, file="/logs/j/run_1/cycle_2/rank_1/stdout.log", file_bytes_max=DEFAULT_LOG_BYTES_MAX
    )
    assert stderr.file.endswith("/stderr.log")


def test_a_daemon_has_no_console() -> None:
    assert not plans(spec(), Console(present=False))[0].console


def test_a_redirect_goes_straight_to_the_file_and_leaves_the_other_stream() -> None:
    stdout, stderr = plans(spec(redirects=((None, Redirect.OUT),)), TERMINAL)
    assert stdout == StreamPlan(console=False, file="/logs/j/run_1/cycle_2/rank_1/stdout.log", direct=True)
    assert stderr == shown_and_kept("stderr")


def test_tee_prefixes_and_keeps() -> None:
    stdout, _ = plans(spec(tee=((1, Redirect.ALL),)), TERMINAL)
    assert stdout == StreamPlan(console=True, prefix="[default1]:", file="/logs/j/run_1/cycle_2/rank_1/stdout.log")
    assert plans(spec(tee=((0, Redirect.ALL),)), TERMINAL)[0] == shown_and_kept("stdout")


def test_the_filter_hides_a_rank_from_the_console_but_keeps_its_log() -> None:
    stdout, _ = plans(spec(shown=(0,)), TERMINAL)
    assert not stdout.console
    assert stdout.file


def test_a_rule_for_one_rank_wins_over_the_rule_for_all() -> None:
    rules: tuple[tuple[int | None, Redirect], ...] = ((1, Redirect.NONE), (None, Redirect.ALL))
    assert plans(spec(redirects=rules), TERMINAL) == (shown_and_kept("stdout"), shown_and_kept("stdout"))
