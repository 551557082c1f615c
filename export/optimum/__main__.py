"""``python -m omnidraft.export.optimum``: make ``optimum-cli export omnidraft`` known to optimum.

optimum finds commands in the files of its folder ``commands/register``. A wheel that held such a
file would leave a folder ``optimum`` wherever optimum is absent, so it is written on demand.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

REGISTRATION = """\
# Written by python -m omnidraft.export.optimum. Without omnidraft it does nothing.
try:
    from omnidraft.export.optimum.command import REGISTER_COMMANDS
except ImportError:
    REGISTER_COMMANDS = []
"""


def register(packages: Path) -> Path:
    """Write the file into a folder of packages, and return where it is."""
    folder = packages / "optimum" / "commands" / "register"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "register_omnidraft.py"
    file.write_text(REGISTRATION, "utf-8")
    return file


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m omnidraft.export.optimum", description=__doc__)
    parser.add_argument(
        "packages", type=Path, nargs="?", help="folder of packages; default: where optimum is"
    )
    packages: Path | None = parser.parse_args().packages
    optimum = find_spec("optimum")
    if optimum is None or not optimum.submodule_search_locations:
        print("error: optimum is not installed: pip install optimum.", file=sys.stderr)
        return 2
    try:
        file = register(packages or Path(next(iter(optimum.submodule_search_locations))).parent)
    except OSError as error:
        print(f"error: {error.filename} cannot be written: {error.strerror}.", file=sys.stderr)
        return 2
    print(f"optimum-cli export omnidraft is there; to take it away, delete {file}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
