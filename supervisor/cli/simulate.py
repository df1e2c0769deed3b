"""`holdfast simulate`: how would a job fare on a cluster whose nodes fail at a given rate?"""

from __future__ import annotations

import statistics
from argparse import SUPPRESS, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from supervisor.cli import output
from supervisor.cli.argument_values import UNITS_S, count, duration_s, share
from supervisor.cli.simulate_history import fields_of
from supervisor.errors import InvalidRequestError
from supervisor.programs.simulation.picture import picture
from supervisor.programs.simulation.scenario import Life, Scenario
from supervisor.programs.simulation.what_if import simulate

SCHEMA = "holdfast.simulation/v1"
NODES_MAX = 100_000
EVENTS_MAX = 20_000_000  # about: nodes times faults; beyond it, a run would take minutes
RUNS_MAX = 100
HEADS = ("", "MEDIAN", "LEAST", "MOST")

ABOUT = """\
Plays a job of many nodes over weeks in seconds, with the coordinator that runs real jobs: its rounds, placement,
spares and restart policy. Ranks, nodes and faults are modelled from the options below. Times are numbers with units:
85ms, 10s, 30m, 1h30m, 250d.

The default restart time is what docs/benchmarks.md measures (4 ranks with torch on one machine). All other defaults
are assumptions: set what you know of your cluster and your script.
"""
EXAMPLES = """\
examples:
  holdfast simulate --nodes 1000 --spares 8
  holdfast simulate --nodes 128 --mtbf 90d --checkpoint-every 10m --load 5m --spares 0
  holdfast simulate --nodes 1000 --spares 8 -o json
  holdfast simulate --nodes 1000 --spares 8 -o life.svg
  holdfast simulate --from-report job.json --checkpoint-every 5m
"""
_Kind = Callable[[str], object]


def add_arguments(parser: ArgumentParser) -> None:
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.description, parser.epilog = ABOUT, EXAMPLES

    def add(flag: str, name: str, kind: _Kind, metavar: str, text: str) -> None:
        default = getattr(_DEFAULTS, name)
        told = _shown(kind, default)
        parser.add_argument(
            flag, dest=name, type=kind, default=SUPPRESS, metavar=metavar, help=f"{text} (default: {told})"
        )

    parser.add_argument("--nodes", type=count, default=SUPPRESS, metavar="N", help="nodes that train")
    parser.add_argument(
        "--from-report", type=Path, metavar="F.json",
        help="take nodes, ranks, faults and checkpoints from a real job, as holdfast report JOB -o F.json writes them; "
        "other options replace what it says",
    )  # fmt: skip
    add("--spares", "spares", count, "N", "hot spares beside them")
    add("--ranks-per-node", "ranks_per_node", count, "N", "ranks on each node")
    add("--duration", "duration_s", duration_s, "TIME", "how long to simulate")
    add("--mtbf", "mtbf_s", duration_s, "TIME", "mean time between the faults of one node")
    add("--lost-share", "lost_share", share, "SHARE", "faults that take the node away")
    add("--hang-share", "hang_share", share, "SHARE", "faults that leave ranks silent; the rest ends a process")
    add("--repair", "repair_s", duration_s, "TIME", "time until a lost node is back")
    add("--checkpoint-every", "checkpoint_interval_s", duration_s, "TIME", "training between two checkpoints")
    add("--checkpoint-pause", "checkpoint_pause_s", duration_s, "TIME", "how long a checkpoint stops training")
    add("--load", "load_s", duration_s, "TIME", "time from the start of the ranks to their first step")
    add("--restart", "restart_s", duration_s, "TIME", "time from a detected fault to the start of new ranks")
    add("--hang-timeout", "hang_timeout_s", duration_s, "TIME", "silence that counts as a hang")
    add("--max-restarts", "max_restarts", count, "N", "budget of each job")
    add("--join-timeout", "join_timeout_s", duration_s, "TIME", "how long a job waits for missing nodes")
    add("--requeue", "requeue_s", duration_s, "TIME", "time from the end of a job to its next start")
    parser.add_argument("--runs", type=count, default=3, metavar="N", help="number of simulated runs (default: 3)")
    parser.add_argument("--seed", type=count, default=0, metavar="N", help="seed of the first run (default: 0)")
    parser.add_argument(
        "-o", "--output", default="table", metavar="table|json|F.svg", help="output format, or a picture's file"
    )
    parser.add_argument("--no-color", action="store_true", help="plain text; the variable NO_COLOR does the same")


def execute(arguments: Namespace) -> int:
    scenario = _scenario(arguments)
    _check(scenario, arguments)
    seeds = range(arguments.seed, arguments.seed + arguments.runs)
    lives = [simulate(scenario, seed=seed) for seed in seeds]
    if arguments.output == "json":
        output.write_json(_document(scenario, lives, seeds), one_line=False)
    elif arguments.output == "table":
        output.write(_text(scenario, lives, output.text_layout(arguments.no_color)))
    else:
        _draw(Path(arguments.output), scenario, lives, seeds)
    return 0


# --- what is asked -------------------------------------------------------------------------------------------------

_DEFAULTS = Scenario(1)


def _shown(kind: _Kind, value: float) -> str:
    if kind is duration_s:
        unit = next(unit for unit in ("d", "h", "m", "s", "ms") if value >= UNITS_S[unit] or unit == "ms")
        return f"{value / UNITS_S[unit]:g}{unit}"
    return f"{value:g}" if kind is share else str(value)


def _scenario(arguments: Namespace) -> Scenario:
    found = (
        {}
        if arguments.from_report is None
        else fields_of(_read(arguments.from_report), name=str(arguments.from_report))
    )
    found.update({name: getattr(arguments, name) for name in Scenario.__struct_fields__ if name in arguments})
    if "nodes" not in found:
        raise InvalidRequestError(
            "cannot simulate: the number of nodes is not given; give --nodes N or --from-report F.json"
        )
    return Scenario(**found)  # type: ignore[arg-type]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequestError(
            f"cannot read {path}: {error.strerror}; give the file of holdfast report JOB -o F.json"
        ) from error


def _check(scenario: Scenario, arguments: Namespace) -> None:
    def refuse(why: str, remedy: str) -> None:
        raise InvalidRequestError(f"cannot simulate: {why}; {remedy}")

    if not 1 <= scenario.nodes <= NODES_MAX or scenario.spares > NODES_MAX:
        refuse(f"{scenario.nodes} nodes and {scenario.spares} spares", f"give --nodes from 1 to {NODES_MAX}")
    if not scenario.ranks_per_node:
        refuse("a node without ranks trains nothing", "give --ranks-per-node 1 or more")
    if scenario.lost_share + scenario.hang_share > 1:
        refuse("--lost-share and --hang-share are more than all faults", "make their sum 1 or less")
    for flag, value_s in (
        ("--mtbf", scenario.mtbf_s),
        ("--duration", scenario.duration_s),
        ("--checkpoint-every", scenario.checkpoint_interval_s),
    ):
        if value_s < 1:
            refuse(f"{flag} is less than a second", f"give {flag} 1s or more")
    if not 1 <= arguments.runs <= RUNS_MAX:
        refuse(f"{arguments.runs} runs", f"give --runs from 1 to {RUNS_MAX}")
    nodes = scenario.nodes + scenario.spares
    faults = scenario.duration_s / scenario.mtbf_s * nodes
    if faults * nodes * arguments.runs > EVENTS_MAX:
        refuse(
            f"{arguments.runs} runs with about {faults:,.0f} faults on {nodes:,} nodes would take minutes or more",
            "shorten --duration, give a longer --mtbf or fewer --runs",
        )
    if arguments.output not in ("table", "json") and not arguments.output.endswith(".svg"):
        refuse(f"the output {arguments.output!r} is not known", "give -o table, -o json or a file that ends in .svg")


# --- what came of it -----------------------------------------------------------------------------------------------


def _numbers(scenario: Scenario, life: Life) -> dict[str, float]:
    """Returns the numbers by their names in JSON."""
    whole_s = scenario.duration_s
    return {
        "goodput": life.goodput,
        "redone_share": life.redone_s / whole_s,
        "checkpoint_share": life.checkpoint_s / whole_s,
        "unnoticed_share": life.unnoticed_s / whole_s,
        "starting_share": life.starting_s / whole_s,
        "waiting_share": life.waiting_s / whole_s,
        "requeued_share": life.requeued_s / whole_s,
        "faults": life.faults,
        "restarts": life.restarts,
        "restarts_used": life.units,
        "jobs": life.jobs,
        "spares_used": life.spares_used,
        "spares_needed": life.away_max,
    }


_LABELS = {
    "goodput": "steps that count (goodput)",
    "redone_share": "steps made again",
    "checkpoint_share": "checkpoints",
    "unnoticed_share": "faults not noticed yet",
    "starting_share": "ranks start and load",
    "waiting_share": "waiting for nodes, delays",
    "requeued_share": "no job: ended, queued again",
    "faults": "faults that struck the job",
    "restarts": "restarts",
    "restarts_used": "restarts used of the budget",
    "jobs": "jobs that the scheduler started",
    "spares_used": "nodes that stepped in",
    "spares_needed": "spares needed (nodes away at once)",
}


def _text(scenario: Scenario, lives: Sequence[Life], layout: output.TextLayout) -> str:
    numbers = [_numbers(scenario, life) for life in lives]
    rows: list[tuple[str, ...]] = []
    for name, label in _LABELS.items():
        values = [each[name] for each in numbers]
        shown = _percent if name == "goodput" or name.endswith("_share") else _whole
        rows.append((label, shown(statistics.median(values)), shown(min(values)), shown(max(values))))
    text = output.folded(_headline(scenario, len(lives)), layout, indent=0) + output.table(HEADS, rows, layout)
    end = next((life.last_end for life in lives if life.last_end), "")
    return text + (output.folded(f"a job ended: {end}", layout, indent=2, first_indent=0) if end else "")


def _percent(value: float) -> str:
    return f"{value:.2%}"


def _whole(value: float) -> str:
    return f"{value:g}"


def _headline(scenario: Scenario, runs: int) -> str:
    days = f"{scenario.duration_s / UNITS_S['d']:g} days"
    return (
        f"{output.plural(runs, 'run')} of {days}: {output.plural(scenario.nodes, 'node')} with "
        f"{output.plural(scenario.spares, 'spare')}, a fault per node every {output.duration(scenario.mtbf_s)}"
    )


def _document(scenario: Scenario, lives: Sequence[Life], seeds: Sequence[int]) -> dict[str, object]:
    numbers = [_numbers(scenario, life) for life in lives]
    runs: list[dict[str, object]] = [
        {"seed": seed, **each, "last_end": life.last_end}
        for seed, each, life in zip(seeds, numbers, lives, strict=True)
    ]
    return {
        "schema": SCHEMA,
        "question": msgspec.structs.asdict(scenario),
        "median": {name: statistics.median(each[name] for each in numbers) for name in _LABELS},
        "runs": runs,
    }


def _draw(path: Path, scenario: Scenario, lives: Sequence[Life], seeds: Sequence[int]) -> None:
    labelled = [(f"seed {seed}", life) for seed, life in zip(seeds, lives, strict=True)]
    try:
        path.write_text(picture(_headline(scenario, len(lives)), labelled, scenario.duration_s))
    except OSError as error:
        raise InvalidRequestError(f"cannot write {path}: {error.strerror}; give another file to -o") from error
    output.say(f"wrote {path}")
