"""Are the settings of a spawner read that a supervisor of another version has written?"""

from __future__ import annotations

import json

from holdfast_wire.spawner_settings import SpawnerSettings, settings_from_json


def test_a_setting_of_the_next_version_is_passed_over() -> None:
    settings = SpawnerSettings("job", ("train.py",))
    body = json.loads(settings.to_json()) | {"of_the_next_version": 1}
    assert settings_from_json(json.dumps(body)) == settings
