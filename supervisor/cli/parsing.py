"""How is a mistake in the arguments of a small command reported? In one sentence, like every other mistake."""

from __future__ import annotations

import difflib
from argparse import ArgumentParser
from typing import NoReturn

from supervisor.errors import InvalidRequestError


class Parser(ArgumentParser):
    """A parser that raises InvalidRequestError where argparse would print the usage and exit."""

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ").split()
        if unknown and message != " ".join(unknown) and unknown[0].startswith("--"):
            flag = unknown[0].partition("=")[0]
            near = difflib.get_close_matches(flag, self._option_string_actions, n=1)
            message = f"there is no flag {flag}" + (f", did you mean {near[0]}" if near else "")
        if message.endswith("expected one argument"):
            message += " (one that begins with - is written as --flag=VALUE)"
        raise InvalidRequestError(f"cannot run {self.prog}: {message}; see {self.prog} --help")
