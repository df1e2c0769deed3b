"""How long do ranks have after a Ctrl-C at a terminal?"""

from __future__ import annotations

from signal import SIGINT, SIGTERM

import pytest

from supervisor.config.stop_times import interrupted_grace_s
from tests.config.runs import request


def test_a_ctrl_c_waits_as_long_as_torchrun() -> None:
    assert interrupted_grace_s(request("t.py"), SIGINT) == 30.0


def test_another_signal_has_its_configured_time() -> None:
    assert interrupted_grace_s(request("t.py"), SIGTERM) is None


@pytest.mark.parametrize("flag", ["--term-timeout=7", "--term-timeout=3600", "--shutdown-timeout=90"])
def test_a_time_that_a_user_has_written_holds(flag: str) -> None:
    assert interrupted_grace_s(request(flag, "t.py"), SIGINT) is None
