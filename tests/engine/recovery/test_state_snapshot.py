"""What does a supervisor do with messages in a kept state that only another version knows?"""

from __future__ import annotations

import json

import msgspec

from supervisor.engine.recovery import record_text
from supervisor.engine.recovery.state_snapshot import StateSnapshot
from tests.engine.recovery.record_samples import sample


def test_messages_that_nobody_knows_are_left_out_of_a_state() -> None:
    kept = sample(StateSnapshot)
    assert isinstance(kept, StateSnapshot)
    written = json.loads(record_text.write(kept))
    written["waiting"].insert(0, {"=": "node.of_a_later_version"})
    written["unfinished"] = [{"=": "node.of_a_later_version"}]
    assert record_text.read(json.dumps(written)) == msgspec.structs.replace(kept, unfinished=())
