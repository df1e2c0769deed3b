"""Which rows come first on the page, in words for people, and why is a target not met?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.benchmarks.rows import OURS, Row, Statistic, judge, show

SAMPLES_MIN = 2  # of ours: one sample says nothing about spread
# The heads of their columns, and which subjects they show: the first that was measured.
PEERS = (
    ("torchrun, tuned where it can be", ("torchrun_tuned", "torchrun")),
    ("nvidia-resiliency-ext", ("reference",)),
)

# What people ask first, by the row that answers it.
HEADLINES: Mapping[str, str] = {
    "cold_start_torch": "from the command to the first barrier of 4 ranks that import torch",
    "restart_torch": "a rank of 4 is killed: until the new ranks are at their barrier, torch imported",
    "hang_restart": "a rank falls silent: from its limit to the first line of the last new rank",
    "inprocess_exception_4": "restart inside the process, after an exception on a rank of 4",
    "inprocess_replaced": "restart inside the process, a killed rank of 4 replaced",
    "two_nodes_lost_in_all": "a node loses its power: until a spare and the others are at their barrier",
    "heartbeat_paced": "a heartbeat, at 100 a second",
    "memory": "memory of what runs beside 8 ranks",
}

# Only what was measured or is in the code; what nobody has looked into says so.
SHORTFALLS: Mapping[str, str] = {
    "restart": "the target was set against newer source of the reference, which takes longer; the absolute one is met",
    "cold_start_torch": "most of it is the import of torch, which both pay for: without torch, the start takes 1/6 of "
    "torchrun's",
    "restart_torch": "the run of median time took 16 ms to notice the exit, 36 to end four processes (the kernel takes "
    "back torch's memory), 18 to fork four and start a store, 28 for gloo's rendezvous, and 1 for all decisions",
    "restart_package": "the same",
    "restart_lazy_warm": "the workers of the first cycle imported torch themselves, and the kernel takes back the "
    "memory of each: 33 ms until the end of the killed one is noticed and 94 for the others, where workers that got "
    "torch by the fork take 13 and 43 (n 10 and 5, in turn). All else is the same",
    "inprocess_hard": "after SIGKILL, the kernel needs 0.012 s of that to take back the memory of a process with torch "
    "(0.019 before what torch loads lay in huge pages; n 36 each, in turn)",
    "useful_time_kills": "of the 12.6 s that the median run loses, 3.6 pass until the first step, which is mostly the "
    "import of torch, 4.2 in 14 returns (0.30 s each, with the step that the fault cut off), 3.6 in steps since the "
    "last checkpoint, which are made again, and 1.2 between steps. torchrun's 14 returns take 101 s",
    "useful_time_hangs": "of the 30.2 s that the median run loses, 14 are the limit of 2 s after each of 7 silences, "
    "before which none counts. 7.0 pass in the rest of 14 returns (0.50 s each), 4.6 until the first step, 3.5 in "
    "steps that are made again, and 1.1 between steps",
    "useful_time_wrapped_kills": "of the 11.8 s that the median run loses, 4.5 pass until the first step, which is "
    "mostly the import of torch, 3.7 in steps since the last checkpoint, which are made again, 2.2 in 13 returns "
    "(0.17 s each), and 1.5 between steps",
    "useful_time_wrapped_hangs": "of the 23.0 s that the median run loses, 14 are the limit of 2 s after each of 7 "
    "silences, before which none counts. 4.0 pass until the first step, 2.1 in steps that are made again, 1.6 in the "
    "rest of 14 returns (0.12 s each), and 1.2 between steps",
    "log_flood_cpu": "at 0.8 GB/s, one process reads what all ranks print, orders it by line and writes one file. The "
    "ranks take what is left of the two cores, and lines beyond that are dropped and counted, so that no rank waits. "
    "Without this file, `--redirects 3` lets each rank write its own, which costs nothing beside the ranks",
    "nodes_told_10240": "one core of the leader encrypts and sends every message, and the nodes are played on the same "
    "two cores; with more than 1,024 nodes, relays share the work by default",
    "nodes_warm_10240": "the same; by relays, as by default, it takes 1.29 s",
    "nodes_memory_10240": "OpenSSL keeps 19 KiB for each connection, and all nodes connect to the leader here. By "
    "relays, as by default, it has 256 connections ([decision 31](decisions/0031-tls-by-the-token.md))",
    "nodes_cold_tls_10240": "one run. OpenSSL alone needs 15.1 s of it on these two cores; relays are the remedy",
    "nodes_cold_relays_10240": "one run. It is the leader's CPU (4.75 s) that takes the time. By samples of its stack "
    "in an earlier run, 24 % goes to what comes by relays, 15 % to accepting the other nodes and sending them on, 12 % "
    "to handshakes, 13 % to sending, 6 % to decoding; no single function takes more than 12 %",
    "nodes_cpu_10240": "one run. Each node sends a heartbeat a second over TLS, whose state has left the caches "
    "([decision 31](decisions/0031-tls-by-the-token.md)). By samples of the leader's stack, half of what one costs is "
    "the answer, and most of that the system call which sends it",
    "nodes_cpu_relays_10240": "one run. By samples of the leader's stack, some 60 % of it asks 5,000 times a second "
    "whether a node is silent (each of them every 2 s), and 30 % takes the relays' 256 heartbeats a second and answers "
    "them",
    "heartbeat_paced": "after 10 ms of pause the caches are cold; in a tight loop it takes 0.38 µs. Of the cold time, "
    "timed in turn on a busy machine (n 400), a function that does nothing takes 0.24, and one that only reads the "
    "clock and stores one word 0.52 to 0.57: the target is 0.43, below that floor. A call without the client's own "
    "frame takes 0.9, but would hide a method that a subclass replaces",
    "heartbeat_p99": "the same",
    "section_paced": "the same, for two calls: together 1.9 times as long as a heartbeat. Two functions that only read "
    "the clock and store their words take 0.76, and the target is 0.85; the rest is the longest times, the steps and "
    "the tally, which `report` and the calculated limits need",
    "wrapper_memory": "half of the reference's. To load it after torch takes 4.8 MiB: 1.6 for protobuf and "
    "3.2 for some hundred modules",
}


def headlines(rows: Sequence[Row]) -> str:
    """Returns the table of what people ask first, without rows of a single sample."""
    by_key = {row.key: row for row in rows}
    shown = [(by_key[key], text) for key, text in HEADLINES.items() if key in by_key]
    shown = [(row, text) for row, text in shown if len(row.good(OURS)) >= SAMPLES_MIN]
    if not shown:
        return ""
    lines = [["what", *(name for name, _ in PEERS), "Holdfast"], ["---"] * (len(PEERS) + 2)]
    lines += [[text, *(_figure(row, *peers) for _, peers in PEERS), f"**{_figure(row, OURS)}**"] for row, text in shown]
    return "## In short\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def shortfalls(rows: Sequence[Row], labels: Mapping[str, str]) -> str:
    """Returns the table of the targets that are not met, each with its reason."""
    lines = [
        f"| {row.title} | {_figure(row, OURS)} | {wanted} | {SHORTFALLS.get(row.key, 'not looked into')} |"
        for row in rows
        if (wanted := ", ".join(found.wanted for found in judge(row, labels) if found.met is False))
    ]
    if not lines:
        return ""
    return "\n".join(
        ["## Targets that are not met", "", "| what | Holdfast | target | why |", "|---|---|---|---|", *lines, ""]
    )


def _figure(row: Row, *subjects: str) -> str:
    """Returns what the first of the subjects with a sample reached."""
    for subject in subjects:
        figure = row.figure(subject)
        if figure is not None:
            name = "" if row.statistic is Statistic.MEDIAN else f" ({row.statistic})"
            return show(figure, row.unit) + name
    return "-"
