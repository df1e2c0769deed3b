"""How is a mistake in the arguments of a small command reported? In one sentence, like every other mistake."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import NoReturn

from supervisor.errors import InvalidRequestError


class Parser(ArgumentParser):
    """A parser that raises InvalidRequestError where argparse would print the usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise InvalidRequestError(f"cannot run {self.prog}: {message}; see {self.prog} --help")
