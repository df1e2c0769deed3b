"""What every test may rely on, however the suite was started."""

from __future__ import annotations

import signal

import pytest

# Started by nohup, or in the background of a script, the suite ignores these, and so would all that it starts.
for _number, _default in (
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGINT, signal.default_int_handler),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _default)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """CI gives a test that has failed a second chance (.ci/run). Why it failed at first is shown all the same."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.write_sep("_", f"failed at first: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
