"""Which parts of a line that a job has printed are secrets that no report may show? Those that are marked as such."""

from __future__ import annotations

import re

from supervisor.config.redaction import HIDDEN, redacted

_NAMED = re.compile(
    r"""(?ix) (?<![a-z]) ( (?:[\w.-]*[_.-])? (?:token|secret|password|passwd|passphrase|api_?-?key|credentials?)
        ["']? \s* [:=] \s* ["']? ) (?!\s) [^\s"',;&}\]]+ """
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/_.=~-]{8,}")
_KNOWN = re.compile(r"\b(?:sk-|hf_|gh[pousr]_|glpat-|xox[abp]-|AKIA|nvapi-)[A-Za-z0-9_-]{8,}")
_SPACES = re.compile(r"(\s+)")


def redacted_line(line: str) -> str:
    """`token: x`, `api_key=x`, `Bearer x`, a password in a URL and well-known forms of keys lose their values."""
    parts = _SPACES.split(line)
    parts[::2] = redacted(parts[::2])
    line = _NAMED.sub(rf"\g<1>{HIDDEN}", "".join(parts))
    return _KNOWN.sub(HIDDEN, _BEARER.sub(rf"\g<1> {HIDDEN}", line))
