"""Start a process of ours so that it finds our packages before others of the same names.

In an installation they are in a folder inside this one, where no other process looks; in a checkout they are beside it.
Run as a script, this file starts such a process; its arguments are a module and that module's arguments.
"""

from __future__ import annotations

import os
import sys

_SCRIPT = os.path.abspath(__file__)  # loading pathlib would take as long as everything else here
_HERE = os.path.dirname(_SCRIPT)
_INSTALLED = os.path.join(_HERE, "_packages")

PACKAGES = _INSTALLED if os.path.isdir(_INSTALLED) else os.path.dirname(_HERE)
"""The folder of our packages."""


def command_of(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of ours; working directory and environment do not change what it finds."""
    return [sys.executable, "-P", _SCRIPT, module, *arguments]


def put_our_packages_first() -> None:
    """Put our packages, and `tokenmill`, first on this process's path; it must be a process of ours."""
    sys.path[:] = [PACKAGES, *(place for place in sys.path if place != PACKAGES)]
    if os.path.dirname(_HERE) not in sys.path:
        sys.path.append(os.path.dirname(_HERE))


def _main() -> None:
    del sys.argv[0]
    put_our_packages_first()
    import runpy

    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
