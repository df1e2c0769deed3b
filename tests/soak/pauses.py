"""Is healthy training with pauses below the limit of its main threads ever taken for a hang?"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import defaultdict
from pathlib import Path

from tests.e2e.hangs import at_unix_s, told
from tests.e2e.launch import Launch, assert_nothing_left, launched

SCRIPT = Path(__file__).parent / "scripts" / "pausing_training.py"
RANKS = 2
LONGEST = 0.8  # pause, as a share of the limit: the rest is for the work beside it, on a busy machine
START_AND_END_S = 300.0


def main(arguments: argparse.Namespace) -> list[str]:
    """Prints what paused, and for how long; returns failures."""
    seed: int = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {seed}, limit {arguments.limit:g} s", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as folder,
        launched(
            Path(folder), "--nproc-per-node", str(RANKS), "--ft-auto-heartbeat-timeout", f"{arguments.limit:g}",
            str(SCRIPT), f"{arguments.seconds:g}", f"{LONGEST * arguments.limit:g}", str(seed),
        ) as launch,
    ):  # fmt: skip
        try:
            code = launch.wait(arguments.seconds + START_AND_END_S)
        except AssertionError as error:
            return [str(error)]
        _print_pauses(launch)
        print(launch.stdout_text(), end="")
        wrong = [] if code == 0 else [f"the job ended with {code}: {launch.explained()}"]
        wrong += [f"{event['reason']}; {_silence(launch, at_unix_s(event))}" for event in told(launch, "hang_detected")]
        assert_nothing_left(launch)
    return wrong


def _print_pauses(launch: Launch) -> None:
    took_s: defaultdict[str, list[float]] = defaultdict(list)
    for line in launch.traced("pause"):
        took_s[str(line["kind"])].append(float(str(line["took_s"])))
    for kind, each_s in sorted(took_s.items()):
        print(f"{kind}: {len(each_s)} pauses, longest {max(each_s):.1f} s, {sum(each_s):.0f} s in all")


def _silence(launch: Launch, at_unix_s: float) -> str:
    """Returns which pause lasted at that moment: on a busy machine, one may really be longer than the limit."""
    begun = [line for line in launch.traced("pause begun") if float(str(line["at_unix"])) < at_unix_s]
    ended = {(line["rank"], line["step"]) for line in launch.traced("pause") if float(str(line["at_unix"])) < at_unix_s}
    lasting = [line for line in begun if (line["rank"], line["step"]) not in ended]
    texts = [
        f"rank {line['rank']}: {line['kind']} for {at_unix_s - float(str(line['at_unix'])):.1f} s" for line in lasting
    ]
    return ", ".join(texts) or "no rank paused"
