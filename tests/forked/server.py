"""Forks for each call of `tests.forked.caller`; the fork is the program, until the interpreter's own end.

Arguments: `commands` or `engines`, the socket, and the Python that the programs start others with. Engines, and `bench`
with its own, have another server, since torch, once loaded, makes the end of any process slow. A fork is safe: there
are no threads.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
from importlib import import_module
from typing import Any

from cli import main as command_line
from cli.overview import commands
from features import parts
from tokenmill.processes import put_our_packages_first

_LONGEST_CALL = 1 << 20
_MOST_DESCRIPTORS = 16
_ABOVE_DESCRIPTORS = 100  # where received ones wait for their numbers
_LOADED_LATE = (
    *("cli.app", "cli.stack", "openai", "httpx", "httpx2", "sqlalchemy.orm", "jobs.tables", "jobs.database"),
    *("alembic.command", "features.administration.keys", "features.administration.tenants", "jobs.partitions"),
)
"""What commands load only once they need it."""
_OF_ROLES = {
    "api": ("api.app", "api.server"),
    "control": ("workers.control",),
    "dispatch": ("workers.dispatcher",),
    "prepare": ("workers.preparing.main",),
    "worker": ("workers.gpu_main", "workers.remote.main", "transformers.utils", "tokenizers"),
}
_PARTS_OF_ROLES = {"api": ["routers"], "control": ["control", "recipes"]}
"""What they take from the features."""


def serve(path: str) -> dict[str, Any]:
    """Answer calls at this socket. Returns only in a fork, with the call that it is to run."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the forks that handle a call
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{path}.new")
        listener.listen(64)
        os.rename(f"{path}.new", path)  # its callers find it once it listens
        while True:
            connection, _ = listener.accept()
            content, descriptors, *_ = socket.recv_fds(connection, _LONGEST_CALL, _MOST_DESCRIPTORS)
            if not content:  # the caller was killed at once
                connection.close()
                continue
            call: dict[str, Any] = json.loads(content)
            _load_role(*_typed(call["arguments"])[:1])
            if os.fork() == 0:
                break
            connection.close()
            _close(descriptors)
    _handle(connection, call, descriptors)
    return call


def load(kind: str) -> None:
    if kind == "engines":
        import_module("engine.build")
    else:
        for module in (*_LOADED_LATE, *(command.part.partition(":")[0] for command in commands())):
            import_module(module)
    _keep_shared()


def _load_role(command: str = "") -> None:
    """Load what a role is made of, if the command is one and the first of its kind."""
    new = [module for module in _OF_ROLES.get(command, ()) if module not in sys.modules]
    for module in new:
        import_module(module)
    if new:
        for kind in _PARTS_OF_ROLES.get(command, ()):
            parts(kind)
        _keep_shared()


def _keep_shared() -> None:
    """Let collections in forks pass over what is loaded, whose pages they would copy."""
    gc.collect()
    gc.freeze()


def _handle(connection: socket.socket, call: dict[str, Any], descriptors: list[int]) -> None:
    """Answer a call with a descriptor of the program's process, then with its exit status; return in that process.

    A caller that ends first takes the program with it.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        connection.close()
        _become(call, descriptors)
        return
    _close(descriptors)
    ended = os.pidfd_open(child)
    waited_for: list[Any] = [connection, ended]
    try:
        socket.send_fds(connection, [b"started"], [ended])
        ready, *_ = select.select(waited_for, [], [])
    except OSError:  # the caller is gone already
        ready = []
    if ended not in ready:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended in ready:
        connection.send(str(status).encode())
    os._exit(0)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _become(call: dict[str, Any], descriptors: list[int]) -> None:
    """Take the caller's open files, folder, environment and arguments."""
    waiting = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _ABOVE_DESCRIPTORS) for descriptor in descriptors]
    _close(descriptors)
    for number, descriptor in zip(call["descriptors"], waiting, strict=True):
        os.dup2(descriptor, number)
    _close(waiting)
    sys.stdin, sys.stdout = os.fdopen(0, encoding="utf-8"), os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    if not call["is_interruptible"]:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir(call["folder"])
    os.environ.clear()
    os.environ.update(call["environment"])


def _typed(arguments: list[str]) -> list[str]:
    """Return the words after `tokenmill`."""
    match arguments:
        case ["-P", _, "cli.main", *typed] | ["-m", "cli.main", *typed] | [_, *typed]:
            return typed
    return []


def run(arguments: list[str], *, quick_python: str) -> None:
    """Run a program as an interpreter does that is called with these arguments, or the command of that name."""
    sys.executable = quick_python
    parent_id = str(os.getppid())  # which it dies with, as it would with its caller
    match arguments:
        case ["-P", "-m", "engine.process.child" as module, config, _]:
            _run_module(module, config, parent_id)
        case ["-P", _, "cli.mapping.child" as module, folder, _, ready]:
            put_our_packages_first()
            _run_module(module, folder, parent_id, ready)
        case ["-m", module, *typed] if module.startswith("tests."):
            _run_module(module, *typed)
        case ["-m", "cli.main", "bench", *_]:
            atexit.register(gc.unfreeze)  # what frozen modules keep alive until the end, nanobind reports as leaks
            _run_command(arguments)
        case _:
            _run_command(arguments)


def _run_module(module: str, *arguments: str) -> None:
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _run_command(arguments: list[str]) -> None:
    name = arguments[0] if not arguments[0].startswith("-") else str(command_line.__file__)
    sys.argv = [name, *_typed(arguments)]
    if arguments[0] == "-P":
        put_our_packages_first()
    command_line.main()


if __name__ == "__main__":
    _, kind, path, quick_python = sys.argv
    load(kind)
    run(serve(path)["arguments"], quick_python=quick_python)
