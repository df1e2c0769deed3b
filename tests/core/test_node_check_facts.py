"""Is a node fit, by the findings of its checks?"""

from supervisor.core.node_check_facts import Health, HealthFinding, unfit_sentence


def test_one_unhealthy_finding_is_enough_and_one_that_could_not_be_told_is_none() -> None:
    healthy, skipped = HealthFinding("nvhcd", Health.HEALTHY), HealthFinding("gpu", Health.SKIPPED, "there is no GPU")
    assert unfit_sentence("n1", (healthy, skipped)) == ""
    ill = (
        HealthFinding("nvhcd", Health.UNHEALTHY, "nvhcd counts 1 failed checks"),
        HealthFinding("nic", Health.UNHEALTHY, "x"),
    )
    assert unfit_sentence("n1", (healthy, *ill)) == "node n1 is unhealthy: nvhcd counts 1 failed checks; x"
