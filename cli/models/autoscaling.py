"""`tokenmill autoscale`: run a command that sets the number of a model's workers, as KEDA does for pods.

The database decides; on doubt, or where it does not answer, the number stays. The command is run without a shell.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer

from cli.sigterm import ends_by_sigterm
from cli.transactions import DataDirOption, running_database_url
from jobs.errors import InputError, NotFoundError, TokenmillError

PLACEHOLDER = "{workers}"
ANSWER_SECONDS = 15.0
"""Longest wait for the database."""
REPEATED_SECONDS = 600.0
"""The command is repeated after this time: machines may have gone that nobody starts again."""


def autoscale(
    *,
    model: Annotated[str, typer.Option(help="The name in requests.")],
    command: Annotated[
        str, typer.Option(help="Command that sets the number of workers, which stands for {workers}; no shell runs it.")
    ],
    every: Annotated[float, typer.Option(min=1, help="Seconds from one question to the next.")] = 30.0,
    command_seconds: Annotated[float, typer.Option(min=1, help="Longest time for the command.")] = 60.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command instead of running it.")] = False,
    data_dir: DataDirOption = None,
) -> None:
    """Run a command that sets the number of a model's workers whenever its deadlines need another one.

    Settings: `tokenmill models scale`. The command is repeated after ten minutes and where it failed. Until Ctrl-C.
    """
    from jobs.scaling.asking import ask_anew

    url = _url(data_dir)
    set_number = Command(words=parse(command), seconds=command_seconds, is_dry=dry_run)
    scaler = Scaler(model=model, ask=lambda: ask_anew(url, model, seconds=ANSWER_SECONDS), set_number=set_number.run)
    with ends_by_sigterm():
        while True:
            scaler.look()
            time.sleep(every)


def parse(command: str) -> Sequence[str]:
    """Return the words of a command. Raises InputError where it has no {workers}, or no such program is installed."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"--command is {command!r}, which cannot be split into words: {error}") from None
    if not any(PLACEHOLDER in word for word in words[1:]):
        raise InputError(f"--command is {command!r}; give a program and {PLACEHOLDER} where it takes the number")
    if shutil.which(words[0]) is None:
        raise InputError(f"--command names {words[0]!r}, which is not installed; give its path or set PATH")
    return words


class CommandError(TokenmillError):
    """The command has not set the number."""

    code = "command_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command that sets a number of workers. It may be repeated."""

    words: Sequence[str]
    seconds: float
    is_dry: bool = False

    def run(self, number: int) -> None:
        """Run it with a number. Raises CommandError where it fails, cannot be started, or takes too long."""
        words = [word.replace(PLACEHOLDER, str(number)) for word in self.words]
        if self.is_dry:
            print(f"would run: {shlex.join(words)}", flush=True)
            return
        try:
            # A session of its own: Ctrl-C does not end it halfway, and all its processes can be ended.
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            raise CommandError(f"{words[0]} cannot be started: {error.strerror}") from None
        self._wait(process)

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        try:
            status = process.wait(self.seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise CommandError(f"the command was ended after {self.seconds:g} s") from None
        if status:
            raise CommandError(f"the command ended with status {status}")


@dataclass(slots=True, kw_only=True)
class Scaler:
    """Sets the number of a model's workers when another one is wanted, with a line for each change."""

    model: str
    ask: Callable[[], int]
    set_number: Callable[[int], None]
    monotonic: Callable[[], float] = time.monotonic
    number: int | None = None
    """The last one that was set; None: none yet."""
    _set_at: float = 0.0
    _trouble: str = ""

    def look(self) -> None:
        """Ask once, and set the number where it differs or was set long ago. Reports trouble once, and its end."""
        try:
            self._follow(self.ask())
        except NotFoundError:
            raise
        except TokenmillError as error:
            if error.message != self._trouble:
                _say(f"{self.model}: {error.message}; the number stays {self._shown}")
            self._trouble = error.message
        else:
            self._trouble = ""

    def _follow(self, wanted: int) -> None:
        now = self.monotonic()
        if wanted == self.number and now - self._set_at < REPEATED_SECONDS:
            return
        self.set_number(wanted)
        if wanted != self.number:
            _say(f"{self.model}: {self._shown} → {wanted} workers")
        self.number, self._set_at = wanted, now

    @property
    def _shown(self) -> str:
        return "?" if self.number is None else str(self.number)


def _url(data_dir: DataDirOption) -> str:
    """Return the database's URL: of the role that may ask and nothing else, or of services."""
    url = os.environ.get("TOKENMILL_DATABASE_SCALER_URL")
    return url if url and data_dir is None else running_database_url(data_dir)


def _say(sentence: str) -> None:
    print(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {sentence}", file=sys.stderr, flush=True)
