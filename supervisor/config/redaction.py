"""Which parts of a command line, or of any text, are secrets that may not leave the job?

Those that are marked as such: by the name before them, by the place where they stand in a URL, or by a well-known form.
The only rule for all that Holdfast shows, records or sends: a secret that it finds becomes `***`, all else stays.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping

HIDDEN = "***"
VALUE_CHARACTERS_MIN = 8  # of a known secret that is looked for wherever it stands
# A text without any of these has no secret, so nothing is compiled for it: most texts are on the way to a start.
_HINTS = (
    "token", "key", "secret", "passw", "pwd", "pass", "passphrase", "passcode", "credential", "auth", "bearer",
    "basic ", "cookie", "jwt", "sig", "://", "sk-", "sk_", "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_",
    "github_pat_", "glpat-", "xox", "akia", "asia", "aiza", "eyj", "private", "nvapi-", "pat=", "pat:", 'pat"', "pat'",
    "pat ", "pat\\", "pat&", "pat%", "webhook", "connectionstring", "connection_string",
    "connection-string", "connstr", "conn_str", "conn-str", "dsn", "hooks.",
)  # fmt: skip
# Names of signals end with no word for a secret, and are in most of what is told of a fault.
_SIGNALS = ("sigkill", "sigterm", "sigint", "sighup", "sigabrt", "sigsegv", "sigbus", "sigstop", "sigcont")
_STRONG = frozenset(
    (
        "apikey", "secret", "secrets", "password", "passwords", "passwd", "passphrase", "passcode", "pwd", "credential",
        "credentials", "cookie", "authorization", "jwt", "bearer", "connectionstring", "connstr", "dsn",
    )
)  # fmt: skip
_STRONG_ENDS = (
    "password",
    "passwd",
    "passphrase",
    "apikey",
    "secretkey",
    "accesskey",
    "privatekey",
    "authtoken",
    "accesstoken",
)
_WEAK = frozenset(("token", "key", "auth", "pass", "sig", "signature", "pat"))
_CONNECTIONS = frozenset((("connection", "string"), ("connection", "str"), ("conn", "string"), ("conn", "str")))
_OF_ACCOUNTS = frozenset(
    (
        "api", "access", "secret", "private", "auth", "bearer", "session", "refresh", "hf", "hub", "wandb", "aws",
        "github", "gitlab", "openai", "anthropic", "ngc", "nvidia", "comet", "neptune", "mlflow", "account", "shared",
        "master", "encryption", "signing", "service", "client", "deploy", "bot", "user", "admin", "db", "security",
        "job", "llm", "google", "gcp", "gemini", "azure", "cohere", "mistral", "groq", "replicate", "huggingface",
        "kaggle", "databricks", "slack", "discord", "telegram", "twilio", "sendgrid", "stripe", "npm", "pypi", "vault",
        "sentry", "datadog", "grafana", "clearml", "minio", "devops", "jira", "bitbucket", "personal",
    )
)  # fmt: skip
# Words before or behind "token" and "key" with which they mean a part of a text, or an entry of a mapping.
_OF_DATA = frozenset(
    (
        "pad", "eos", "bos", "unk", "mask", "cls", "sep", "image", "img", "video", "audio", "special", "start", "stop",
        "end", "begin", "max", "min", "num", "per", "next", "new", "first", "last", "prompt", "text", "sort", "caption",
        "label", "primary", "foreign", "partition", "group", "cache", "dict", "map", "data", "batch", "input", "output",
        "target", "response", "question", "answer", "metric", "monitor", "config", "state", "column", "field", "query",
        "time", "unique", "index", "loss", "reward", "json", "feature", "unexpected", "missing", "invalid", "by",
        "public",
    )
)  # fmt: skip
# Words before "key", but not "token", with which it means a column. A join key may be a secret.
_OF_COLUMNS = frozenset(
    (
        "observation", "observations", "obs", "action", "episode", "pixel", "pixels", "depth", "instruction", "row",
        "table",
    )
)  # fmt: skip
_BEHIND = frozenset(("id", "value", "base", "b64", "base64", "hex", "raw", "plain"))
_SWITCH = frozenset(("no", "use", "with", "without", "enable", "disable", "skip", "has", "require", "requires"))
_NOTHING = frozenset(
    ("", "true", "false", "none", "null", "nil", "str", "bytes", "int", "bool", "float", "any", "object", HIDDEN)
)
_FUNCTION_WORDS = frozenset(
    (
        "a", "an", "and", "are", "as", "at", "be", "by", "can", "cannot", "for", "from", "has", "have", "if", "in",
        "instead", "into", "is", "it", "its", "may", "must", "needs", "no", "not", "of", "on", "option", "or", "that",
        "the", "this", "to", "was", "when", "which", "will", "with",
    )
)  # fmt: skip
_WORD_END = r"[-_.+~]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
_NAME = r"[-+~]{0,2}[A-Za-z_][\w.-]*"
_NUMBER = r"[-+]?\d{0,7}(?:\.\d{0,7})?(?:e[-+]?\d+)?"
_FILE = r"[~.\w/@+-]*/[\w.@+-]+\.(?:json|pem|key|crt|cert|txt|ya?ml|pub|conf|cfg|env|p12|toml|ini)"
_CODE = (
    r"[A-Za-z_.]+[\[(].*|(?:self|args|cfg|config|opts?|os|settings|params|kwargs|env|conf|hparams|options)\.[A-Za-z_.]+"
)
_QUOTE = (
    r"""(?:\\{0,8}["']|\\{1,8}(?:u00|x)2[27]|&quot;|&#(?:34|39|x22|x27);)"""  # also as JSON, repr and HTML escape it
)
_QUOTED = rf"""(?P<mark>{_QUOTE})(?:\\[^\n]|[^\\\n]){{0,8192}}?(?:(?:(?=["'&])|(?<!\\))(?P=mark)|(?=\n|\Z))"""
_BARE = r"""(?:[^\s"'&}\]),;.:]|[.:](?!\s|\Z)|[,;](?!\s|\Z|[\w.-]+[=:]))+"""
_VALUE = rf"{_QUOTED}|{_BARE}"
_NAME_BEGIN = r"(?:(?<![\w.])|(?<=u002[267])|(?<=x2[27])|(?<=%26)|(?<=%3[fF]))(?!u00[23]|x2[27])"
_SIGN = r"(?::=|=>|[:=]|\\{1,8}u003[ad]|%3[adAD])"
_NAMED = rf"""(?P<name>{_NAME_BEGIN}[A-Za-z_][\w.-]{{0,127}})(?P<sign>{_QUOTE}?\s{{0,3}}{_SIGN}\s{{0,3}})"""
_SCHEME = r"(?i:bearer|basic|token|digest|negotiate)\s+"
_OPTION = r"""(?<![^\s"'\[(])(?P<name>--?[A-Za-z][\w.-]{0,127})(?P<sign>["',]{0,2}[ \t]+)"""
_CUT = r"(?=…|\Z)"  # Here a text may have been cut, in the middle of a secret.
_PASSWORD_IN_URL = r"(?<=://)(?P<user>[^/?#@\s:\"']*):(?P<secret>[^/?#@\s\"']+)(?=@)"
_CUT_PASSWORD_IN_URL = rf"(?<=://)(?P<user>[^/?#@\s:\"'\[]*):(?P<secret>(?=\D{{0,64}}\d)(?!\d{{1,5}}{_CUT})[^/?#@\s:\"',\]]{{4,256}}){_CUT}"
_TOKEN_IN_URL = r"(?<=://)[^/?#@\s:\"']{12,}(?=@)"  # a shorter one is a user's name
_SCHEMES = r"(?i)\b(?P<scheme>bearer|basic)\s+(?P<secret>(?=[^\s\"']*[\d=+/_])[A-Za-z0-9+/_.=~-]{8,})"
_KNOWN = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\A[A-Za-z0-9+/=\s]{16,8192}-----END [A-Z ]*PRIVATE KEY-----"
    r"|(?<=hooks\.slack\.com/)(?:services|workflows|triggers)/[\w/]+|(?<=/api/webhooks/)[\w/-]+"
    r"|(?<=\.webhook\.office\.com/)[\w/@.-]+|(?<=hooks\.zapier\.com/hooks/catch/)[\w/]+"
    r"|\b(?:sk-[A-Za-z0-9_-]{8,}|sk_(?:live|test)_\w{8,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{8,}|github_pat_\w{16,}"
    r"|glpat-[\w-]{8,}|xox[abeprs]-[\w-]{8,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|nvapi-[\w-]{8,}|AIza[\w-]{30,}"
    r"|eyJ[\w-]{10,}\.[\w-]{6,}(?:\.[\w-]*)?)"
    r"|\b(?:sk-|sk_(?:live|test)_|hf_|gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|AKIA|ASIA|nvapi-|AIza|eyJ)"
    rf"(?=[A-Za-z_-]{{0,64}}\d)[\w-]{{3,256}}\.?[\w-]{{0,256}}{_CUT}"
)
# Each alternative of it has one of these: it is the longest of the patterns, and few texts need it compiled.
_KNOWN_PARTS = (
    "-----BEGIN ", "-----END ", "hooks.", "/api/webhooks/", "sk-", "sk_", "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_",
    "github_pat_", "glpat-", "xox", "AKIA", "ASIA", "nvapi-", "AIza", "eyJ", ".webhook.office.com/",
)  # fmt: skip
_LOOKS_SECRET = r"(?=.*[A-Za-z])(?=.*\d)[^\s/]{8,}|[A-Za-z0-9+/=_-]{24,}"
_WEBHOOK = r"webhook(?:[-_.]?ur[li])?"
_WEBHOOK_URL = rf"""(?i:{_WEBHOOK}(?:{_QUOTE}?\s{{0,3}}{_SIGN}|["',]{{0,2}}[ \t])\s{{0,3}}{_QUOTE}?(?P<secret>https?://[^\s"'\\<>]+))"""


class _Marks(enum.Enum):
    """How surely a name marks the value behind it as a secret."""

    NOT = enum.auto()
    PERHAPS = enum.auto()
    SURELY = enum.auto()


def redacted(command: Iterable[str]) -> tuple[str, ...]:
    """Hides the values of `--api-key=x`, `--hf-token x` and `WANDB_API_KEY=x`, but not of `--num-tokens 8`.

    Within a word, the rules of `redacted_text` apply.
    """
    shown: list[str] = []
    hide_next, previous = False, ""
    for word in command:
        name, equals, value = word.partition("=")
        is_hidden = hide_next and not word.startswith("-") and not _is_harmless(word)
        is_hidden = is_hidden or _posts_to(previous, word)
        marks = not is_hidden and _marks(name) is not _Marks.NOT
        if is_hidden:
            shown.append(HIDDEN)
        else:
            shown.append(f"{name}={HIDDEN}" if equals and marks and not _is_harmless(value) else redacted_text(word))
        hide_next = marks and not equals and word.startswith("-") and _words(name)[0] not in _SWITCH
        previous = word
    return tuple(shown)


def redacted_text(text: str, values: tuple[str, ...] = ()) -> str:
    """Hides the values of `token: x`, `"api_key": "x"`, `Bearer x`, passwords in URLs and well-known forms of keys.

    So do the `values`, the secrets that a job is known to have (`secret_values`), wherever they stand, and what is left
    of them or of a well-known form where the text was cut.
    """
    for value in values:
        text = _without_value(text, value)
    return _without_marked(text, [])


def redacted_lines(lines: Iterable[str], values: tuple[str, ...] = ()) -> list[str]:
    """Returns the lines that are not empty, without secrets.

    They are read together: a secret may have several lines, and half of one looks like any other word.
    """
    shown = redacted_text("\n".join(line for line in lines if line), values)
    return [line for line in shown.split("\n") if line]


def _without_marked(text: str, hidden: list[str]) -> str:
    """Hides what is marked as a secret, and adds it to `hidden`."""
    if not _may_hold_secret(text):
        return text

    def hide(found: re.Match[str]) -> str:
        hidden.append(found[0])
        return HIDDEN

    if any(part in text for part in _KNOWN_PARTS):
        text = re.sub(_KNOWN, hide, text, flags=re.DOTALL)
    if "://" in text:
        text = re.sub(_WEBHOOK_URL, lambda found: found[0][: -len(found["secret"])] + _kept_as(found, hidden), text)
        for pattern in (_PASSWORD_IN_URL, _CUT_PASSWORD_IN_URL):
            text = re.sub(pattern, lambda found: f"{found['user']}:{_kept_as(found, hidden)}", text)
        text = re.sub(_TOKEN_IN_URL, hide, text)
    text = _without(text, _NAMED, _is_marked, hidden)
    text = _without(text, _OPTION, _is_marked_option, hidden)
    return re.sub(_SCHEMES, lambda found: f"{found['scheme']} {_kept_as(found, hidden)}", text)


def _may_hold_secret(text: str) -> bool:
    lowered = text.lower()
    if "sig" in lowered:
        for name in _SIGNALS:
            lowered = lowered.replace(name, "")
    for hint in _HINTS:  # noqa: SIM110 - half the time of `any`, for each text that is told on the way to a restart
        if hint in lowered:
            return True
    return False


def redacted_url(url: str) -> str:
    """Returns scheme, host and port: the path of a URL to which something is posted is often its secret."""
    scheme, separator, rest = url.partition("://")
    place = rest.rpartition("@")[2] if "@" in rest.split("/", 1)[0] else rest
    host, slash, path = place.replace("?", "/", 1).partition("/")
    return f"{scheme}{separator}{host}{slash}{HIDDEN if path else ''}"


def secret_values(command: Iterable[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the secrets of a command line and of an environment, the longest first; short ones could be any word."""
    found: list[str] = []
    for name, value in environment.items():
        _add_secrets(name, value, found)
    previous = ""
    for word in command:
        name, equals, value = word.partition("=")
        if previous.startswith("-") and not word.startswith("-"):
            _add_secrets(previous, word, found)
        if equals:
            _add_secrets(name, value, found)
        _without_marked(word, found)
        previous = word
    kept = {each for each in found if len(each) >= VALUE_CHARACTERS_MIN and not _is_harmless(each)}
    return tuple(sorted((each for each in kept if not _is_path(each)), key=lambda each: (-len(each), each)))


def _posts_to(name: str, value: str) -> bool:
    """Returns whether it is a webhook's address. Anyone who knows it may post there."""
    return value.lower().startswith(("http://", "https://")) and bool(re.search(rf"(?i){_WEBHOOK}\Z", name))


def _add_secrets(name: str, value: str, found: list[str]) -> None:
    """Adds the value if its name says that it is a secret, and the secrets within it: a URL may hold a password."""
    marks = _marks(name)
    looks_secret = marks is _Marks.PERHAPS and re.fullmatch(_LOOKS_SECRET, value)
    if marks is _Marks.SURELY or looks_secret or _posts_to(name, value):
        found.append(value)
    _without_marked(value, found)


def _without_value(text: str, value: str) -> str:
    """Hides a known secret, also the part of it with which a text that was cut ends or begins."""
    text = text.replace(value, HIDDEN)
    for cut in (*re.finditer("…", text), None):
        end = len(text) if cut is None else cut.start()
        for size in range(min(len(value) - 1, end), VALUE_CHARACTERS_MIN - 1, -1):
            if text.endswith(value[:size], 0, end):
                return _without_value(text[: end - size] + HIDDEN + text[end:], value)
    for size in range(len(value) - 1, VALUE_CHARACTERS_MIN - 1, -1):
        if text.startswith(value[-size:]):
            return HIDDEN + text[size:]
    return text


def _is_path(value: str) -> bool:
    """Returns whether it names a file or a folder; a key in base64 may begin with a slash, too."""
    return value.startswith("/") and not re.fullmatch(r"(?=.*\d)(?=.*[A-Z])[A-Za-z0-9+/]{32,}={0,2}", value)


# --- names ---------------------------------------------------------------------------------------------------------


def _words(name: str) -> list[str]:
    return [word.lower().rstrip("0123456789") for word in re.split(_WORD_END, name) if word] or [""]


def _marks(name: str) -> _Marks:
    lowered = f"{name.lower()}="
    if not any(hint in lowered for hint in _HINTS) or not re.fullmatch(_NAME, name):
        return _Marks.NOT
    words = _words(name)
    if len(words) > 1 and words[-1] in _BEHIND and words[-2] != "token":
        words = words[:-1]
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in _STRONG or last.endswith(_STRONG_ENDS) or (before, last) in _CONNECTIONS:
        return _Marks.SURELY
    if last == "pat" and before not in _OF_ACCOUNTS:  # Otherwise it is a pattern.
        return _Marks.PERHAPS if name.isupper() else _Marks.NOT
    is_weak = last in _WEAK or (last.endswith("token") and last not in ("pretoken", "subtoken"))
    if not is_weak or before in _OF_DATA or (last == "key" and before in _OF_COLUMNS):
        return _Marks.NOT
    return _Marks.SURELY if before in _OF_ACCOUNTS or last not in _WEAK else _Marks.PERHAPS


def _kept_as(found: re.Match[str], hidden: list[str]) -> str:
    hidden.append(found["secret"])
    return HIDDEN


def _bare(value: str) -> str:
    return re.sub(rf"\A{_QUOTE}|{_QUOTE}\Z", "", value).strip("\\\"'")


# --- values --------------------------------------------------------------------------------------------------------


def _is_harmless(value: str) -> bool:
    """Returns whether it is not a secret, despite its name: nothing, a small number, a file."""
    bare = _bare(value)
    return bare.lower() in _NOTHING or bool(re.fullmatch(rf"{_NUMBER}|{_FILE}", bare, re.IGNORECASE))


def _without(text: str, names: str, is_marked: Callable[[re.Match[str], str, str], bool], hidden: list[str]) -> str:
    """Hides the values behind the names that `is_marked` confirms. A value that stays is looked through itself."""
    shown: list[str] = []
    done = at = 0
    while (found := re.compile(names).search(text, at)) is not None:
        at = found.end()
        if _marks(found["name"]) is _Marks.NOT:
            continue
        scheme = re.compile(_SCHEME).match(text, at) if re.search(_SIGN, found["sign"]) else None
        value = re.compile(_VALUE).match(text, scheme.end() if scheme else at)
        if value is None or not (scheme or is_marked(found, value[0], _next_word(text, value.end()))):
            continue
        mark = value["mark"] or ""
        end = mark if len(value[0]) > len(mark) and value[0].endswith(mark) else ""
        shown += [text[done : value.start()], mark, HIDDEN, end]
        hidden.append(value[0][len(mark) : len(value[0]) - len(end)])
        done = at = value.end()
    return "".join([*shown, text[done:]]) if shown else text


def _is_marked(found: re.Match[str], value: str, next_word: str) -> bool:
    """Returns whether `name=value`, `name: value` or `"name": "value"` holds a secret."""
    name, sign, marks, bare = found["name"], found["sign"], _marks(found["name"]), _bare(value)
    if _is_harmless(value):
        return bare.isdigit() and _words(name)[-1] in ("password", "passwd", "passphrase")
    if name.lower() in ("pwd", "oldpwd"):
        return not bare.startswith("/")
    if name.lower() == "key":  # of any mapping, and the parameter of sorted()
        return bool(re.fullmatch(r"[A-Za-z0-9+/=-]{16,}", bare) and re.search(r"\d", bare))
    if bare != value:
        return marks is _Marks.SURELY or len(bare) >= 4
    is_of_code = re.fullmatch(_CODE, value) or (_marks(value) is not _Marks.NOT and value.replace("_", "").isalpha())
    if is_of_code or "=" in sign or not sign[-1].isspace():
        return not is_of_code
    word = value.rstrip(".,;:!?")
    if word.lower() in _FUNCTION_WORDS or (word.isalpha() and next_word):
        return False  # prose
    return marks is _Marks.SURELY or (len(word) >= 6 and (bool(re.search(r"\d", word)) or len(word) >= 20))


def _is_marked_option(found: re.Match[str], value: str, next_word: str) -> bool:
    """Returns whether the word behind an option in a line is a secret, as `redacted` decides it in a command."""
    del next_word
    is_switch = _words(found["name"])[0] in _SWITCH or value.startswith("-")
    return not (is_switch or _is_harmless(value) or value.lower().rstrip(".,;:") in _FUNCTION_WORDS)


def _next_word(text: str, at: int) -> str:
    """Returns the next word on the same line; "" if there is none."""
    return next(iter(text[at : at + 80].split("\n", 1)[0].split()), "")
