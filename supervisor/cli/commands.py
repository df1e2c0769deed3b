"""Which commands are there, in which group does the overview show each, and which module answers it?"""

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


class Theme(msgspec.Struct, frozen=True):
    """Commands that belong together in the help."""

    title: str
    names: tuple[str, ...]


_ALL = (
    Command("run", "supervisor.cli.run", "start and supervise a job; takes torchrun's flags", True),
    Command("daemon", "supervisor.cli.daemon", "run the node's supervisor in the foreground", True),
    Command("status", "supervisor.cli.status", "show the live jobs, or one job with its ranks"),
    Command("top", "supervisor.cli.top", "live view of jobs, ranks and events on the terminal"),
    Command("jobs", "supervisor.cli.jobs", "list all jobs, finished ones too, newest first"),
    Command("nodes", "supervisor.cli.nodes", "list nodes and their supervisors"),
    Command("events", "supervisor.cli.events", "show what happened to a job, and why"),
    Command("logs", "supervisor.cli.logs", "show what the ranks of a job printed"),
    Command("stacks", "supervisor.cli.stacks", "show where each rank of a job stands now"),
    Command("report", "supervisor.cli.report", "show a job's life: faults, what they cost, why; text or one page"),
    Command("web", "supervisor.cli.web", "show all jobs live in a browser; read-only unless --control"),
    Command("stop", "supervisor.cli.stop", "stop a job"),
    Command("restart", "supervisor.cli.restart", "restart all workers of a job"),
    Command("cordon", "supervisor.cli.cordon", "stop a node from taking new jobs"),
    Command("uncordon", "supervisor.cli.uncordon", "let a node take jobs again"),
    Command("drain", "supervisor.cli.drain", "take no new jobs, and wait until the last one has ended"),
    Command("doctor", "supervisor.cli.doctor", "check this node, and a job's timeouts, before a job runs"),
    Command("healthd", "supervisor.cli.healthd", "serve node health checks, as nvhcd does"),
    Command("attribution", "supervisor.cli.attribution", "serve analyses of logs: why did a cycle end?"),
    Command("completion", "supervisor.cli.completion", "complete commands, flags and job ids in your shell"),
    Command("simulate", "supervisor.cli.simulate", "what-if: a job on your cluster, over weeks, in seconds"),
)
# Started by programs, not typed by people: the in-process Wrapper starts this one where no supervisor runs.
ADOPT = Command("adopt", "supervisor.cli.adopt", "supervise ranks that others have started", True)
# The service of a node starts this one as each of its users.
SERVE_USER = Command("serve-user", "supervisor.cli.serve_user", "supervise the jobs of one user of a service", True)
# The supervisor of a job starts this one, as a sender, a leaf or the root of its log server.
LOG_TIER = Command("log-tier", "supervisor.cli.log_tier", "one process of a job's log server", True)
COMMANDS = {command.name: command for command in _ALL}
THEMES = (
    Theme("Run a job", ("run", "daemon", "doctor", "simulate")),
    Theme("Look at jobs", ("status", "top", "jobs", "events", "logs", "stacks", "report", "web")),
    Theme("Act on a job", ("stop", "restart")),
    Theme("Nodes", ("nodes", "cordon", "uncordon", "drain", "healthd", "attribution")),
    Theme("Your shell", ("completion",)),
)
EXAMPLES = """\
examples:
  holdfast run --nproc-per-node 4 --max-restarts 3 train.py
  holdfast status
  holdfast events JOB --tail 20
  holdfast report JOB -o report.html
"""
LATER: dict[str, str] = {}


def usage(*, everything: bool = False) -> str:
    """Returns what `holdfast --help` prints; with `everything`, also the commands that are not supported yet."""
    lines = [
        "usage: holdfast COMMAND [options]",
        "",
        "Keeps distributed PyTorch training running while its parts fail.",
        "",
    ]
    for theme in THEMES:
        lines += [f"{theme.title}:", *(f"  {name:<11} {COMMANDS[name].summary}" for name in theme.names), ""]
    lines += EXAMPLES.splitlines()
    if everything and LATER:
        lines += ["", "Not supported yet:"]
        lines += [f"  {name:<11} {summary}" for name, summary in LATER.items()]
    lines += [
        "",
        "holdfast COMMAND --help explains a command, holdfast --version shows the version.",
        "",
        "Exit codes: 0 success, 1 job failed, 2 usage error, 69 no supervisor,",
        "75 try again, 78 bad configuration, 93 do not restart the job, 128+n ended by",
        "signal n.",
    ]
    return "\n".join(lines) + "\n"


def near_miss(name: str) -> str:
    """Returns a hint for a mistyped command, "" if no command is similar."""
    import difflib

    near = difflib.get_close_matches(name, [*COMMANDS, *LATER], n=1)
    return f", did you mean {near[0]}" if near else ""
