"""`tokenmill.map` as the user's process has it: it hands a table to a process of ours, and waits for the new columns.

That process finds our packages, and the user's finds its own, which may be called the same.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from tokenmill.errors import InputError, TokenmillError
from tokenmill.processes import command_of
from tokenmill.row_json import dumps
from tokenmill.tables import PythonTable

TABLE, ADDED, ERROR = "table", "added", "error.json"
"""Files of a call: what it was given, its new columns, and why there are none."""
INTERRUPTED = 130
"""The exit status of a process that was interrupted."""


def mapped(table: PythonTable, call: Mapping[str, Any]) -> Any:
    """Return a table with the columns of its answers. Raises what `tokenmill.map` does."""
    with tempfile.TemporaryDirectory(prefix="tokenmill-") as name:
        folder = Path(name)
        table.write(folder / TABLE)
        status = answered(folder, {**call, "form": table.form})
        if status != 0:
            _fail(folder, status)
        return table.extended(folder / ADDED)


def answered(folder: Path, call: Mapping[str, Any]) -> int:
    """Have a process of ours answer a call; return its exit status.

    It is in a group of its own, so that a terminal's Ctrl-C reaches it once, through this process.
    """
    command = command_of("cli.mapping.child", str(folder), str(os.getpid()))
    with subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0) as process:
        try:
            _hand_over(process, dumps(call))
            return _ended(process)
        except BaseException:  # such as from a handler of the user's for a signal
            process.terminate()
            raise


def _hand_over(process: subprocess.Popen[bytes], content: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(content)
        process.stdin.close()
    except BrokenPipeError:
        pass  # it has ended, which its status tells


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Wait for its end. Each interrupt is handed on: the first asks it to stop, the second to stop at once."""
    is_interrupted = False
    while True:
        try:
            status = process.wait()
        except KeyboardInterrupt:
            is_interrupted = True
            process.send_signal(signal.SIGINT)
        else:
            return INTERRUPTED if is_interrupted else status


def note_error(folder: Path, error: TokenmillError | OSError) -> int:
    """Note why there are no new columns, in the process that was to make them; return its exit status."""
    if isinstance(error, TokenmillError):
        noted = {
            "is_input": isinstance(error, InputError),
            "text": error.message,
            "param": error.param,
            "code": error.code,
        }
    else:
        noted = {"errno": error.errno, "text": error.strerror or str(error), "path": error.filename}
    (folder / ERROR).write_text(json.dumps(noted, default=str))
    return 1


def _fail(folder: Path, status: int) -> NoReturn:
    if status == INTERRUPTED:
        raise KeyboardInterrupt
    try:
        noted = json.loads((folder / ERROR).read_text())
    except FileNotFoundError:
        raise TokenmillError(
            f"the process that computes the answers has ended (status {status}). Its last words are on standard error."
        ) from None
    if "errno" in noted:
        raise OSError(noted["errno"], noted["text"], noted["path"])
    kind = InputError if noted["is_input"] else TokenmillError
    raise kind(noted["text"], param=noted["param"], code=noted["code"])
