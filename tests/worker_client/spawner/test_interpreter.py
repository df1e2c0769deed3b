"""Does an interpreter that is too old say so over the link, in a form that any supervisor reads?"""

from __future__ import annotations

import ast
import os
import socket
import sys
from pathlib import Path

from holdfast_wire import framing, spawner_link

from worker_client.spawner import interpreter


def test_a_new_enough_one_goes_on() -> None:
    interpreter.refuse_old()


def test_an_old_one_is_refused_with_the_remedy() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pid = os.fork()
        if pid == 0:
            os.environ["HOLDFAST_SPAWNER_FD"] = str(theirs.fileno())
            sys.version_info = (3, 9, 18, "final", 0)  # pyright: ignore[reportAttributeAccessIssue]
            interpreter.refuse_old()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        data = ours.recv(65536)
    assert os.waitstatus_to_exitcode(status) == interpreter.BAD_CONFIGURATION
    (payload,) = framing.Decoder(frame_bytes_max=framing.SPAWNER_FRAME_BYTES_MAX).feed(data)
    ready = spawner_link.decode(payload)
    assert isinstance(ready, spawner_link.Ready)
    assert ready.refusal.startswith(f"cannot run with {sys.executable}: it is Python 3.9, and 3.11 is the oldest")
    assert ready.refusal.endswith("name another with --python")
    assert (ready.pid, ready.refusal_code) == (pid, interpreter.BAD_CONFIGURATION)


def test_python_3_6_can_read_the_file() -> None:
    ast.parse(Path(interpreter.__file__).read_text(), feature_version=(3, 6))
