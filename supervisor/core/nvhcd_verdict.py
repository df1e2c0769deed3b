"""What does an answer of nvhcd say about the node: healthy, unhealthy, or nothing?

By the documented contract, a healthy node has success true and a fail_count of 0 in the JSON of the output. Some
services write log lines into that output, which has evicted whole segments of healthy nodes elsewhere. So a policy
says how strictly the output is read.
"""

from __future__ import annotations

from typing import assert_never, cast

import msgspec

from supervisor.core.node_check_facts import Health, HealthCheckPolicy, HealthFinding, one_line

CHECK = "nvhcd"
SHOWN_CHARACTERS_MAX = 200
NAMED_MAX = 5  # failed checks
COUNT_SHOWN_MAX = 1_000_000


class Reply(msgspec.Struct, frozen=True):
    success: bool
    output: str
    exit_code: int = 0
    error: str = ""


class Unusable(msgspec.Struct, frozen=True):
    """Something came back that is not a reply; `why` ends the sentence "its answer can't be used: …"."""

    why: str


class NoReply(msgspec.Struct, frozen=True):
    """Nothing came back; `why` ends the sentence "it can't be asked: …"."""

    why: str


Answer = Reply | Unusable | NoReply


def judge(answer: Answer, policy: HealthCheckPolicy, *, took_s: float = 0.0) -> HealthFinding:
    match answer:
        case NoReply(why):
            is_unhealthy = policy is HealthCheckPolicy.STRICT
            reason = f"nvhcd can't be asked: {why}"
        case Unusable(why):
            is_unhealthy = policy is not HealthCheckPolicy.TOLERANT
            reason = f"the answer of nvhcd can't be used: {why}"
        case Reply(success=False):
            is_unhealthy, reason = True, _failure(answer)
        case Reply():
            return _judge_output(answer, policy, took_s)
        case _:
            assert_never(answer)
    return HealthFinding(CHECK, Health.UNHEALTHY if is_unhealthy else Health.SKIPPED, reason, took_s)


def _judge_output(reply: Reply, policy: HealthCheckPolicy, took_s: float) -> HealthFinding:
    report = _report(reply.output, last_line=policy is HealthCheckPolicy.TOLERANT)
    if report is None or "fail_count" not in report:
        why = "its output is not a JSON object" if report is None else "its output has no fail_count"
        return judge(Unusable(f"{why}: {_shown(reply.output)}"), policy, took_s=took_s)
    count = report["fail_count"]
    if isinstance(count, bool) or not isinstance(count, int | float):
        why = f"its fail_count is not a number: {_shown(_plain(count))}"
        return judge(Unusable(why), policy, took_s=took_s)
    failed = count > 0 if policy is HealthCheckPolicy.TOLERANT else count != 0
    if not failed:
        return HealthFinding(CHECK, Health.HEALTHY, "", took_s)
    shown = f"{count:g}" if abs(count) < COUNT_SHOWN_MAX else f"more than {COUNT_SHOWN_MAX:g}"
    return HealthFinding(CHECK, Health.UNHEALTHY, f"nvhcd counts {shown} failed checks{_named(report)}", took_s)


def _failure(reply: Reply) -> str:
    report = _report(reply.output, last_line=True) or {}
    said = [_shown(reply.error)] if reply.error.strip() else []
    if reply.exit_code:
        said.append(f"exit code {reply.exit_code}")
    text = f"nvhcd says that the node is unhealthy{_named(report)}"
    return f"{text}: {', '.join(said)}" if said else text


def _report(output: str, *, last_line: bool) -> dict[str, object] | None:
    """Returns the JSON object in the output, or in its last line if the whole is not JSON."""
    lines = output.strip().splitlines()
    for text in (output, *(lines[-1:] if last_line else ())):
        try:
            found: object = msgspec.json.decode(text.encode(errors="replace"))
        except (msgspec.DecodeError, RecursionError):
            continue
        if isinstance(found, dict):
            return cast("dict[str, object]", found)
    return None


def _named(report: dict[str, object]) -> str:
    failed = report.get("failed_checks")
    if not isinstance(failed, list):
        return ""
    names = [_shown(_plain(each)) for each in cast("list[object]", failed)]
    if not names:
        return ""
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f" ({', '.join(names[:NAMED_MAX])}{more})"


def _plain(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _shown(text: str) -> str:
    return one_line(text, SHOWN_CHARACTERS_MAX)
