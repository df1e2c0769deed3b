"""Which packages do the commands in a wheel need, for each Python? Prints one requirement per line."""

import sys
import zipfile
from email.parser import Parser

wheel = sys.argv[1]
with zipfile.ZipFile(wheel) as opened:
    name = next(name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(opened.read(name).decode())
for requirement in metadata.get_all("Requires-Dist", []):
    needed, _, marker = requirement.partition(";")
    if marker.strip() in ("", "extra == 'supervisor'", "extra == 'top'", "extra == 'otel'"):
        sys.stdout.write(f"{needed.strip()}\n")
    elif "extra" not in marker:
        sys.exit(f"cannot tell whether to install {requirement!r}: the marker is new; teach {__file__}")
