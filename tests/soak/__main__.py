"""`python -m tests.soak NAME`: does it endure? --help lists the names. Exit code 1: no."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from tests.soak import (
    chaos,
    cluster,
    elected_cluster,
    fuzz,
    hostile_user,
    lowest,
    others,
    packages,
    pauses,
    restarts,
    rule_removal,
    seeds,
    supervisor_kills,
)


def _add_time_and_seed(parser: argparse.ArgumentParser, seconds: float, repeated: str) -> None:
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--seed", type=int, help=f"of an earlier run, to repeat {repeated}")


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    soaks = parser.add_subparsers(dest="soak", required=True)
    again = soaks.add_parser("restarts", help="one job that restarts again and again")
    again.add_argument("--restarts", type=int, default=2000)
    again.add_argument("--ranks", type=int, default=2)
    again.add_argument(
        "--watchers", type=int, default=2, help="0: none; 1: holdfast run; more: and holdfast logs --follow"
    )
    again.add_argument("--seconds", type=float, default=600.0, help="it ends after so long, done or not")
    again.set_defaults(main=restarts.main)
    storm = soaks.add_parser("chaos", help="five jobs, whose parts are killed, stopped, filled up and left unanswered")
    _add_time_and_seed(storm, 600.0, "its choices")
    storm.set_defaults(main=chaos.main)
    strange = soaks.add_parser("others", help="scripts in other people's styles, killed and stopped at random")
    _add_time_and_seed(strange, 600.0, "its first job")
    strange.set_defaults(main=others.main)
    torn = soaks.add_parser("cluster", help="a job on nodes with networks of their own, a fault every 15 s")
    _add_time_and_seed(torn, 1800.0, "its faults")
    torn.add_argument("--nodes", type=int, default=8)
    torn.set_defaults(main=cluster.main)
    elects = soaks.add_parser("elected-cluster", help="the same with elected leaders, and faults of etcd's members")
    _add_time_and_seed(elects, 1800.0, "its faults")
    elects.add_argument("--nodes", type=int, default=8)
    elects.set_defaults(main=elected_cluster.main)
    killed = soaks.add_parser("supervisor-kills", help="jobs whose supervisor is killed at random moments")
    killed.add_argument("--kills", type=int, default=1000)
    killed.add_argument("--cycles", type=int, default=6, help="of each job; all but the last fail")
    killed.add_argument("--seconds", type=float, default=3600.0, help="it ends after so long, done or not")
    killed.add_argument("--seed", type=int, help="of an earlier run, to repeat its choices")
    killed.add_argument("--nodes", type=int, default=1, help="more: each has a supervisor, and one of them is killed")
    killed.add_argument("--etcd", action="store_true", help="with --nodes: the nodes elect their leader")
    killed.set_defaults(main=supervisor_kills.main)
    hostile = soaks.add_parser("hostile-user", help="five users' jobs beside a user who attacks all that she can reach")
    _add_time_and_seed(hostile, 600.0, "its choices")
    hostile.add_argument("--attack", action="append", default=[], metavar="NAME", help="only this one, or these")
    hostile.set_defaults(main=hostile_user.main)
    paused = soaks.add_parser("pauses", help="healthy training with long pauses, none of them a hang")
    _add_time_and_seed(paused, 3600.0, "its pauses")
    paused.add_argument("--limit", type=float, default=30.0, help="--ft-auto-heartbeat-timeout; pauses are shorter")
    paused.set_defaults(main=pauses.main)
    fuzzed = soaks.add_parser("fuzz", help="malformed records of every kind that a stranger can write")
    fuzzed.add_argument("--inputs", type=int, default=1_000_000)
    fuzzed.add_argument("--seed", type=int, help="of an earlier run, to repeat its inputs")
    fuzzed.add_argument("--only", action="append", default=[], metavar="NAME", help="only this reader, or these")
    fuzzed.set_defaults(main=fuzz.main)
    _add_seeds(soaks.add_parser("seeds", help="seeds of the simulator that were never played; it keeps the count"))
    _add_packages(soaks.add_parser("packages", help="wheel and Debian package on every Python and Debian there is"))
    _add_lowest(soaks.add_parser("lowest", help="the suite with the lowest versions that pyproject.toml allows"))
    taken = soaks.add_parser(
        "rules", help="does a test fail if a rule of the tables of faults and security is taken away?"
    )
    taken.add_argument("--no-control", action="store_true", help="do not run the tests without a change first")
    taken.add_argument("rows", nargs="*", metavar="ROW", help="only rules of these rows: A1, D12, S5")
    taken.set_defaults(main=rule_removal.main)
    return parser.parse_args()


def _add_seeds(played: argparse.ArgumentParser) -> None:
    played.add_argument("--seconds", type=float, default=3600.0)
    played.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    played.add_argument("--mix", choices=seeds.MIXES, default="plain")
    played.set_defaults(main=seeds.main)


def _add_packages(packed: argparse.ArgumentParser) -> None:
    packed.add_argument("--roots", default="~/.cache/holdfast-tests/roots", help="where bare Debians are kept")
    packed.add_argument(
        "--torch", action="append", default=[], metavar="VERSION", help="also train with it, on each Python (5 GB each)"
    )
    packed.set_defaults(main=packages.main)


def _add_lowest(low: argparse.ArgumentParser) -> None:
    low.add_argument("--also", action="append", default=[], metavar="REQUIREMENT", help="installed, too")
    low.add_argument("tests", nargs="*", default=["tests"], help="only these tests")
    low.set_defaults(main=lowest.main)


def _end(number: int, frame: object) -> None:
    """Leaves nothing behind at a signal, either."""
    sys.exit(128 + number)


def main() -> int:
    arguments = _parsed()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # no node has it, and it makes each start compile again
    signal.signal(signal.SIGTERM, _end)
    wrong: list[str] = arguments.main(arguments)
    for each in wrong:
        print(f"WRONG: {each}")
    print("nothing wrong" if not wrong else f"{len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
