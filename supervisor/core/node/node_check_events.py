"""What do people read about the checks of a node, and how often about a check that has no result?"""

from __future__ import annotations

import msgspec

from supervisor.core.facts import JobEvent
from supervisor.core.node.node_messages import Publish
from supervisor.core.node_check_facts import Health, HealthFinding, unfit_sentence


class NodeCheckEvents(msgspec.Struct, frozen=True):
    """Says what has been found on one node, in one cycle of one job."""

    job_id: str
    node: str
    cycle: int

    def round(
        self, findings: tuple[HealthFinding, ...], told: tuple[tuple[str, Health], ...]
    ) -> tuple[list[Publish], tuple[tuple[str, Health], ...]]:
        """Reports a round. A check without a result is reported once, and again only after a result in between."""
        text = ", ".join(f"{each.name}: {each.health}" for each in findings) or "there is nothing to check"
        said = [self._say("node_checked", f"node {self.node} was checked: {text}", findings)]
        silent = [each for each in findings if each.health in _SAID and each.reason]
        said += [self._silence(each) for each in silent if (each.name, each.health) not in told]
        if unfit := unfit_sentence(self.node, findings):
            said.append(self._say("node_unhealthy", unfit))
        answering = {each.name for each in findings if each.health not in _SAID}
        kept = [pair for pair in told if pair[0] not in answering]
        kept += [pair for each in silent if (pair := (each.name, each.health)) not in kept]
        return said, tuple(kept)

    def changes(self, before: tuple[HealthFinding, ...], after: tuple[HealthFinding, ...]) -> tuple[Publish, ...]:
        """Reports changes found by a check between two cycles, or by one that is no longer awaited.

        A new subject that is healthy counts as a change only if a fault has disappeared together with its name.
        """
        known = {each.name: each.health for each in before}
        names = {each.name for each in after}
        is_recovery = any(each.health is not Health.HEALTHY and each.name not in names for each in before)
        return tuple(
            self._say(
                "node_check_changed",
                f"a check of node {self.node} changes: {each.name} is {each.health}"
                + (f": {each.reason}" if each.reason else ""),
                (each,),
            )
            for each in after
            if each.health is not known.get(each.name, None if is_recovery else Health.HEALTHY)
        )

    def _silence(self, finding: HealthFinding) -> Publish:
        kind, verb = _SAID[finding.health]
        return self._say(kind, f"a check of node {self.node} {verb}: {finding.reason}")

    def _say(self, kind: str, text: str, findings: tuple[HealthFinding, ...] = ()) -> Publish:
        details = tuple((each.name, _detail(each)) for each in findings)
        return Publish(self.job_id, JobEvent(kind, text, self.cycle, details=details))


_SAID = {
    Health.SKIPPED: ("node_check_skipped", "is skipped"),
    Health.UNANSWERED: ("node_check_unanswered", "has no answer, which excludes no node"),
}


def _detail(finding: HealthFinding) -> str:
    text = f"{finding.health} in {finding.took_s:.3f} s"
    return f"{text}: {finding.reason}" if finding.reason else text
