"""What may every test rely on, however the suite was started?"""

from __future__ import annotations

import itertools
import os
import signal

import pytest

from supervisor.edges.machine.folders import default_dirs, socket_dir, state_dir

# Before any test loads gRPC: its fork handlers sometimes end programs that tests start. Our modules set it, too.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# Started by nohup or in a script's background, the suite ignores these, and its children would, too.
for _number, _default in (
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGINT, signal.default_int_handler),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _default)


try:
    import hypothesis
except ModuleNotFoundError:  # `make gpu` runs without it
    pass
else:
    # A stalled machine must not fail a property: benchmarks judge the cost of a step.
    hypothesis.settings.register_profile("random", deadline=None)
    # CI judges a change: each run plays the same examples. `make soak` and runs by hand look for new ones.
    hypothesis.settings.register_profile(
        "same-examples", deadline=None, derandomize=True, database=None, max_examples=50
    )
    hypothesis.settings.register_profile("soak", deadline=None, max_examples=1000, print_blob=True)
    hypothesis.settings.load_profile("random")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """CI runs a failed test twice more (.ci/run). This shows why it failed before."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.write_sep("_", f"failed before: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


_NUMBERS = itertools.count(1)


@pytest.fixture(autouse=True)
def places_of_the_machine(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives the test's own process default places of its own: it finds nothing of the jobs that others run or ran."""
    place = tmp_path_factory.getbasetemp() / f"machine-{next(_NUMBERS)}"  # mktemp would list all those before it
    place.mkdir(mode=0o700)
    monkeypatch.setattr(default_dirs, "SHARED_TEMPS", (place,))
    monkeypatch.setattr(default_dirs, "RUNTIME_DIRS", place / "user")
    monkeypatch.setattr(state_dir, "SYSTEM_DIR", place / "state")
    if os.geteuid() != 0:  # root gives its variables to users of a lab, too
        monkeypatch.setenv("XDG_STATE_HOME", str(place))


@pytest.fixture(scope="session")
def no_supervisor_of_the_node() -> None:
    """A supervisor would get the jobs of tests, and run them with its own code."""
    node = socket_dir.SYSTEM_DIR
    if socket_dir.answers(node / socket_dir.CONTROL_SOCKET):
        pytest.fail(f"cannot test: a supervisor serves {node} and would get these jobs; stop it first", pytrace=False)
