"""Which commands are there, and which module answers each?"""

from __future__ import annotations

import msgspec


class Command(msgspec.Struct, frozen=True):
    """A module with `add_arguments(parser)` and `execute(arguments) -> int`.

    One that takes raw arguments has `execute_argv(argv: list[str]) -> int` instead.
    """

    name: str
    module: str
    summary: str
    takes_raw_arguments: bool = False


_ALL = (
    Command("run", "supervisor.cli.run", "launch and supervise a job; takes torchrun's flags", True),
    Command("daemon", "supervisor.cli.daemon", "the node's supervisor, in the foreground", True),
    Command("status", "supervisor.cli.status", "live jobs, or one job with its ranks"),
    Command("jobs", "supervisor.cli.jobs", "all jobs, finished ones too, newest first"),
    Command("nodes", "supervisor.cli.nodes", "nodes and their supervisors"),
    Command("events", "supervisor.cli.events", "what happened to a job, and why"),
    Command("logs", "supervisor.cli.logs", "output of a job's ranks"),
    Command("stacks", "supervisor.cli.stacks", "where each rank of a job stands now"),
    Command("stop", "supervisor.cli.stop", "end a job"),
    Command("restart", "supervisor.cli.restart", "start all workers of a job anew"),
    Command("cordon", "supervisor.cli.cordon", "let a node take no new jobs"),
    Command("uncordon", "supervisor.cli.uncordon", "let it take jobs again"),
)
# Started by programs, not typed by people: the in-process Wrapper starts this one where no supervisor runs.
ADOPT = Command("adopt", "supervisor.cli.adopt", "supervise ranks that were started by others", True)
COMMANDS = {command.name: command for command in _ALL}
LATER = {
    "report": "picture of a job's life",
    "top": "live view",
    "doctor": "check of this node",
    "healthd": "nvhcd-compatible health service",
    "simulate": "what-if at scale",
}


def usage() -> str:
    """What `holdfast --help` prints."""
    lines = [
        "usage: holdfast COMMAND [options]",
        "",
        "Keeps distributed PyTorch training running while its parts fail.",
        "",
    ]
    lines += [f"  {name:<10} {command.summary}" for name, command in COMMANDS.items()]
    lines += ["", "not supported yet:"]
    lines += [f"  {name:<10} {summary}" for name, summary in LATER.items()]
    lines += [
        "",
        "`holdfast COMMAND --help` explains one of them; `holdfast --version` tells the version.",
        "exit codes: 0 success, 1 job failed, 2 usage, 69 no supervisor, 75 try again, 78 bad configuration",
    ]
    return "\n".join(lines) + "\n"


def near_miss(name: str) -> str:
    """A hint for a mistyped command, "" if none is near."""
    import difflib

    near = difflib.get_close_matches(name, [*COMMANDS, *LATER], n=1)
    return f", did you mean {near[0]}" if near else ""
