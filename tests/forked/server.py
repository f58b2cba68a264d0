"""Forks for each call of `tests.forked.caller`; the fork is the command, until the interpreter's own end.

Has no threads, so that a fork is safe.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
from importlib import import_module
from typing import Any

from cli.main import main
from cli.overview import commands

_LONGEST_CALL = 1 << 20
_LOADED_LATE = ("cli.app", "cli.stack", "openai", "httpx", "httpx2", "sqlalchemy.orm", "jobs.tables", "jobs.database")
"""What commands load only once they need it."""


def serve(path: str) -> None:
    """Answer calls at this socket. Returns only in a fork, which then is to run the command."""
    _load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the forks that handle a call
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{path}.new")
        listener.listen(64)
        os.rename(f"{path}.new", path)  # its callers find it once it listens
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
    _handle(connection)


def _load() -> None:
    for module in (*_LOADED_LATE, *(command.part.partition(":")[0] for command in commands())):
        import_module(module)
    gc.collect()
    gc.freeze()


def _handle(connection: socket.socket) -> None:
    """Receive a call, and answer with the exit status of a fork, in which this returns.

    A caller that ends first takes the command with it.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    content, streams, *_ = socket.recv_fds(connection, _LONGEST_CALL, 3)
    child = os.fork()
    if child == 0:
        connection.close()
        _become(json.loads(content), streams)
        return
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(child)
    waited_for: list[Any] = [connection, ended]
    ready, *_ = select.select(waited_for, [], [])
    if ended not in ready:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended in ready:
        connection.send(str(status).encode())
    os._exit(0)


def _become(call: dict[str, Any], streams: list[int]) -> None:
    """Take the caller's streams, folder, environment and arguments."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout = os.fdopen(0, encoding="utf-8"), os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    os.chdir(call["folder"])
    os.environ.clear()
    os.environ.update(call["environment"])
    sys.argv = call["arguments"]


if __name__ == "__main__":
    serve(sys.argv[1])
    main()
