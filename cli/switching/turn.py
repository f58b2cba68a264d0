"""The process of a worker for one turn of its model: started, ended, and read for the reason of its end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from cli.embedded.child import launch_command
from jobs.telemetry.logs import last_words

_READ_SECONDS = 5.0


class Turn:
    """A worker process, which dies with this one. Start it from the main thread: its death signal is bound to it."""

    def __init__(self, command: Sequence[str], ready_file: Path) -> None:
        ready_file.unlink(missing_ok=True)
        self._ready_file = ready_file
        self._last_line = ""
        self._process = subprocess.Popen(
            # Killed at once if we die: what starts next needs the memory, and leases return.
            launch_command(command, death_signal=signal.SIGKILL),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C in the terminal reaches only us
        )
        self._reader = threading.Thread(target=self._relay, name="log of the worker", daemon=True)
        self._reader.start()

    @property
    def is_ready(self) -> bool:
        return self._ready_file.exists()

    @property
    def exit_code(self) -> int | None:
        """Return None while it runs; minus the signal that ended it."""
        return self._process.poll()

    def ask_to_end(self) -> None:
        """Have it drain, as after any SIGTERM."""
        if self.exit_code is None:
            self._process.terminate()

    def kill(self) -> None:
        """Kill it; its engine dies with it."""
        self._process.kill()
        self._process.wait()

    def reason(self) -> str:
        """Return why it ended: its last line, or the signal."""
        self._reader.join(_READ_SECONDS)
        code = self._process.wait()
        if code < 0:
            return f"its worker ended by {signal.Signals(-code).name}."
        words = last_words(self._last_line).removeprefix("tokenmill: ")
        return words or f"its worker ended with exit code {code}."

    def _relay(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                sys.stderr.write(line)
                sys.stderr.flush()
                if line.strip():
                    self._last_line = line.strip()
