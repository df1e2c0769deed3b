"""The disposable process: it alone calls NVML, whose calls may hang if a GPU is ill, or reads network cards.

It reads questions from standard input, one JSON object a line, and writes each answer with the question's number to
standard output. Answers to waits come later, all others at once. An Xid event, which NVML tells only once, is an answer
of its own, without a number, so that it isn't lost with the question. The process ends at the end of its input.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import Any

from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.gpus.driver import Driver, DriverError
from supervisor.edges.machine.gpus.gpu_holders import Job, UserNames
from supervisor.edges.machine.gpus.gpu_memory_waits import MemoryWait
from supervisor.edges.machine.gpus.nic_ports import read_ports
from supervisor.edges.machine.gpus.numa_nodes import node_cpus, node_numbers, numa_node, structure

READ_BYTES = 65536

Question = dict[str, Any]
Answer = dict[str, object]


class Program:
    """Answers the questions of one supervisor."""

    def __init__(self, driver: Driver, clock: Clock, say: Callable[[Answer], None]) -> None:
        self._driver = driver
        self._clock = clock
        self._say = say
        self._users = UserNames()
        self._waits: dict[int, MemoryWait] = {}
        self._asks: dict[str, Callable[[Question], Answer]] = {
            "fitness": self._fitness,
            "fabric": self._fabric,
            "places": self._places,
            "ports": self._ports,
            "ready": self._ready,
        }

    def take(self, question: Question) -> None:
        number = int(question["id"])
        try:
            if question["ask"] == "drop":
                self._drop(number)
            elif question["ask"] == "memory":
                self._waits[number] = self._wait(question)
                self.look(number)
            else:
                self._say({"id": number, **self._asks[str(question["ask"])](question)})
        except DriverError as error:
            self._say({"id": number, "error": str(error)})
        except Exception as error:  # noqa: BLE001 - nvidia-ml-py may raise anything: then one question has no answer
            self._drop(number)
            self._say({"id": number, "error": f"NVML says {error or type(error).__name__}"})

    def look(self, number: int) -> None:
        answer = self._waits[number].look(self._clock.now_s())
        if answer is not None:
            del self._waits[number]
            self._say({"id": number, **answer})

    def _drop(self, number: int) -> None:
        wait = self._waits.pop(number, None)
        if wait is not None:
            wait.close()

    def look_again(self, readable: set[int]) -> None:
        """Checks all waits that are due or for which a holder of memory has ended."""
        now_s = self._clock.now_s()
        for number, wait in list(self._waits.items()):
            if now_s >= wait.next_look_s or not readable.isdisjoint(wait.handles):
                self.look(number)

    @property
    def handles(self) -> list[int]:
        return [handle for wait in self._waits.values() for handle in wait.handles]

    def wait_ms(self) -> int:
        """Returns the time to the next check, for poll(); -1: there is no wait."""
        if not self._waits:
            return -1
        soonest_s = min(wait.next_look_s for wait in self._waits.values())
        return max(0, int((soonest_s - self._clock.now_s()) * 1000 + 0.999))

    def _wait(self, question: Question) -> MemoryWait:
        devices = self._driver.devices(question["visible"], int(question["at_most"]))
        job_id, socket, cgroups = question["job"]
        return MemoryWait(
            self._driver,
            devices,
            tolerance_bytes=int(question["tolerance_bytes"]),
            timeout_s=float(question["timeout_s"]),
            look_s_max=float(question["look_s"]),
            job=Job(job_id, socket, tuple(cgroups)),
            users=self._users,
            dev=str(question["dev"]),
            begun_s=self._clock.now_s(),
        )

    def _ready(self, question: Question) -> Answer:
        del question
        self._driver.ready()
        self._driver.watch_xids()
        return {}

    def _fitness(self, question: Question) -> Answer:
        for uuid, xid in self._driver.xids():
            self._say({"xid": (uuid, xid)})  # before any GPU is asked: an ill one may not answer
        devices = self._driver.devices(question["visible"])
        return {
            "gpus": [list(self._driver.fitness(device)) for device in devices],
            "lost": self._driver.lost(question["visible"]),
        }

    def _fabric(self, question: Question) -> Answer:
        del question
        return {"domains": [list(self._driver.fabric(device)) for device in self._driver.devices(None)]}

    def _ports(self, question: Question) -> Answer:
        state, counter = str(question["state_template"]), str(question["counter_template"])
        return {"ports": read_ports(str(question["folder"]), state_template=state, counter_template=counter)}

    def _places(self, question: Question) -> Answer:
        """Reports the NUMA node of each GPU, and the structure of the nodes."""
        sysfs = str(question["sysfs"])
        find = self._driver.certain_devices if question["by_speed"] else self._driver.devices
        devices = find(question["visible"])
        gpus = [(device.name, numa_node(sysfs, self._driver.pci_address(device))) for device in devices]
        nodes: list[object] = []
        for number in node_numbers(sysfs) if any(node >= 0 for _, node in gpus) else ():
            cpus = node_cpus(sysfs, number)
            nodes.append([number, cpus, *(structure(sysfs, cpus) if question["in_detail"] else ())])
        return {"gpus": gpus, "nodes": nodes}


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # The supervisor handles Ctrl-C; this process ends with its input.
    answers = os.dup(1)
    os.dup2(2, 1)  # Output of a library must not be taken for an answer.

    def say(answer: Answer) -> None:
        os.write(answers, json.dumps(answer).encode() + b"\n")

    serve(Program(Driver(), Clock(), say), 0)


def serve(program: Program, questions: int) -> None:
    """Serves until the end of the input."""
    rest = b""
    while True:
        poller = select.poll()
        poller.register(questions, select.POLLIN)
        handles = program.handles
        for handle in handles:
            poller.register(handle, select.POLLIN)
        readable = {number for number, _ in poller.poll(program.wait_ms())}
        if questions in readable:
            received = os.read(questions, READ_BYTES)
            if not received:
                return
            *lines, rest = (rest + received).split(b"\n")
            for line in lines:
                program.take(json.loads(line))
        program.look_again(readable - {questions})


if __name__ == "__main__":
    main()
    sys.exit(0)
