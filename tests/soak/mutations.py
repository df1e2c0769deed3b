"""Which inputs does a stranger write? Valid records that were changed, and what breaks careless readers."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from random import Random
from typing import cast

DEEP = 30_000  # beyond the recursion of any parser
LONG = 200_000
_INTERESTING = (0, 1, 127, 128, 255, 256, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
# JSON that `json` accepts and few expect.
_VALUES: Sequence[object] = (  # pyright: ignore[reportUnknownVariableType]
    None, True, -1, 0, 2**31, 2**63, 2**64, 10**400, -(10**30),
    0.5, float("nan"), float("inf"), float("-inf"), 1e308, "", "\0",
    "\ud800", "../../etc/passwd", "/dev/zero", "x" * 5000,
    "\x1b]0;x\x07", "9" * 400, "nan", [], {}, [[]], [None] * 300, {"": None},
    {"=": "x"}, {"=": "core.facts:JobRules"}, {"type": "Keep"}, [1, "2", None], ["x", ["x", ["x"]]],
)  # fmt: skip
_WHOLE = (
    b"", b"\0", b"\n", b"{}", b"[]", b"null", b"NaN", b"1e999",
    b'"\\ud800"', b"\xff\xfe\x00", b"\xef\xbb\xbf{}", b"-", b"{", b"[",
    b"[" * DEEP, b'{"a":' * DEEP, b'{"":[' * DEEP, b"[" * DEEP + b"]" * DEEP,
    b"9" * 5000, b'"' + b"x" * LONG + b'"', b"\0" * 4096,
    b"\x0b" * DEEP, b"\x0a\x80\x80\x80\x80\x10" * 100,
    b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"- " * 3000, b"a: &a [*a]",
    b"a: &a [1]\n" + b"".join(b"b%d: [*a, *a]\n" % n for n in range(50)),
    b"&" * 500, b"{a: " * 500, b"? " * 500, b"!!python/object:os.x",
    b'{"a": 1, "a": 2}', b"key: 1\nkey: 2", b"%s%n%x" * 20, b"\r\n" * 500, b"GET " + b"/" * 9000 + b" HTTP/1.1\r\n\r\n",
)  # fmt: skip
_WHOLE_SHARE = 0.01  # they are slower than the rest, and there are few of them


def mutated(dice: Random, corpus: Sequence[bytes]) -> bytes:
    """Returns one input: mostly a record of the corpus with one to three changes."""
    if dice.random() < _WHOLE_SHARE:
        return dice.choice(_WHOLE)
    data = dice.choice(corpus)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        data = _changed(dice, data, corpus)
    return data


def _changed(dice: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    at = dice.randrange(len(data) + 1)
    match dice.randrange(9):
        case 0 | 1:
            return _in_json(dice, data)
        case 2:
            spoilt = bytearray(data or b"\0")
            for _ in range(dice.randrange(1, 8)):
                spoilt[dice.randrange(len(spoilt))] ^= 1 << dice.randrange(8)
            return bytes(spoilt)
        case 3:
            return data[:at]
        case 4:
            return data[:at] + dice.randbytes(dice.randrange(1, 20)) + data[at:]
        case 5:  # a number in place of whatever was there: often a length
            number = dice.choice(_INTERESTING)
            shown = dice.choice((_varint(number), number.to_bytes(8, "big"), number.to_bytes(8, "little")[:4]))
            return data[:at] + shown + data[at + len(shown) :]
        case 6:
            other = dice.choice(corpus)
            return data[:at] + other[dice.randrange(len(other) + 1) :]
        case 7:  # a part of it many times over
            part = data[at : at + dice.randrange(1, 40)]
            return data[:at] + part * dice.choice((2, 10, 200)) + data[at:]
        case _:
            return data[:at] + dice.choice((b"\0", b"\xff\xff", b"\xed\xa0\x80", b"\x1b[2J", b'"', b"}", b"\n", b"NaN"))


def _varint(number: int) -> bytes:
    shown = bytearray()
    while number > 127:
        shown.append(number & 127 | 128)
        number >>= 7
    return bytes([*shown, number])


def _in_json(dice: Random, data: bytes) -> bytes:
    """Puts another value in a random place of a JSON text, or drops, doubles or nests what is there."""
    try:
        body: object = json.loads(data)
    except (ValueError, RecursionError):
        return data + dice.randbytes(3)
    body = copy.deepcopy(body)
    if not isinstance(body, dict | list) or not body:
        return json.dumps(dice.choice(_VALUES)).encode()
    place = cast("dict[object, object] | list[object]", body)
    while True:
        keys: list[object] = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = dice.choice(keys)
        value: object = place[key]  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownVariableType]
        if isinstance(value, dict | list) and value and dice.random() < 0.8:
            place = cast("dict[object, object] | list[object]", value)
            continue
        break
    match dice.randrange(5):
        case 0:
            del place[key]  # pyright: ignore[reportArgumentType, reportCallIssue]
        case 1 if isinstance(place, dict):
            place[dice.choice(("", "x", "\0", "=", "\ud800", "type"))] = value
        case 2:
            deep = dice.choice((1, 5, 90))
            place[key] = cast("object", json.loads("[" * deep + json.dumps(value) + "]" * deep))  # pyright: ignore[reportArgumentType, reportCallIssue]
        case _:
            place[key] = dice.choice(_VALUES)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return json.dumps(body).encode()
