"""Where the `tokenmill` command begins: loads the command line, which loads the command that was typed.

Imports nothing that takes time, so that Ctrl-C is answered from the first moment on.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

_INTERRUPTED = 130


def main() -> None:
    """Run the command line; the exit status is that of `cli.app.run`."""
    loaded("cli.app").run()


def loaded(module: str) -> ModuleType:
    """Import a module; an interrupt meanwhile ends this process at once."""
    try:
        import signal
        from importlib import import_module

        before = signal.getsignal(signal.SIGINT)
        if before is signal.default_int_handler:  # else it is ignored, as behind `nohup`, or somebody else's
            signal.signal(signal.SIGINT, _end_at_once)
        from cli.loading import without_collections

        with without_collections():
            imported = import_module(module)
        signal.signal(signal.SIGINT, before)
    except KeyboardInterrupt:
        _end_at_once()
    return imported


def _end_at_once(*_: object) -> None:
    """End while modules load, when there is nothing to undo.

    As a handler: an exception would come up wherever the interpreter is, also where it is printed and dropped.
    """
    print("tokenmill: interrupted", file=sys.stderr, flush=True)
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
