"""Which attribution service is asked why a job's cycles end, and how does a job run one of its own?"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path

import msgspec
from holdfast_wire import regular_file

from supervisor.config import values
from supervisor.config.job_logs import extended
from supervisor.config.values import Kind, Shape, ValueProblem
from supervisor.errors import ConfigurationError

MANAGED = "localhost"  # the endpoint that means: a service of the job's own, on its leader's node
MANAGED_ADDRESS = ("127.0.0.1", 50050)
NO_MODEL = "none"  # the model that means: judge by rules alone, no key is needed
KEY_VARIABLE = "LLM_API_KEY_FILE"
EXPORT_VARIABLE = "HOLDFAST_ATTRIBUTION_EXPORT_URL"  # of the service: other users can read a command line
KEY_BYTES_MAX = 16_384
URL_CHARACTERS_MAX = 2_000
SPOKEN = ("http", "https")
KEPT = ("grpc", "unix")  # accepted, and nothing is sent there
_ENDPOINT_REMEDY = "write localhost for a service of the job's own, or a URL such as http://attribution.internal:8000"
_URL_REMEDY = "write one such as http://attribution.internal:8000"


class StopAction(enum.StrEnum):
    """What follows if the service says that another try would end the same way."""

    LOG = "log"
    NO_RESTART = "no-restart"


class Attribution(msgspec.Struct, frozen=True):
    """With `endpoint` "", no service is asked. All but the first two fields are about a service of the job's own."""

    endpoint: str = ""
    stop_action: StopAction = StopAction.LOG
    startup_timeout_s: float = 20.0
    llm_api_key_file: str = ""
    llm_base_url: str = ""
    llm_model: str = ""
    log_level: str = "info"
    export_url: str = ""

    @property
    def is_managed(self) -> bool:
        return self.endpoint == MANAGED

    @property
    def is_asked(self) -> bool:
        """Whether anything is sent: some endpoints are accepted but not used."""
        return self.is_managed or self.endpoint.partition("://")[0].lower() in SPOKEN

    @property
    def needs_key(self) -> bool:
        """Whether a model will be asked: there is none without an address."""
        return self.is_managed and bool(self.llm_base_url) and self.llm_model != NO_MODEL


def attribution_log_path(prefix: str) -> str:
    """Returns the log of the job's own service: /logs/train.log gives /logs/train_attribution.log."""
    return extended(prefix, "_attribution")


def submitter(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the owner of the job as far as the environment names one: `user` and `job_id`."""
    user = environ.get("SLURM_JOB_USER") or environ.get("USER")
    job_id = environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID")
    return {name: value for name, value in (("user", user), ("job_id", job_id)) if value}


def read_key(path: str, *, flags: str = "--ft-attribution-llm") -> str:
    """Returns the key of a language model. Blocks on the disk, never on a pipe. Raises ConfigurationError."""
    if not path:
        raise ConfigurationError(
            f"cannot ask a language model: no key is given; set {flags}-api-key-file or the variable {KEY_VARIABLE}, "
            f"or {flags}-model {NO_MODEL} to judge by rules alone"
        )
    try:
        with regular_file.opened(Path(path), follows=True) as file:
            key = file.read(KEY_BYTES_MAX).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigurationError(f"cannot read the language model's key {path}: {why}; check the file") from error
    if not key:
        raise ConfigurationError(f"cannot read the language model's key {path}: the file is empty; check it")
    return key


# --- values --------------------------------------------------------------------------------------------------------


def parse_endpoint(text: str) -> str:
    """Reads `localhost` or a URL; "" is none. Raises ValueProblem."""
    if text in ("", MANAGED):
        return text
    scheme, separator, rest = text.partition("://")
    if not separator or scheme.lower() not in SPOKEN + KEPT:
        raise ValueProblem("it is neither localhost nor a URL of http, https, grpc or unix", _ENDPOINT_REMEDY)
    if scheme.lower() != "unix":
        return _checked_url(text, SPOKEN + KEPT)
    _check_characters(text)
    if not rest.startswith("/"):
        raise ValueProblem("the path behind unix:// is not absolute", "write unix:///run/attribution.sock")
    return text


def parse_url(text: str) -> str:
    """Reads an http or https URL; "" is none. Raises ValueProblem."""
    return _checked_url(text, SPOKEN) if text else text


def _check_characters(text: str) -> None:
    if not text.isascii() or not text.isprintable() or " " in text or len(text) > URL_CHARACTERS_MAX:
        raise ValueProblem("it is too long, or has a blank or another character that no URL has", "write it without")


def _checked_url(text: str, schemes: tuple[str, ...]) -> str:
    from urllib.parse import urlsplit  # Late: most jobs name no URL.

    _check_characters(text)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueProblem("it is not a URL", _URL_REMEDY) from None
    if parts.scheme not in schemes or not host or port == 0:
        raise ValueProblem("it is not a URL with a host", _URL_REMEDY)
    if parts.username is not None or parts.password is not None:
        raise ValueProblem("it holds a user or a password, which others may read here", "write it without")
    if parts.query or parts.fragment:
        raise ValueProblem("it has a query or a fragment", "write it without ? and #")
    if _is_unspecified(host):
        raise ValueProblem(f"{host} means all addresses, so nothing can connect to it", _ENDPOINT_REMEDY)
    return text


def _is_unspecified(host: str) -> bool:
    from ipaddress import ip_address  # Late, as above.

    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return host == "*"


ENDPOINT = Kind("ENDPOINT", "", Shape.TEXT, parse_endpoint)
URL = Kind("URL", "", Shape.TEXT, parse_url)
EXPORT_URL = Kind("URL", "", Shape.TEXT, parse_url)  # its path may be a secret: no record shows it
STOP_ACTION = values.choice(*StopAction)
LOG_LEVEL = values.choice("debug", "info", "warning")
