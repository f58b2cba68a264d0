"""`tokenmill.map` in the user's process: passes a table to a process of ours, and waits for the new columns.

Each process finds its own packages, whose names may be the same.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

from tokenmill.errors import InputError, TokenmillError
from tokenmill.processes import command_of
from tokenmill.tables import PythonTable

TABLE, ADDED, ERROR = "table", "added", "error.json"
"""Files of a call: its input, its new columns, and the error where there are none."""
TAKEN = b"taken\n"
"""Sent by the caller once it has the new columns."""
INTERRUPTED = 130
"""Exit status of an interrupted process."""

T = TypeVar("T")


def mapped(table: PythonTable, call: Mapping[str, Any]) -> Any:
    """Return a table with the columns of its answers. Raises as `tokenmill.map`."""
    content = encoded({**call, "form": table.form})
    with tempfile.TemporaryDirectory(prefix="tokenmill-") as name:
        folder = Path(name)
        table.write(folder / TABLE)
        with Answering(folder, content) as answering:
            if not answering.are_columns_there():
                _fail(folder, answering.status())
            extended = table.extended(folder / ADDED)
            answering.take()
        return extended


def encoded(call: Mapping[str, Any]) -> bytes:
    """Return a call as one line of JSON. Raises InputError for an argument without a JSON form."""
    arguments = {**call, **call["wanted"]}
    del arguments["wanted"]
    for name, value in arguments.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(
                f"{name} cannot be handed to the process that computes the answers: {error}. Give texts, finite "
                "numbers, lists and dicts of these.",
                param=name,
            ) from None
    return json.dumps(call, allow_nan=False).encode() + b"\n"


class Answering:
    """A process of ours that answers one call, for the length of a block.

    It has its own process group, so that a terminal's Ctrl-C reaches it once, through this process. It keeps its
    results until the caller has the new columns: after an earlier interrupt the same call continues from there.
    """

    def __init__(self, folder: Path, content: bytes) -> None:
        self._is_interrupted = False
        self._ready, ready = os.pipe()
        try:
            command = command_of("cli.mapping.child", str(folder), str(os.getpid()), str(ready))
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0, pass_fds=(ready,))
        finally:
            os.close(ready)
        self._content = content

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:  # such as from a user's signal handler
            self._process.terminate()
        os.close(self._ready)
        self._process.__exit__(kind, error, at)

    def are_columns_there(self) -> bool:
        """Send the call and wait until there are new columns; False where the process ends without."""
        self._write(self._content)
        return bool(self._uninterrupted(lambda: os.read(self._ready, 1))) and not self._is_interrupted

    def take(self) -> None:
        """Confirm that the columns were read, and wait for the end of the process."""
        self._write(TAKEN)
        self.status()

    def status(self) -> int:
        """Wait for the end of the process; return its exit status."""
        self._close()
        status = self._uninterrupted(self._process.wait)
        return INTERRUPTED if self._is_interrupted else status

    def _uninterrupted(self, wait: Callable[[], T]) -> T:
        """Wait and forward each interrupt: the first requests the process to stop, the second to stop at once."""
        while True:
            try:
                return wait()
            except KeyboardInterrupt:
                self._is_interrupted = True
                self._process.send_signal(signal.SIGINT)

    def _write(self, content: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, as its status shows
            self._process.stdin.write(content)
            self._process.stdin.flush()

    def _close(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()


def note_error(folder: Path, error: TokenmillError | OSError) -> int:
    """Record why there are no new columns, in the process that was to make them; return its exit status."""
    if isinstance(error, TokenmillError):
        values = {
            "is_input": isinstance(error, InputError),
            "text": error.message,
            "param": error.param,
            "code": error.code,
        }
    else:
        values = {
            "errno": error.errno,
            "text": error.strerror or str(error),
            "paths": [error.filename, error.filename2],
        }
    (folder / ERROR).write_text(json.dumps(values, default=str))
    return 1


def _fail(folder: Path, status: int) -> NoReturn:
    if status == INTERRUPTED:
        raise KeyboardInterrupt
    try:
        values = json.loads((folder / ERROR).read_text())
    except FileNotFoundError:
        raise TokenmillError(
            f"the process that computes the answers has ended (status {status}). Its last words are on standard error."
        ) from None
    if "errno" in values:
        path, other = values["paths"]
        if values["errno"] is None:
            raise OSError(values["text"])
        raise OSError(values["errno"], values["text"], path, None, other)
    kind = InputError if values["is_input"] else TokenmillError
    raise kind(values["text"], param=values["param"], code=values["code"])
