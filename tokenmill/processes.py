"""How a process of our own starts: it finds our packages before any others of the same names.

In an installation they lie in a folder inside this one, where no other process looks; in a checkout they lie beside it.
Run as a script, this file is the first of such a process, and its arguments are a module and what that is given.
"""

from __future__ import annotations

import os
import sys

_SCRIPT = os.path.abspath(__file__)  # pathlib would take as long to load as all else here
_HERE = os.path.dirname(_SCRIPT)
_INSTALLED = os.path.join(_HERE, "_packages")

PACKAGES = _INSTALLED if os.path.isdir(_INSTALLED) else os.path.dirname(_HERE)
"""The folder of our packages."""


def command_of(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of ours; neither its folder nor its environment changes what it finds."""
    return [sys.executable, "-P", _SCRIPT, module, *arguments]


def put_our_packages_first() -> None:
    """Have this process, which must be one of ours, find our packages first, and `tokenmill` too."""
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
