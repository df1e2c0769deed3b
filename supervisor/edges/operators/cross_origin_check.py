"""Was this request made by a page that somebody else has put into a browser of this machine's user?

A browser asks any server for any page, and a page can give its own name this machine's address. Browsers say which page
asks (`Origin`, `Sec-Fetch-Site`) and by which name it has found the server (`Host`); programs say only the latter.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping


def page_elsewhere(headers: Mapping[str, str]) -> str:
    """Returns which page of another address asks, or its kind; "": none does. `headers`: names in small letters."""
    host, origin = headers.get("host", ""), headers.get("origin")
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
        return f"a page of {origin!r}"
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return "a page of another address"
    return ""


def is_name_of_here(host: str) -> bool:
    """Returns whether nobody else can make the name mean this machine: an address can't change, a name can."""
    name, colon, port = host.rpartition(":")
    if not colon or not port.isdecimal():
        name = host
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name.lower() in ("localhost", socket.gethostname().lower())
    return True
