"""Where the process of one call of `tokenmill.map` begins: FOLDER PARENT-ID, and the call on standard input."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

from cli.main import loaded

_PR_SET_DEATH_SIGNAL = 1


def main(folder: str, parent_id: str) -> int:
    """Answer the call; return the exit status."""
    _stop_with(int(parent_id))
    call = json.load(sys.stdin.buffer)
    status: int = loaded("cli.mapping.called").answer(Path(folder), call)
    return status


def _stop_with(parent_id: int) -> None:
    """Have this process stop, in order, when the one that called ends without a goodbye."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DEATH_SIGNAL, int(signal.SIGTERM))
    if os.getppid() != parent_id:  # it ended before the line above
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
