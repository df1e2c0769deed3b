"""Which characters of somebody else's text may reach a terminal, a page or a log, and how are the others written?

One rule for all of them: escape sequences, other control characters and those that change the direction of writing
become visible escapes, such as \\x1b. Reports of other supervisors pass here when they are decoded, and all text once
more when it is shown.
"""

from __future__ import annotations

import re
import unicodedata

_SPACES = "\n\t\r"
# Characters that JSON may hold as they are, though a terminal acts on them.
_ACTS_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")


def one_line(text: str) -> str:
    """Returns one line that controls no terminal. Ends of lines and tabs become spaces."""
    if text.isprintable():
        return text
    return "".join(" " if each in _SPACES else _shown(each) for each in text)


def lines(text: str) -> str:
    """Returns the text with its lines and tabs, without anything else that controls a terminal."""
    if text.isprintable():
        return text
    return "".join(each if each in "\n\t" else _shown(each) for each in text)


def json_text(text: str) -> str:
    """Returns JSON that means the same, without characters on which a terminal acts."""
    return _ACTS_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _shown(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return f"\\x{ord(character):02x}"
