"""How does the process handle questions, in any pieces, and the end of its input?"""

from __future__ import annotations

import json
import os
import threading
from typing import cast

import pytest

from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.gpus.driver import Device, Driver, DriverError
from supervisor.edges.machine.gpus.gpu_program import Answer, Program, serve


class SaidDriver:
    def ready(self) -> None:
        raise DriverError("NVML says Driver Not Loaded")

    def devices(self, visible: object, at_most: int = 0) -> list[Device]:
        del at_most
        return [Device(f"GPU {visible}", 1, 1)]

    def fabric(self, device: Device) -> tuple[str, int]:
        return device.name, 7


@pytest.mark.timeout(30)
def test_questions_come_in_any_pieces_and_it_ends_with_its_input() -> None:
    answers: list[Answer] = []
    questions, ours = os.pipe()
    serving = threading.Thread(
        target=serve, args=(Program(cast("Driver", SaidDriver()), Clock(), answers.append), questions)
    )
    serving.start()
    lines = b"".join(
        json.dumps({"id": number, "ask": ask}).encode() + b"\n"
        for number, ask in ((1, "fabric"), (2, "ready"), (3, "x"))
    )
    for at in range(0, len(lines), 7):
        os.write(ours, lines[at : at + 7])
    os.write(ours, b'{"id": 4, "ask": "drop"}\n')
    os.close(ours)
    serving.join(20)
    assert not serving.is_alive()
    os.close(questions)
    assert answers == [
        {"id": 1, "domains": [["GPU None", 7]]},
        {"id": 2, "error": "NVML says Driver Not Loaded"},
        {"id": 3, "error": "NVML says 'x'"},
    ]
