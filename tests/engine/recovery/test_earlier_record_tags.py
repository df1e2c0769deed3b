"""Is each name that version 0.1 wrote a tag of today?"""

from __future__ import annotations

import json
from pathlib import Path

from supervisor.engine.recovery.earlier_record_tags import EARLIER
from supervisor.engine.recovery.record_tags import KINDS


def test_each_name_that_version_0_1_wrote_is_a_tag_of_today() -> None:
    kept = Path(__file__).with_name("kept") / "before-tags.jsonl"
    assert set(EARLIER) == {json.loads(line)["="] for line in kept.read_text().splitlines()}
    assert set(EARLIER.values()) <= set(KINDS)
