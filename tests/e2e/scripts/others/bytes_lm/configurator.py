# pyright: basic
"""Run by exec() in the globals of train.py: `file.py` is executed, `--name=value` sets a global of the same type."""

import sys
from ast import literal_eval

for arg in sys.argv[1:]:
    if "=" not in arg:
        assert not arg.startswith("--")
        exec(open(arg).read())
    else:
        key, val = arg.removeprefix("--").split("=", 1)
        if key not in globals():
            raise ValueError(f"Unknown config key: {key}")
        try:
            attempt = literal_eval(val)
        except (SyntaxError, ValueError):
            attempt = val
        assert type(attempt) is type(globals()[key]), key
        globals()[key] = attempt
