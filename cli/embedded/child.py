"""A child process that dies with its parent, logs to a file, and is stopped in stages."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cli.embedded.causes import cause_of
from jobs.errors import ServiceError
from jobs.telemetry.logs import last_words

_LAUNCHER = Path(__file__).with_name("launch.py")
_POLL_SECONDS = 0.02
_READ_LOG_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemUser:
    """The user that a child runs as if we are root."""

    uid: int
    gid: int
    keeps_reach: bool = False
    """The child may enter folders that are closed to that user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """A command, and how to start and stop it."""

    name: str
    command: Sequence[str]
    log_path: Path
    is_ready: Callable[[], bool]
    environment: Mapping[str, str] | None = None  # None: ours
    user: SystemUser | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    """Requests its end within `stop_seconds`; then it is killed."""
    death_signal: signal.Signals = signal.SIGTERM
    """Sent by the kernel if we die."""
    stop_seconds: float = 30.0
    ready_seconds: float = 60.0
    before_start: Callable[[], None] = lambda: None  # clears leftovers of an earlier run
    keep_log_bytes: int = 16 * 1024 * 1024  # of one file; there are two


@dataclass(slots=True)
class Child:
    """A running `spec`. Start it from the main thread: the kernel's death signal is bound to the starting thread."""

    spec: ChildSpec
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _log_start: int = field(default=0, init=False)  # earlier bytes are of an earlier run

    def start(self) -> None:
        spec = self.spec
        spec.before_start()
        spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        self.rotate_log()
        with spec.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                launch_command(spec.command, death_signal=spec.death_signal, user=spec.user),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=None if spec.environment is None else dict(spec.environment),
                cwd="/",
                start_new_session=True,  # Ctrl-C in the terminal reaches only us; we stop the children in order
            )

    def rotate_log(self) -> None:
        """Move the content of a long log to `<name>.1`, which is overwritten.

        The child has the file open for appending, so the content is copied and the file truncated; a line written in
        between is lost.
        """
        log = self.spec.log_path
        if not log.exists() or log.stat().st_size <= self.spec.keep_log_bytes:
            return
        try:
            shutil.copyfile(log, log.with_name(log.name + ".1"))
        except OSError:  # a full disk: truncate the log anyway
            log.with_name(log.name + ".1").unlink(missing_ok=True)
        os.truncate(log, 0)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs or before it was started; negative: minus the signal that ended it."""
        return None if self._process is None else self._process.poll()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait_until_ready(self, on_wait: Callable[[], None] = lambda: None) -> None:
        """Wait until it is ready. Raises ServiceError, with the end of its log, if it exits or takes `ready_seconds`.

        `on_wait` is called between checks, and may raise to end the wait.
        """
        deadline = time.monotonic() + self.spec.ready_seconds
        while not self.spec.is_ready():
            if not self.is_running:
                raise ServiceError(f"{self.spec.name} stopped while starting{self.last_words()}")
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"{self.spec.name} was not ready after {self.spec.ready_seconds:.0f} s{self.last_words()}"
                )
            on_wait()
            time.sleep(_POLL_SECONDS)

    def last_words(self) -> str:
        """Return `: <why it ended, or the last line of the log> (more in <log>)`."""
        written = self._written()
        last = next((line.strip() for line in reversed(written.splitlines()) if line.strip()), "no output")
        why = cause_of(written, self.spec.log_path.parent) or last_words(last).removeprefix("tokenmill: ")
        return f": {why} (more in {self.spec.log_path})"

    def _written(self) -> str:
        """Return the end of its log since its start; a log that is shorter now was truncated."""
        log = self.spec.log_path
        if not log.exists():
            return ""
        content = log.read_bytes()
        start = self._log_start if self._log_start <= len(content) else 0
        return content[start:][-_READ_LOG_BYTES:].decode(errors="replace")

    def ask_to_stop(self) -> None:
        self.send(self.spec.stop_signal)

    def send(self, signal_: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(signal_)

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds`; return whether it has ended."""
        if self._process is None:
            return True
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """Ask it to end, wait `stop_seconds`, then kill it."""
        self.ask_to_stop()
        if not self.wait(self.spec.stop_seconds):
            self.kill()

    def kill(self) -> None:
        """Kill it and its process group."""
        if self._process is None:
            return
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def launch_command(command: Sequence[str], *, death_signal: int, user: SystemUser | None = None) -> list[str]:
    """Return `command` wrapped so that it dies with this process and runs as `user`."""
    identity = ["-", "-", "-"]
    if user is not None:
        identity = [str(user.uid), str(user.gid), "reach" if user.keeps_reach else "-"]
    launcher = [sys.executable, "-I", "-S", str(_LAUNCHER)]
    return [*launcher, str(int(death_signal)), str(os.getpid()), *identity, *command]
