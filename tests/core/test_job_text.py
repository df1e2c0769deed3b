"""Are the sentences about requested and allowed values right?"""

from supervisor.core.facts import HangLimits
from supervisor.core.job_text import control_sentence, limits_sentence


def test_control() -> None:
    assert control_sentence("exclude_this_node", "", rank=3, node="n1") == "rank 3 asked to exclude node n1"
    assert (
        control_sentence("dance", "now", rank=3, node="n1") == "rank 3 asked for 'dance', which has no effect here: now"
    )


def test_limits() -> None:
    limits = HangLimits(60.0, 12.5, (("step", 3.0), ("save", None)))
    assert limits_sentence(limits) == (
        "first heartbeat 60.0 s, heartbeat 12.5 s, section 'step' 3.0 s, section 'save' off, outside of sections off"
    )
