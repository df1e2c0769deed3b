"""Do a job's settings of attribution match each other, and which of them have no effect?"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from supervisor.config.attribution_settings import KEY_VARIABLE, NO_MODEL, Attribution, read_key
from supervisor.config.value_origin import Given

ENDPOINT_NAME = "ft_attribution_endpoint"
MODEL_NAME = "ft_attribution_llm_model"
STOP_ACTION_NAME = "ft_attribution_stop_action"


def checked(
    attribution: Attribution,
    given: Mapping[str, Given],
    *,
    log_prefix: str,
    is_alone: bool,
    cwd: str,
    environ: Mapping[str, str],
) -> tuple[Attribution, list[str]]:
    """Returns the settings in effect, and warnings. Raises InvalidRequestError or ConfigurationError.

    `is_alone`: no other node can lead the job, so a key that can't be read is a mistake here and now.
    """
    named = [one for name, one in given.items() if name.startswith("ft_attribution_") and name != ENDPOINT_NAME]
    named = [one for one in named if one.value != one.setting.default_value()]
    endpoint = given.get(ENDPOINT_NAME)
    if endpoint is None or not endpoint.value:
        return attribution, [f"{one.shown} has no effect without --ft-attribution-endpoint" for one in named]
    if not log_prefix:
        raise endpoint.problem(
            "the service reads the logs of cycles, and none are written",
            "add --ft-per-cycle-applog-prefix /path/to/train.log",
        )
    if not attribution.is_asked:
        return attribution, [
            f"{endpoint.shown} has no effect yet: only http:// and https:// are supported, so no log is submitted"
        ]
    if not attribution.is_managed:
        own = [one for one in named if one.setting.name != STOP_ACTION_NAME]
        return attribution, [f"{one.shown} has no effect: {attribution.endpoint} is not started here" for one in own]
    model = given.get(MODEL_NAME)
    if model is not None and model.value not in ("", NO_MODEL) and not attribution.llm_base_url:
        raise model.problem(
            "no model can be asked without its address",
            "add --ft-attribution-llm-base-url URL, or write --ft-attribution-llm-model none to judge by rules alone",
        )
    path = attribution.llm_api_key_file or environ.get(KEY_VARIABLE, "")
    attribution = msgspec.structs.replace(attribution, llm_api_key_file=os.path.join(cwd, path) if path else "")
    if attribution.needs_key and is_alone:
        read_key(attribution.llm_api_key_file)
    return attribution, []
