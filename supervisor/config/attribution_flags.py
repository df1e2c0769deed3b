"""Which flags does attribution have?"""

from __future__ import annotations

from supervisor.config import attribution_settings, values
from supervisor.config.setting import Group, Setting


def _flag(name: str, kind: values.Kind, field: str, meaning: str) -> Setting:
    key = f"attribution_{name.replace('-', '_')}"
    return Setting(f"--ft-attribution-{name}", kind, meaning, Group.OUTPUT, path=f"attribution.{field}", keys=(key,))


ATTRIBUTION: tuple[Setting, ...] = (
    _flag(
        "endpoint",
        attribution_settings.ENDPOINT,
        "endpoint",
        "service that says why each cycle ended: http://HOST:PORT, or localhost to have one started; needs "
        "--ft-per-cycle-applog-prefix",
    ),
    _flag(
        "stop-action",
        attribution_settings.STOP_ACTION,
        "stop_action",
        "if the service says that another try would end the same way: "
        "only log it, or end the job (--ft-no-restart-exit-code)",
    ),
    _flag(
        "startup-timeout",
        values.seconds(),
        "startup_timeout_s",
        "longest time for the service of endpoint localhost to come up; the job does not wait for it",
    ),
    _flag(
        "llm-api-key-file",
        values.PATH,
        "llm_api_key_file",
        f"endpoint localhost: file with the key of a language model (default: ${attribution_settings.KEY_VARIABLE})",
    ),
    _flag(
        "llm-base-url",
        attribution_settings.URL,
        "llm_base_url",
        "endpoint localhost: also ask a language model, at an API like OpenAI's",
    ),
    _flag(
        "llm-model",
        values.text("MODEL"),
        "llm_model",
        f"endpoint localhost: which language model; {attribution_settings.NO_MODEL}: judge by rules alone, "
        "without a key",
    ),
    _flag(
        "log-level", attribution_settings.LOG_LEVEL, "log_level", "endpoint localhost: how much the service's log says"
    ),
    _flag(
        "export-url",
        attribution_settings.EXPORT_URL,
        "export_url",
        "endpoint localhost: post each result there as JSON",
    ),
)
