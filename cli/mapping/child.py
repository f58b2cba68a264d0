"""Entry point of the process of a `tokenmill.map` call: arguments FOLDER PARENT-ID READY, the call on standard input.

It writes to the descriptor READY once the new columns exist; a second line of input confirms that they were taken.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
from pathlib import Path

from cli.main import loaded
from tokenmill.mapping import TAKEN

_PR_SET_DEATH_SIGNAL = 1
_TERMINATED = 143


def main(folder: str, parent_id: str, ready: str) -> int:
    """Answer the call; return the exit status."""
    _stop_with(int(parent_id))
    call = json.loads(sys.stdin.buffer.readline())

    def is_taken() -> bool:
        os.write(int(ready), b"1")
        return sys.stdin.buffer.readline() == TAKEN

    os.set_inheritable(int(ready), False)
    status: int = loaded("cli.mapping.called").answer(Path(folder), call, is_taken=is_taken)
    return status


def _stop_with(parent_id: int) -> None:
    """Stop this process in order if the calling process dies."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DEATH_SIGNAL, int(signal.SIGTERM))
    if os.getppid() != parent_id:  # it died before the line above
        sys.exit(_TERMINATED)


def _run(folder: str, parent_id: str, ready: str) -> int:
    try:
        return main(folder, parent_id, ready)
    finally:
        if os.getppid() != int(parent_id):  # nothing else removes the table
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(_run(*sys.argv[1:]))
