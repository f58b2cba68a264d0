"""Entry point of `tokenmill`: loads the command line, which loads the command that was typed.

Imports nothing slow, so that Ctrl-C works from the first moment.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from types import ModuleType

_INTERRUPTED = 130


def main() -> None:
    """Run the command line; the exit status is that of `cli.app.run`."""
    atexit.register(_leave_modules)
    loaded("cli.app").run()


def _leave_modules() -> None:
    """Keep the interpreter's last collections from walking all modules, a quarter of a short command's time.

    Triton, which comes with torch, would report its own as leaked.
    """
    if "torch" not in sys.modules:
        gc.freeze()


def loaded(module: str) -> ModuleType:
    """Import a module; an interrupt during the import ends this process at once."""
    try:
        import signal
        from importlib import import_module

        before = signal.getsignal(signal.SIGINT)
        if before is signal.default_int_handler:  # otherwise ignored, as under `nohup`, or set by a caller
            signal.signal(signal.SIGINT, _end_at_once)
        from cli.loading import without_collections

        with without_collections():
            imported = import_module(module)
        signal.signal(signal.SIGINT, before)
    except KeyboardInterrupt:
        _end_at_once()
    return imported


def _end_at_once(*_: object) -> None:
    """End the process while modules load, when there is nothing to undo.

    A signal handler that raises would raise wherever the interpreter is, also where exceptions are dropped.
    """
    print("tokenmill: interrupted", file=sys.stderr, flush=True)
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
