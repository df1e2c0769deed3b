"""What does an answer of nvhcd mean under each policy? The tests cover the whole matrix."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.node_check_facts import Health, HealthCheckPolicy
from supervisor.core.nvhcd_verdict import Answer, NoReply, Reply, Unusable, judge

HEALTHY, UNHEALTHY, SKIPPED = Health.HEALTHY, Health.UNHEALTHY, Health.SKIPPED


def said(output: str, *, success: bool = True) -> Reply:
    return Reply(success, output)


@pytest.mark.parametrize(
    ("answer", "documented", "tolerant", "strict"),
    [
        (NoReply("there is no socket"), SKIPPED, SKIPPED, UNHEALTHY),
        (Unusable("it is larger than 1 MiB"), UNHEALTHY, SKIPPED, UNHEALTHY),
        (said('{"fail_count": 0}'), HEALTHY, HEALTHY, HEALTHY),
        (said('{"fail_count": 0.0}'), HEALTHY, HEALTHY, HEALTHY),
        (said('{"fail_count": 1}'), UNHEALTHY, UNHEALTHY, UNHEALTHY),
        (said('{"fail_count": 1.5}'), UNHEALTHY, UNHEALTHY, UNHEALTHY),
        (said('{"fail_count": -1}'), UNHEALTHY, HEALTHY, UNHEALTHY),
        (said('{"fail_count": "0"}'), UNHEALTHY, SKIPPED, UNHEALTHY),
        (said('{"fail_count": null}'), UNHEALTHY, SKIPPED, UNHEALTHY),
        (said('{"fail_count": true}'), UNHEALTHY, SKIPPED, UNHEALTHY),
        (said("{}"), UNHEALTHY, SKIPPED, UNHEALTHY),
        (said("[]"), UNHEALTHY, SKIPPED, UNHEALTHY),
        (said("0"), UNHEALTHY, SKIPPED, UNHEALTHY),
        (said(""), UNHEALTHY, SKIPPED, UNHEALTHY),
        (said('warning: slow\n{"fail_count": 0}'), UNHEALTHY, HEALTHY, UNHEALTHY),
        (said('warning: slow\n{"fail_count": 2}\n'), UNHEALTHY, UNHEALTHY, UNHEALTHY),
        (said('{"fail_count": 0} trailing'), UNHEALTHY, SKIPPED, UNHEALTHY),
        (said('{"fail_count": 0}', success=False), UNHEALTHY, UNHEALTHY, UNHEALTHY),
        (said("", success=False), UNHEALTHY, UNHEALTHY, UNHEALTHY),
    ],
)
def test_the_matrix(answer: Answer, documented: Health, tolerant: Health, strict: Health) -> None:
    found = {policy: judge(answer, policy).health for policy in HealthCheckPolicy}
    assert found == {
        HealthCheckPolicy.DOCUMENTED: documented,
        HealthCheckPolicy.TOLERANT: tolerant,
        HealthCheckPolicy.STRICT: strict,
    }


def test_the_reason_names_the_failed_checks_and_what_was_said() -> None:
    names = ["gpu", "nic", "pcie", "dimm", "fan", "psu", "disk"]
    counted = judge(said(json.dumps({"fail_count": 7, "failed_checks": names})), HealthCheckPolicy.DOCUMENTED)
    assert counted.reason == "nvhcd counts 7 failed checks (gpu, nic, pcie, dimm, fan and 2 more)"
    reply = Reply(success=False, output='{"failed_checks": ["bcm"]}', exit_code=3, error="Xid 79\non GPU 2")
    assert judge(reply, HealthCheckPolicy.DOCUMENTED).reason == (
        "nvhcd says that the node is unhealthy (bcm): Xid 79 on GPU 2, exit code 3"
    )
    noisy = judge(said("WARN clock\n" + "x" * 500), HealthCheckPolicy.DOCUMENTED)
    assert noisy.reason.startswith("the answer of nvhcd can't be used: its output is not a JSON object: WARN clock xxx")
    assert noisy.reason.endswith("…")
    assert judge(said('{"fail_count": null}'), HealthCheckPolicy.DOCUMENTED).reason.endswith("is not a number: null")


@pytest.mark.parametrize("digits", [7, 400, 5000])
def test_a_count_of_any_size_is_judged(digits: int) -> None:
    output = '{"fail_count": ' + "9" * digits + "}"
    for policy in HealthCheckPolicy:
        finding = judge(said(output), policy)
        assert finding.health is not HEALTHY
        assert len(finding.reason) < 400


def test_what_it_says_does_not_steer_a_terminal() -> None:
    finding = judge(said('{"fail_count": 1, "failed_checks": ["\\u001b[31mgpu\\u0000"]}'), HealthCheckPolicy.DOCUMENTED)
    assert finding.reason == r"nvhcd counts 1 failed checks (\x1b[31mgpu\x00)"


@given(st.booleans(), st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_no_output_is_taken_for_healthy_without_a_count_of_zero(success: bool, output: str) -> None:
    for policy in HealthCheckPolicy:
        finding = judge(Reply(success, output), policy)
        assert finding.health is not HEALTHY
        assert finding.reason
