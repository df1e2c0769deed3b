"""Which sentence and which few numbers begin every form of the report?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from supervisor.core.facts import JobState
from supervisor.report import formatting
from supervisor.report.phases import TROUBLES
from supervisor.report.timeline.timeline import Incident, Life, Phase

_STATE = {
    JobState.SUCCEEDED: "succeeded after",
    JobState.FAILED: "failed after",
    JobState.STOPPED: "was stopped after",
}


def headline(life: Life) -> str:
    """Returns "succeeded after 38.8 s: 3 incidents, 3 of 5 restarts used"."""
    long = formatting.duration(life.whole_s)
    if life.state is JobState.RUNNING:
        state = f"has been running for {long}"
    else:
        state = f"{_STATE[life.state]} {long}" if life.has_ended else f"is {life.state.value} after {long}"
    found = len(life.incidents)
    told = formatting.plural(found, "incident") if found else "no incident"
    return f"{state}: {told}, {life.restarts_used} of {formatting.plural(life.max_restarts, 'restart')} used"


def figures(life: Life) -> tuple[tuple[str, str, str], ...]:
    """Returns the figures: name, value and meaning."""
    lost_s = sum(each.cost_s(life.until_ns) for each in life.incidents)
    longest = max((each.cost_s(life.until_ns) for each in life.incidents), default=0.0)
    kinds = Counter(TROUBLES[each.trouble] for each in life.incidents)
    told = ", ".join(f"{number} x {name}" for name, number in kinds.most_common()) or "none"
    nodes = len({run.node for run in life.runs}) or len(life.nodes)
    return (
        ("Ranks ran", formatting.percent(life.running_share), f"of {formatting.duration(life.whole_s)}"),
        ("Incidents", str(len(life.incidents)), told),
        (
            "Lost to them",
            formatting.duration(lost_s),
            f"the longest {formatting.duration(longest)}" if lost_s else "nothing",
        ),
        ("Restarts used", f"{life.restarts_used} of {life.max_restarts}", "of the budget of the whole job"),
        ("Ranks", f"{life.ranks:,}", f"on {formatting.plural(nodes, 'node')}"),
        *_silence(life),
        *_checkpoints(life),
    )


def _silence(life: Life) -> tuple[tuple[str, str, str], ...]:
    found = life.silence
    if found is None:
        return ()
    meaning = f"of a main thread, rank {found.rank} in cycle {found.cycle}; limit {formatting.duration(found.limit_s)}"
    return (("Longest silence", formatting.duration(found.longest_s), meaning),)


def _checkpoints(life: Life) -> Iterator[tuple[str, str, str]]:
    is_one = len(life.checkpoints) == 1
    for found in life.checkpoints:
        name = "" if is_one else f" ({found.section})"
        pause, interval = formatting.duration(found.pause_s), formatting.duration(found.interval_s)
        share = formatting.percent(found.pause_share)
        yield "Checkpoints", share, f"of the running time: {pause} each, every {interval} of training{name}"
        if found.best_interval_s is None or found.cost_share is None or found.best_cost_share is None:
            continue
        now, best = formatting.percent(found.cost_share), formatting.percent(found.best_cost_share)
        between = formatting.duration(found.between_faults_s or 0.0)
        alone = "" if is_one else ", if ranks resumed from these alone"
        yield (
            "Best interval",
            formatting.duration(found.best_interval_s),
            f"between checkpoints{name}, at a fault every {between} ({found.faults} so far): checkpoints and repeated "
            f"steps would cost {best} instead of {now}{alone} (Daly 2006)",
        )


def checkpoint_line(life: Life) -> str:
    """Returns the same of the section that took longest, in one line of a terminal; "" if nothing is known."""
    if not life.checkpoints:
        return ""
    found = life.checkpoints[0]
    interval = formatting.duration(found.interval_s)
    if found.best_interval_s is None:
        return f"checkpoints every {interval} take {formatting.percent(found.pause_share)} of the time"
    now, best = formatting.percent(found.cost_share), formatting.percent(found.best_cost_share)
    advised = formatting.duration(found.best_interval_s)
    return f"checkpoints every {interval} cost {now} with repeated steps; every {advised}: {best}"


BASIS = "what the script loads and repeats after a restart counts as running"


def spent(life: Life) -> tuple[tuple[Phase, float, float], ...]:
    """Returns phase, seconds and share, the largest first, without phases that took no time."""
    whole_s = life.whole_s
    found = [(phase, life.spent_s(phase)) for phase in Phase]
    chosen = [(phase, took_s, took_s / whole_s if whole_s else 0.0) for phase, took_s in found if took_s > 0]
    return tuple(sorted(chosen, key=lambda each: -each[1]))


def who(incident: Incident) -> str:
    """Returns the culprit: "rank 3 on node7", "ranks 0-7 on node[1-2]", "node7", or "" if unknown."""
    named = formatting.ranks(incident.culprits)
    places = incident.nodes or ((incident.node,) if incident.node else ())
    if named and places:
        return f"{named} on {formatting.nodes(places)}"
    return named or (f"node {incident.node}" if incident.node else "")
