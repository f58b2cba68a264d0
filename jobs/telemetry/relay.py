"""Relay the output of a process and its children line by line: libraries, native code and the engine bypass our log.

An incomplete line is lost when this process is killed; records do not pass through here.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import TextIO

_END = b"\0the end\n"
_END_SECONDS = 2.0
_STREAMS = (1, 2)
_MOST_BYTES = 16 * 1024


class Relay:
    """Replaces stdout and stderr of this process and forwards their lines. Call `start` once."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._thread = threading.Thread(target=self._read, name="relay", daemon=True)
        self._reading = self._writing = self._kept = -1

    def start(self) -> TextIO:
        """Start; return the original stderr stream."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._kept = os.dup(2)
        self._reading, self._writing = os.pipe()
        for stream in _STREAMS:
            os.dup2(self._writing, stream)
        self._thread.start()
        atexit.register(self._stop)
        return open(self._kept, "w", encoding="utf-8", buffering=1, closefd=False)

    def _stop(self) -> None:
        """Forward what was printed so far; later output goes to the original streams."""
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(self._writing, _END)
        for stream in _STREAMS:
            os.dup2(self._kept, stream)
        self._thread.join(_END_SECONDS)

    def _read(self) -> None:
        with open(self._reading, "rb", closefd=False) as printed:
            is_over = False
            while not is_over and (line := printed.readline(_MOST_BYTES)):
                is_over = line.endswith(_END)
                text = line.removesuffix(_END).decode(errors="replace").strip()
                if text:
                    self._tell(text)
